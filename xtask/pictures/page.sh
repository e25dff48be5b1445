#!/bin/sh
# A picture of the web UI of a demonstration: page.sh PICTURE WIDTH HEIGHT SCHEME
set -e
CHROMIUM=$(command -v chromium)
export CHROMIUM
evlbi demo --stations 3 --rate 16M --duration 1s --loss 5% --keep 2> said > /dev/null &
demo=$!
trap 'kill $demo' EXIT
until grep -q stays said; do
    kill -0 $demo
    sleep 1
done
"$TREE/target/venv/bin/python" "$TREE/xtask/pictures/page.py" "$@" < said
