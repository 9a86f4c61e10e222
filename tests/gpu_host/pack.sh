#!/bin/bash
# tests/gpu_host/pack.sh KIT [tables]: fill the folder KIT with what a bare GPU machine (x86-64, Ubuntu 24.04, Python
# 3.12 with PyTorch) lacks. Run it on Debian 12, from the repository, after `make .venv/ready`. With `tables`, Polars goes
# along (38 MB), so that tables are made there, and with them the rounds of a sweep's precision.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
kit=$(mkdir -p "$1" && cd "$1" && pwd)
pip="$root/.venv/bin/python -m pip --disable-pip-version-check --quiet"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Slurm and munge with their libraries; libdw1 is what Nsight Systems' importer needs.
mkdir -p "$kit/debs"
(cd "$kit/debs" && apt-get -o APT::Sandbox::User=root download -q slurmctld slurmd slurm-client slurm-wlm-basic-plugins \
    munge libdw1 libjson-c5 liblua5.1-0 libyaml-0-2 libdbus-1-3 libhwloc15 libnuma1 libreadline8)

# The machine has these already, some of them as parts of its PyTorch.
there='numpy|pandas|scipy|contourpy|networkx|requests|urllib3|certifi|idna|charset[-_]normalizer|jinja2|markupsafe|tzdata|python[-_]dateutil'
sed -n 's/^\([^ ][^\]*\) \\$/\1/p' "$root/envs/hashes.lock" | grep -Eiv "^($there)==" > "$scratch/constraints"
wheels=$scratch/wheels
# Two come as source only; DeepSpeed's set-up imports torch, and its operators are built where they are needed.
deepspeed=$(sed -n 's/^DEEPSPEED := //p' "$root/Makefile")
DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $pip wheel --no-deps --no-build-isolation -w "$wheels" "$deepspeed"
$pip wheel --no-deps -w "$wheels" connection_pool
platforms=$(printf -- '--platform manylinux%s_x86_64 ' _2_28 _2_27 _2_24 _2_17 2014 _2_5 1)
other="--only-binary=:all: --python-version 3.12 --implementation cp $platforms --platform any --find-links $wheels"
$pip download $other -c "$scratch/constraints" -d "$wheels" snakemake submitit snakemake-interface-logger-plugins msgspec \
    jsonschema tomlkit hjson msgpack py-cpuinfo einops pydantic pytest psutil nvidia-ml-py
$pip download $other -c "$scratch/constraints" --no-deps -d "$wheels" torchao
(cd "$wheels" && ls | { grep -Ei "^($there)-" || true; } | xargs -r rm)
$pip install $other --no-deps --no-compile --target "$scratch/site" "$wheels"/*.whl
rm -rf "$scratch"/site/pulp/solverdir/cbc/{osx,win}
tar c -C "$scratch" site | xz -T0 > "$kit/site.tar.xz"
rm -f "$kit/tables.tar.xz"
if [ "${2:-}" = tables ]; then
    $pip download $other -c "$scratch/constraints" --no-deps -d "$scratch/tables" polars polars-runtime-32 \
        adbc-driver-manager adbc-driver-sqlite
    $pip install $other --no-deps --no-compile --target "$scratch/site2/site" "$scratch"/tables/*.whl
    find "$scratch/site2" -name '*.so' -exec strip {} +
    tar c -C "$scratch/site2" site | xz -T0 > "$kit/tables.tar.xz"
fi
# The copy of the repository that goes there has no history.
git -C "$root" rev-parse HEAD > "$kit/commit"
git -C "$root" status --porcelain > "$kit/changes"
du -sh "$kit"/*
