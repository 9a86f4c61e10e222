# . tests/gpu_host/unpack.sh KIT [SITE]: what pack.sh put into KIT is laid beside what the machine has, as root, and is on
# the PATH of this shell then. Ends the shell with 9 where something does not work, before a GPU is used for nothing.
kit=$1 site=${2:-/tmp/site}
export PATH=$PATH:/usr/sbin:/sbin
# Not by dpkg -x: it replaces the link /lib by a folder, and nothing finds its libraries any more.
for package in "$kit"/debs/{slurm,munge_,libdw1}*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar x -C / --keep-directory-symlink
done
for name in slurmctld slurmd slurmstepd; do ln -sf $name-wlm /usr/sbin/$name; done
mkdir -p /opt/debian-libs
for package in "$kit"/debs/lib*.deb; do dpkg-deb --fsys-tarfile "$package" | tar x -C /opt/debian-libs; done
ldconfig
for library in libjson-c.so.5 liblua5.1.so.0 libyaml-0.so.2 libdbus-1.so.3 libhwloc.so.15 libnuma.so.1 libreadline.so.8; do
    ldconfig -p | grep -q "$library" ||
        find /opt/debian-libs -name "${library%%.so*}.so*" -exec cp -a {} /usr/lib/x86_64-linux-gnu/ \;
done
ldconfig

python=$(command -v python3)
mkdir -p "$site"
for archive in "$kit"/*.tar.xz; do tar xJf "$archive" -C "$site" --strip-components 1; done
sed -i "1s|^#!.*python.*|#!$python|" "$site"/bin/*
for name in python python3; do printf '#!/bin/sh\nexec %s "$@"\n' "$python" > "$site/bin/$name"; done
[ -d .git ] || printf '#!/bin/sh\ncd "%s" && case $1 in rev-parse) cat commit ;; status) cat changes ;; esac\n' \
    "$(realpath "$kit")" > "$site/bin/git"
chmod +x "$site"/bin/*
nsys=$(ls -d /opt/nvidia/nsight-{systems,compute}/*/host/target-linux-x64 2> /dev/null | tail -1)
plugins=$PWD/workflow/plugins
plugins=$plugins/snakemake-executor-plugin-submitit:$plugins/snakemake-logger-plugin-nightsweep
export PYTHONPATH=$PWD:$plugins:$site${PYTHONPATH:+:$PYTHONPATH} PATH=$site/bin:${nsys:+$nsys:}$PATH

echo 'int main(void) { return 0; }' | gcc -x c -o /tmp/compiles - && /tmp/compiles && slurmctld -V && nsys --version &&
    snakemake --version && python3 -c 'import deepspeed, torch, torchao; print(torch.cuda.device_count(), "GPUs")' ||
    exit 9
