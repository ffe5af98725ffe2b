#!/bin/sh
# The picture of the report in the README: the default model's, as Chromium shows the top of it.
# Usage: benchmarks/report_picture.sh [OUT.png]
set -eu
out=${1:-docs/images/report.png}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python}" -m edge_albert.export --int8 --format onnx,tflite --output "$work/bundle"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" \
    --window-size=1000,2550 --screenshot="$work/report.png" "file://$work/bundle/report.html"
"${PYTHON:-python}" - "$work/report.png" "$out" <<'SHRINK'
import sys

from PIL import Image  # comes with matplotlib

Image.open(sys.argv[1]).convert("RGB").quantize(128).save(sys.argv[2], optimize=True)
SHRINK
