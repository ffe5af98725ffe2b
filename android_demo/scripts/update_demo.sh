#!/bin/bash
# Brings the demo up to a new default model: the bundle in the app's assets, and what the JVM tests compare with.
# usage: update_demo.sh [options of python -m edge_albert.export, such as --model DIR]
# PYTHON names the interpreter (default: python). Afterwards run the JVM tests, look at the screenshot they draw
# (jvm-tests/app/target/screens/main.png) and copy it to docs/images/android.png.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here/.."
"$python" -m edge_albert.export --int8 --format onnx --no-measure "$@" \
    --output "$work/bundle" --android "$here/app/src/main/assets" --force
"$python" "$here/scripts/make_test_vectors.py"
