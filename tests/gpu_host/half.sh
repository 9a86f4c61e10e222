#!/bin/bash
# Measures a half of the labelled scripts, both sides of each once, and traces the slow one. In the repository, as root:
#
#   tests/gpu_host/half.sh KIT HALF SECONDS OUT
#
# OUT then has, in pieces of 15 MB, pairs/NAME.json and the points with their traces: `cat OUT/half.tar.xz.* | tar xJ`.
set -uo pipefail
[ $# = 4 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
kit=$1 half=$2 seconds=$3 out=$4
mkdir -p "$out" /tmp/half/peers /tmp/half/images
trap 'tail -5 "$out/unpack.log" >&2' EXIT  # unpack.sh ends this shell where something does not work
. tests/gpu_host/unpack.sh "$kit" > "$out/unpack.log" 2>&1
trap - EXIT
names=$(python3 -c "
from tests.labelled import scripts
print(','.join(run.name for run in scripts.load() if run.half == '$half'))")
python3 -m tests.labelled.pairs /tmp/half/made --names "$names" --peers /tmp/half/peers --images /tmp/half/images \
    --repeats 1 --gpus "$(nvidia-smi -L | wc -l)" --seconds $((seconds - SECONDS)) --limit-s 70
find /tmp/half/made/points -name '*.json.gz' -print0 | xargs -0 -P 8 gunzip  # what is packed twice stays large
tar c -C /tmp/half/made pairs points | xz -T 0 -5 | split -b 15M -d - "$out/half.tar.xz."
