#!/bin/sh
# Correlates the stations of plan.toml into ours.swin and asks the reader in Python what is in it: make.sh EVLBI FOLDER
set -eu
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir -p "$2/swin"
"$1" sky "$here/plan.toml" --out "$work/sky" --json > "$work/said" 2> "$work/errors" || { cat "$work/errors" >&2; exit 1; }
"$1" correlate "$work/sky/Ef.vdif" "$work/sky/Jb.vdif" "$work/sky/On.vdif" --freq 4.9G \
    --delay 0 --delay 2.5us,1e-7 --delay -1.5us,-3e-7 --channels 16 --integration 12800us --out "$work/out" --json \
    > "$work/said" 2> "$work/errors" || { cat "$work/errors" >&2; exit 1; }
cp "$work"/out/DIFX_* "$2/swin/ours.swin"
python3 "$here/swin.py" "$2/swin/ours.swin" 16 > "$2/swin/ours.json"
