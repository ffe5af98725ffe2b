#!/bin/bash
# All of the Android demo that runs without Google's servers: the JVM tests against vectors made on this machine, ktlint and
# detekt, and the APK with its checks. Needs a JDK 17, Maven, apk.sh's tools, and edge_albert with its onnx, tflite and
# export extras; as root in CI it installs the Debian packages itself.
# usage: ci.sh    (PYTHON names the interpreter, default: python)
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    packages=""
    for pair in mvn:maven javac:openjdk-17-jdk-headless aapt2:aapt zipalign:zipalign apksigner:apksigner zip:zip \
        unzip:unzip readelf:binutils; do
        command -v "${pair%%:*}" >/dev/null || packages="$packages ${pair##*:}"
    done
    # shellcheck disable=SC2086
    [ -z "$packages" ] || { apt-get -qq update && apt-get -qq install -y --no-install-recommends $packages >/dev/null; }
fi

# int8 kernels differ a little between versions, so Python answers with the version that the JVM tests use
version=$(sed -n 's|.*<onnxruntime.version>\(.*\)</onnxruntime.version>.*|\1|p' android_demo/jvm-tests/pom.xml)
"$python" -m pip install -q --no-deps --target "$work/onnxruntime" "onnxruntime==$version"
PYTHONPATH=$work/onnxruntime "$python" android_demo/scripts/make_test_vectors.py --output "$work/vectors"
mvn -B -ntp -f android_demo/jvm-tests/pom.xml -Dvectors="$work/vectors" -Dlogit.tolerance=1e-4 test
android_demo/scripts/lint.sh
"$python" -m edge_albert.export --int8 --format tflite --tflite-compat --no-measure --output "$work/bundle" \
    --android "$work/assets"
android_demo/scripts/apk.sh "$work/assets/bundle" "$work/edge_albert.apk"
"$python" -m edge_albert.report "$work/bundle" --apk "$work/edge_albert.apk" --output "$work/report.html" --json >"$work/apk.json"
"$python" - "$work/apk.json" <<'CHECK'
import json, sys
apk = json.load(open(sys.argv[1], encoding="utf-8"))["apk"]
assert len(apk["models"]) == 1 and apk["models"][0]["stored"] and apk["models"][0]["is_the_bundles"], apk["models"]
print(f"report   {apk['apk_bytes']} bytes of APK, {apk['models'][0]['bytes']} of them the model, once")
CHECK
