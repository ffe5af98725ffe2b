#!/usr/bin/env bash
# Benchmark a bundle on a Raspberry Pi (or any Linux board) from your laptop, over ssh.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/bench_pi.sh [options] HOST BUNDLE [-- OPTIONS OF edge_albert.bench]

Builds this checkout's wheel, sets up a virtual environment on HOST, copies BUNDLE there, runs
`python -m edge_albert.bench` on it, and fetches its JSON.

  HOST       what ssh takes: pi@raspberrypi.local, or a name from ~/.ssh/config; it must let you in by key
  BUNDLE     folder written by python -m edge_albert.export
  -o FILE    where the JSON goes (default: bench-HOST.json)
  -f         replace FILE if it exists
  -d DIR     folder on HOST for the environment and the bundle (default: edge_albert_bench in the home folder);
             it is kept, so the next run starts at once
  -h         this help

PYTHON names the Python here that builds the wheel (default: python3).

examples:
  scripts/bench_pi.sh pi@raspberrypi.local bundle
  scripts/bench_pi.sh -o pi4.json pi4 bundle -- --engine all --threads 1,4
END
}

fail() {
  echo "bench_pi.sh: error: $*" >&2
  exit 2
}

output="" force="" folder=edge_albert_bench python=${PYTHON:-python3}
while getopts "o:fd:h" option; do
  case $option in
    o) output=$OPTARG ;;
    f) force=1 ;;
    d) folder=$OPTARG ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { usage >&2; exit 2; }
host=$1 bundle=${2%/}
shift 2
[ "${1:-}" != -- ] || shift
[[ $host != -* ]] || fail "$host: not a host"
[[ $folder =~ ^[A-Za-z0-9._/-]+$ && $folder != -* ]] || fail "-d $folder: only letters, digits and . _ - / are taken"
output=${output:-bench-${host##*@}.json}

for tool in ssh rsync "$python"; do
  command -v "$tool" >/dev/null || fail "$tool is not installed here: install it first"
done
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: name one that has, as in PYTHON=.venv/bin/python"
[ -f "$bundle/bundle.json" ] || fail "$bundle: no bundle.json in it: a bundle is written by python -m edge_albert.export"
[ -n "$force" ] || [ ! -e "$output" ] || fail "$output: already exists: name another with -o, or replace it with -f"
[ -d "$(dirname "$output")" ] || fail "$output: no such folder"

checkout=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
connect=(ssh -o BatchMode=yes -o ConnectTimeout=15)

# on_host SCRIPT [ARGUMENT …]: run a POSIX sh script there, whatever the login shell is
on_host() {
  local words=""
  [ $# -eq 1 ] || words=$(printf " '%s'" "${@:2}")
  "${connect[@]}" "$host" "sh -s --$words" <<<"$1"
}

status=0
on_host true 2>"$work/said" || status=$?
if [ "$status" = 255 ]; then
  fail "cannot reach $host: $(tail -1 "$work/said" | tr -d '\r'); 'ssh $host' must work without a password (ssh-copy-id)"
fi
[ "$status" = 0 ] || fail "$host: its shell fails ($(tail -1 "$work/said"))"

on_host '
command -v python3 >/dev/null || { echo "python3"; exit 1; }
command -v rsync >/dev/null || { echo "rsync"; exit 1; }
python3 -c "import ensurepip, venv" 2>/dev/null || { echo "python3-venv"; exit 1; }
' >"$work/missing" || fail "$host lacks $(cat "$work/missing"): sudo apt install $(cat "$work/missing") there"

echo "build    this checkout's wheel" >&2
mkdir "$work/sources"
cp -R "$checkout"/{edge_albert,converters,calibration,pyproject.toml,README.md,LICENSE} "$work/sources/"
"$python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$work/wheel" "$work/sources" ||
  fail "the wheel cannot be built here"

echo "copy     $bundle and the wheel to $host:$folder" >&2
# shellcheck disable=SC2016  # $1 is the other shell's
on_host 'mkdir -p "$1/wheel" "$1/bundle" && rm -f "$1/wheel/"* "$1/result.json"' "$folder"
transport=${connect[*]}
rsync -a -e "$transport" "$work/wheel/" "$host:$folder/wheel/" || fail "rsync to $host failed"
rsync -a --delete -e "$transport" "$bundle/" "$host:$folder/bundle/" || fail "rsync to $host failed"

echo "install  the wheel there, in a virtual environment" >&2
# A 32-bit system may run on a 64-bit kernel, so Python is asked, not uname.
# shellcheck disable=SC2016
on_host '
set -e
cd "$1"
[ -x venv/bin/python ] || python3 -m venv venv
wheel=$(echo wheel/*.whl)
if [ "$(venv/bin/python -c "import struct; print(struct.calcsize(\"P\"))")" = 8 ]; then
  venv/bin/python -m pip install -q --disable-pip-version-check "$wheel[onnx,tflite]"
else
  venv/bin/python -m pip install -q --disable-pip-version-check "$wheel" "tflite-runtime==2.14.0" "numpy<2"
fi
venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
' "$folder" >&2 || fail "the packages cannot be installed on $host"

echo "run      python -m edge_albert.bench on $host" >&2
arguments=""
[ $# -eq 0 ] || arguments=$(printf ' %q' "$@")
terminal=()
[ ! -t 0 ] || terminal=(-t) # so that Ctrl-C reaches the benchmark, which then writes what it has
trap : INT
status=0
"${connect[@]}" ${terminal[@]+"${terminal[@]}"} "$host" \
  "cd $folder && venv/bin/python -m edge_albert.bench bundle --output result.json$arguments" || status=$?
trap - INT

rsync -a -e "$transport" "$host:$folder/result.json" "$work/result.json" 2>/dev/null ||
  fail "the benchmark on $host wrote nothing (status $status)"
mv "$work/result.json" "$output"
echo "wrote    $output" >&2
exit "$status"
