#!/bin/bash
# A night that outlives the shell that begins it, for machines that lend shells for minutes. In the repository:
#
#   tests/gpu_host/night.sh begin KIT SECONDS [OPTION...]   unpack KIT, and run `python3 -m tests.gpu_host` beside the shell
#   tests/gpu_host/night.sh wait SECONDS OUT                wait for its end, at most so long; then, what there is, into OUT
#   tests/gpu_host/night.sh end OUT                         the same, but it has to end now
#
# `wait` and `end` fail at once where none was begun: what was begun on another machine does not come here.
set -uo pipefail
night=/tmp/ns/night

running() { kill -0 "$(cat $night/pid)" 2> /dev/null; }

begin() {
    local kit=$1 seconds=$2
    shift 2
    rm -rf $night && mkdir -p $night && cp -r . $night/repository && cd $night/repository || exit 1
    trap 'tail -5 $night/unpack.log >&2' EXIT  # unpack.sh ends this shell where something does not work
    . tests/gpu_host/unpack.sh "$kit" > $night/unpack.log 2>&1
    trap - EXIT
    PYTHONUNBUFFERED=1 setsid nohup python3 -m tests.gpu_host "$kit" $night/out --seconds "$seconds" "$@" \
        > $night/log 2>&1 < /dev/null &
    echo $! > $night/pid
}

# How it stands, and into $1 the night's log and the pieces of results.tar.xz.
hand_over() {
    mkdir -p "$1"
    cat $night/log
    cp $night/log "$1/night.log"
    if running; then
        (cd $night/repository && grep -h '^ "status"' results/*/points/*/record.json | sort | uniq -c)
        SLURM_CONF=/tmp/ns/cluster/etc/slurm.conf squeue -h -o %T | sort | uniq -c
        (cd $night/repository && nice -n 19 tar c --exclude='*.nsys-rep' results /tmp/ns/log /tmp/ns/labelled 2> /dev/null) |
            nice -n 19 xz -T4 -1 | split -b 15M -d - "$1/results.tar.xz."
    else
        cp $night/out/results.tar.xz.* "$1/"
    fi
}

case ${1:-} in
    begin) begin "${@:2}" ;;
    wait | end)
        [ -e $night/pid ] || { echo "no night was begun on this machine" >&2; exit 1; }
        if [ "$1" = wait ]; then last=$((SECONDS + $2)); else last=$((SECONDS + 60)); pkill -INT -f 'snakemake points'; fi
        while running && [ $SECONDS -lt $last ]; do sleep 1; done
        hand_over "${@: -1}"
        ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
