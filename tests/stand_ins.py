"""ssh, rsync and adb on PATH that do on this machine what the real ones do on another.

The "other machine" is a scratch folder: its home for ssh and rsync, its storage for adb. Nothing of what the scripts
send is interpreted here: ssh hands the command to sh as sshd hands it to the login shell, adb to sh as adbd does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"

SSH = """\
#!/bin/sh
# ssh [-o OPTION]… [-t] HOST COMMAND: options as OpenSSH takes them; the words after the host joined by spaces
while [ $# -gt 0 ]; do
  case $1 in
    -o) shift 2 ;;
    -t) shift ;;
    -*) echo "unknown option $1" >&2; exit 255 ;;
    *) break ;;
  esac
done
host=$1; shift
[ "$host" = pi@there ] || { echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255; }
cd "$STAND_IN_HOME" && HOME=$STAND_IN_HOME PATH=$STAND_IN_PATH exec sh -c "$*"
"""

RSYNC = """\
#!PYTHON
# rsync -a [--delete] [-e TRANSPORT] FROM TO: HOST:PATH is PATH in the other machine's home
import os, shutil, sys
from pathlib import Path
words, plain = sys.argv[1:], []
while words:
    word = words.pop(0)
    if word == "-e":
        assert words.pop(0).startswith("ssh ")
    elif word not in ("-a", "--delete"):
        plain.append(word)
def local(name):
    host, colon, path = name.partition(":")
    assert not colon or host == "pi@there", name
    return Path(os.environ["STAND_IN_HOME"], path) if colon else Path(name)
source, target = map(local, plain)
if not source.exists():
    sys.exit(23)
if "--delete" in sys.argv:
    shutil.rmtree(target)
shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)
"""

ADB = """\
#!PYTHON
# adb [-s SERIAL] devices | shell WORDS | push FROM TO | install -r APK | logcat -c | logcat -d -s TAG
import json, os, shutil, subprocess, sys
from pathlib import Path
home, words = Path(os.environ["STAND_IN_HOME"]), sys.argv[1:]
devices = json.loads(os.environ["STAND_IN_DEVICES"])
if words == ["devices"]:
    print("List of devices attached")
    print("".join(f"{serial}\\t{state}\\n" for serial, state in devices.items()))
    sys.exit()
assert words[0] == "-s" and devices[words[1]] == "device", words
command, words = words[2], words[3:]
log, app = home / "log", home / "app.apk"
if command == "push":
    target = home / words[1].lstrip("/")
    shutil.copy(words[0], target)
    print(f"{words[0]}: 1 file pushed")
elif command == "install":
    assert words[0] == "-r"
    shutil.copy(words[1], app)
    print("Performing Streamed Install\\nSuccess")
elif command == "logcat":
    if words == ["-c"]:
        log.write_text("")
    else:
        assert words == ["-d", "-s", "edge_albert"]
        print(log.read_text(), end="")
else:
    assert command == "shell", command
    line = " ".join(words)
    if line.startswith("am start"):
        if not app.exists():
            sys.exit("Error type 3\\nError: Activity class does not exist.")
        runs, lengths = int(words[words.index("runs") + 1]), words[words.index("lengths") + 1]
        timing = {"runs": runs, "first_ms": 9.5, "median_ms": 4.25, "p90_ms": 5.0}
        result = json.loads(os.environ["STAND_IN_RESULT"])
        result["timings"] = [{"tokens": int(one), **timing} for one in lengths.split(",")]
        said = os.environ.get("STAND_IN_SAYS", "benchmark: " + json.dumps(result))
        log.write_text(f"--------- beginning of main\\n11-30 10:00:00.000  4242  4260 I edge_albert: {said}\\n")
        print("Starting: Intent { cmp=io.edgealbert.demo/.BenchmarkActivity (has extras) }\\nStatus: ok")
    elif line == "pm path io.edgealbert.demo":
        print("package:/data/app/base.apk") if app.exists() else sys.exit(1)
    elif words[0] in ("getprop", "dumpsys"):
        path = home / ".".join(words)
        print(path.read_text().replace("\\n", "\\r\\n") if path.exists() else "")
    else:  # the phone's shell, its storage being under the scratch folder
        line = line.replace("/data/local/tmp", str(home / "data/local/tmp"))
        sys.exit(subprocess.run(["sh", "-c", line]).returncode)
"""


def install(folder: Path, *names: str) -> None:
    """Put the stand-ins of these names into a folder for PATH."""
    for name in names:
        text = {"ssh": SSH, "rsync": RSYNC, "adb": ADB}[name]
        path = folder / name
        path.write_text(text.replace("#!PYTHON", f"#!{sys.executable}"))
        path.chmod(0o755)


def path_of(folder: Path, *names: str) -> str:
    """A PATH of one folder that holds these of this machine's own tools, and nothing else."""
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return str(folder)


def run_script(name: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, str(SCRIPTS / name), *map(str, arguments)]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
