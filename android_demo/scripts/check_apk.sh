#!/bin/bash
# Checks an APK of the demo and reports what is in it: exit status 1, and a line that begins with FAILED, when something
# is wrong. MODEL is the file that must be in it, once and as it is.
# usage: check_apk.sh APK MODEL
set -eu
apk=$1
model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
check() { # what, command…
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then echo "ok       $what"; else failed=1 && echo "FAILED   $what" && cat "$work/log"; fi
}
listed() { unzip -v "$apk" | awk -v name="$1" '$8 ~ name'; }
has() { grep -q "$1" "$2"; }
lacks() { ! grep -q "$1" "$2"; }
is() { [ "$1" = "$2" ] || { echo "found: $1, wanted: $2" && return 1; }; }

unzip -qo "$apk" -d "$work/apk"
aapt2 dump badging "$apk" >"$work/badging"
apksigner verify --verbose --min-sdk-version 26 "$apk" >"$work/signatures"
name=$(basename "$model")

check "package io.edgealbert.demo, minSdk 26, launchable" \
    bash -c "grep -q \"package: name='io.edgealbert.demo'\" '$work/badging' && grep -q \"^sdkVersion:'26'\" '$work/badging' &&
             grep -q 'launchable-activity: name=.io.edgealbert.demo.MainActivity' '$work/badging'"
check "no permission asked for" lacks uses-permission "$work/badging"
check "signed by scheme v2" has "Verified using v2 scheme.*true" "$work/signatures"
check "signed by scheme v3" has "Verified using v3 scheme.*true" "$work/signatures"
check "aligned to 4 bytes, native libraries to 4 KB" zipalign -c -p 4 "$apk"
check "no LambdaMetafactory in the dex" lacks LambdaMetafactory "$work/apk/classes.dex"
check "one model in the APK, stored once" is "$(listed '\\.(tflite|onnx)$' | awk '{print $2, $8}')" "Stored assets/bundle/$name"
check "the model's bytes are the bundle's" cmp "$model" "$work/apk/assets/bundle/$name"
for library in "$work"/apk/lib/*/*.so; do
    check "lib/${library#"$work"/apk/lib/} is stored" is "$(listed "lib/${library#"$work"/apk/lib/}" | awk '{print $2}')" Stored
done

echo
for library in "$work"/apk/lib/*/*.so; do
    align=$(readelf -lW "$library" | awk '$1 == "LOAD" {print $NF}' | sort -u | tr '\n' ' ')
    echo "native   $(basename "$(dirname "$library")") $(stat -c %s "$library") bytes, segments aligned to $((align / 1024)) KB" \
        "($(readelf -hW "$library" | sed -n 's/ *Machine: *//p'))"
done
echo "dex      $(stat -c %s "$work/apk/classes.dex") bytes"
echo "model    $(stat -c %s "$model") bytes ($name)"
echo "apk      $(stat -c %s "$apk") bytes: $apk"
exit $failed
