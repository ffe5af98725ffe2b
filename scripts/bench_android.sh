#!/usr/bin/env bash
# Benchmark a bundle on an Android phone from your laptop, over adb: the demo app, and LiteRT's benchmark_model.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/bench_android.sh [options] BUNDLE

Starts the demo app's benchmark on the phone and collects one JSON file: its figures, the phone's model and Android
version, battery and temperatures before and after. The app must hold BUNDLE (docs/android.md, "Your model in the demo").

  BUNDLE     folder written by python -m edge_albert.export
  -s SERIAL  which phone, as in `adb devices`; needed when there are several
  -o FILE    where the JSON goes (default: bench-android.json)
  -f         replace FILE if it exists
  -a APK     install this demo app first
  -b BINARY  LiteRT's benchmark_model for the phone: run it too, on BUNDLE's model.tflite
  -r RUNS    runs per length (default: 50)
  -l LENGTHS tokens, as in 16,128 (the default)
  -t SECONDS how long the app may take (default: 600)
  -h         this help

PYTHON names the Python here that writes the JSON (default: python3); it needs no package.

examples:
  scripts/bench_android.sh bundle
  scripts/bench_android.sh -s R58M12345 -a edge_albert.apk -b benchmark_model -l 16,128,512 -o phone.json bundle
END
}

fail() {
  echo "bench_android.sh: error: $*" >&2
  exit 2
}

serial="" output=bench-android.json force="" apk="" binary="" runs=50 lengths=16,128 seconds=600
python=${PYTHON:-python3}
while getopts "s:o:fa:b:r:l:t:h" option; do
  case $option in
    s) serial=$OPTARG ;;
    o) output=$OPTARG ;;
    f) force=1 ;;
    a) apk=$OPTARG ;;
    b) binary=$OPTARG ;;
    r) runs=$OPTARG ;;
    l) lengths=$OPTARG ;;
    t) seconds=$OPTARG ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || { usage >&2; exit 2; }
bundle=${1%/}
for tool in adb "$python"; do
  command -v "$tool" >/dev/null || fail "$tool is not installed here: install it first (adb: Android's platform tools)"
done
[ -f "$bundle/bundle.json" ] || fail "$bundle: no bundle.json in it: a bundle is written by python -m edge_albert.export"
[ -n "$force" ] || [ ! -e "$output" ] || fail "$output: already exists: name another with -o, or replace it with -f"
[ -d "$(dirname "$output")" ] || fail "$output: no such folder"
[ -z "$apk" ] || [ -f "$apk" ] || fail "-a $apk: no such file"
[[ $runs =~ ^[1-9][0-9]*$ ]] || fail "-r $runs: a whole number of at least 1 is needed"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "-t $seconds: a whole number of at least 1 is needed"
[[ $lengths =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || fail "-l $lengths: numbers of tokens such as 16,128 are needed"
if [ -n "$binary" ]; then
  [ -f "$binary" ] || fail "-b $binary: no such file"
  [ -f "$bundle/model.tflite" ] || fail "$bundle: benchmark_model needs a model.tflite: export with --format tflite"
fi

# Which phone: exactly one that is ready, or the one that -s names.
devices=$(adb devices | tr -d '\r' | sed -n '2,$p' | grep -v '^$' || true)
ready=$(awk '$2 == "device" { print $1 }' <<<"$devices")
if [ -n "$serial" ]; then
  grep -qxF -- "$serial" <<<"$ready" || fail "-s $serial: no such device is ready; adb devices says: ${devices:-none}"
elif [ -z "$ready" ]; then
  [[ $devices != *unauthorized* ]] || fail "the phone does not trust this computer yet: unlock it and allow USB debugging"
  fail "no device: connect a phone with USB debugging switched on${devices:+; adb devices says: $devices}"
elif [ "$(wc -l <<<"$ready")" -gt 1 ]; then
  fail "several devices: choose one with -s SERIAL: ${ready//$'\n'/ }"
else
  serial=$ready
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
phone() { adb -s "$serial" "$@"; }
on_phone() { phone shell "$@" </dev/null; }

state() { # state WHEN: battery and temperatures, as the phone prints them
  on_phone dumpsys battery >"$work/battery.$1" || true
  on_phone dumpsys thermalservice >"$work/thermal.$1" 2>&1 || true
}

for property in ro.product.manufacturer ro.product.model ro.build.version.release ro.build.version.sdk \
  ro.product.cpu.abi ro.soc.model; do
  printf '%s=%s\n' "$property" "$(on_phone getprop "$property" | tr -d '\r')"
done >"$work/properties"

if [ -n "$apk" ]; then
  echo "install  $apk" >&2
  phone install -r "$apk" >"$work/install" 2>&1 || fail "-a $apk: $(tail -1 "$work/install")"
fi
on_phone pm path io.edgealbert.demo 2>/dev/null | grep -q '^package:' ||
  fail "the demo app is not on the phone: build it (docs/android.md) and name it with -a APK"
state before

if [ -n "$binary" ]; then
  there=/data/local/tmp/edge_albert
  on_phone mkdir -p "$there"
  phone push "$binary" "$there/benchmark_model" >/dev/null
  phone push "$bundle/model.tflite" "$there/model.tflite" >/dev/null
  on_phone chmod 755 "$there/benchmark_model"
  for tokens in ${lengths//,/ }; do
    echo "run      benchmark_model, $tokens tokens" >&2
    on_phone "$there/benchmark_model" "--graph=$there/model.tflite" --num_threads=1 "--num_runs=$runs" \
      --input_layer=input_ids,token_type_ids,attention_mask \
      "--input_layer_shape=1,$tokens:1,$tokens:1,$tokens" \
      --input_layer_value_range=input_ids,5,999:token_type_ids,0,0:attention_mask,1,1 \
      >"$work/benchmark_model.$tokens" 2>&1 || fail "benchmark_model: $(tail -1 "$work/benchmark_model.$tokens")"
  done
  on_phone rm -rf "$there"
fi

echo "run      the demo app's benchmark, $runs runs of $lengths tokens" >&2
phone logcat -c
on_phone am start -W -n io.edgealbert.demo/.BenchmarkActivity --ei runs "$runs" --es lengths "$lengths" \
  >"$work/started" 2>&1 || true
! grep -q '^Error' "$work/started" || fail "the app does not start: $(grep '^Error' "$work/started" | tail -1)"
for ((waited = 0; ; waited++)); do
  phone logcat -d -s edge_albert >"$work/log"
  if grep -q 'benchmark: {' "$work/log"; then break; fi
  ! grep -q 'benchmark failed: ' "$work/log" || fail "the app: $(sed -n 's/.*benchmark failed: //p' "$work/log" | tail -1)"
  [ "$waited" -lt "$seconds" ] || fail "the app said nothing for $seconds s: is the screen on and unlocked? (-t waits longer)"
  sleep 1
done
sed -n 's/.*benchmark: //p' "$work/log" | tail -1 >"$work/app.json"
state after

"$python" "$(dirname "$0")/android_result.py" "$work" "$bundle" "$output" || fail "$output: not written"
echo "wrote    $output" >&2
