"""The benchmark: its document, what it says of the device, and how it ends when it is stopped or asked too much."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_bundle

from edge_albert import bench
from edge_albert.bundle import file_hash
from edge_albert.errors import DataError, EngineError
from edge_albert.reports.bench_report import compare, to_lines, to_markdown
from edge_albert.reports.device_state import read_state, throttling
from edge_albert.reports.machine import describe_machine, is_emulated
from edge_albert.runtime import benchmark
from edge_albert.runtime.benchmark import Request, run_benchmark
from edge_albert.runtime.engine import installed
from edge_albert.runtime.timing import statistics

pytest.importorskip("onnxruntime")
ONE = ("--lengths", "8,16", "--runs", "5", "--warm-up", "1")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("bench") / "bundle")


@pytest.fixture(scope="module")
def result(bundle) -> dict:
    return run_benchmark(Request(str(bundle), lengths=(8, 16), runs=5, warm_up=1))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_albert.bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# -- the document ------------------------------------------------------------------------------------------------------


def test_percentiles_are_observed_times():
    values = np.random.default_rng(0).permutation(np.arange(1.0, 101.0))
    found = statistics(values)
    assert found == {
        "min": 1, "mean": 50.5, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100,
        "std": pytest.approx(np.std(np.arange(1, 101))),
    }  # fmt: skip
    assert statistics(np.array([3.0])) == dict.fromkeys(("min", "mean", "p50", "p90", "p95", "p99", "max"), 3) | {
        "std": 0
    }


def test_the_document_has_everything(bundle, result):
    import onnxruntime

    json.dumps(result, allow_nan=False)
    assert (result["schema"], result["schema_version"], result["complete"]) == ("edge_albert.bench", 1, True)
    (one,) = result["configurations"]
    assert (one["engine"], one["threads"], one["precision"], one["mapped"]) == ("onnx", 1, "int8", False)
    assert one["engine_version"] == f"onnxruntime {onnxruntime.__version__}"
    assert one["model_sha256"] == file_hash(bundle / "model.onnx")
    assert one["complete"]
    assert one["init"]["total_ms"] == pytest.approx(one["init"]["import_ms"] + one["init"]["load_ms"])
    assert one["first_ms"] > 0
    assert [(row["length"], row["runs"]) for row in one["lengths"]] == [(8, 5), (16, 5)]
    for times in (*(row[name] for row in one["lengths"] for name in ("ms", "cpu_ms")), one["texts"]["tokenise_ms"]):
        assert 0 < times["min"] <= times["p50"] <= times["p90"] <= times["p95"] <= times["p99"] <= times["max"]
    texts = one["texts"]
    golden = json.loads((bundle / "golden.json").read_text())["examples"]
    assert (texts["source"], texts["count"], texts["runs"]) == ("golden", len(golden), 5)
    assert texts["mean_tokens"] == pytest.approx(np.mean([len(example["input_ids"]) for example in golden[:5]]))
    assert texts["end_to_end_ms"]["mean"] == pytest.approx(texts["tokenise_ms"]["mean"] + texts["infer_ms"]["mean"])
    assert one["self_check"]["passed"]
    assert len(one["self_check"]["digest"]) == 64


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="there is no /proc here")
def test_memory_is_that_of_the_child(result):
    (one,) = result["configurations"]
    memory = one["memory"]
    assert 15e6 < memory["loaded_anon_bytes"] < memory["loaded_rss_bytes"] < 150e6
    assert memory["imported_anon_bytes"] < memory["loaded_anon_bytes"] <= memory["peak_anon_bytes"]
    assert memory["peak_rss_bytes"] >= max(row["peak_rss_bytes"] for row in one["lengths"])


def test_both_engines_and_threads_in_one_go_each_answering_alike(tmp_path):
    if not installed("tflite"):
        pytest.skip("ai-edge-litert is not installed")
    pytest.importorskip("ai_edge_litert")
    from edge_albert.exporter import Request as Export
    from edge_albert.exporter import export_bundle

    export_bundle(
        Export(source=str(_source(tmp_path)), output=tmp_path / "b", formats=("onnx", "tflite"), measure=False)
    )
    output = tmp_path / "result.json"
    done = run(tmp_path / "b", *ONE, "--engine", "all", "--threads", "1,2", "--output", output)
    assert done.returncode == 0, done.stderr
    written = json.loads(output.read_text())
    pairs = [(one["engine"], one["threads"]) for one in written["configurations"]]
    assert pairs == [("onnx", 1), ("onnx", 2), ("tflite", 1), ("tflite", 2)]
    lines = [line for line in done.stdout.splitlines() if line.startswith("edge_albert.bench ")]
    assert lines == to_lines(written)
    assert len(lines) == 4
    assert all(field.count("=") == 1 for line in lines for field in line.split()[1:])
    assert to_markdown(written) in done.stdout


def _source(folder: Path) -> Path:
    from tiny_models import tiny_checkpoint

    return tiny_checkpoint(folder / "source")


def test_real_texts_and_pairs_from_a_file(bundle, tmp_path):
    (tmp_path / "texts").write_text("the blue door\n\ntwo letters from london\n", encoding="utf-8")
    done = run(bundle, *ONE, "--texts", tmp_path / "texts", "--pair", "a map", "--json")
    texts = json.loads(done.stdout)["configurations"][0]["texts"]
    assert (texts["source"], texts["count"]) == ("file", 2)


def test_a_budget_limits_the_lengths(bundle):
    need = run(bundle, *ONE, "--memory-mb", "5")
    assert need.returncode == 2
    assert "does not fit into memory_mb 5" in need.stderr
    done = run(bundle, *ONE, "--memory-mb", "500", "--json")
    assert json.loads(done.stdout)["configurations"][0]["plan"]["budget"] == 500_000_000


def test_ratios_of_two_documents(result, tmp_path):
    slower = json.loads(json.dumps(result))
    slower["configurations"][0]["lengths"][0]["ms"]["p50"] *= 2
    slower["machine"]["cpu"] = "another"
    rows = {row["figure"]: row["ratio"] for row in compare(result, slower)}
    assert rows["8 tokens, p50 ms"] == pytest.approx(2)
    assert all(ratio == pytest.approx(1) for name, ratio in rows.items() if name != "8 tokens, p50 ms")
    for name, content in (("a", result), ("b", slower)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    done = run("--compare", tmp_path / "a.json", tmp_path / "b.json")
    assert done.returncode == 0
    assert "2.000" in done.stdout
    assert "processor: " in done.stdout
    as_json = json.loads(run("--compare", tmp_path / "a.json", tmp_path / "b.json", "--json").stdout)
    assert as_json == compare(result, slower)


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_ctrl_c_writes_what_there_is(bundle, tmp_path):
    output = tmp_path / "result.json"
    arguments = [str(bundle), *ONE[:2], "--runs", "2000000", "--output", str(output)]
    command = [sys.executable, "-m", "edge_albert.bench", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        _wait_for_child(process.pid)
        time.sleep(4)
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to the child too
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    written = json.loads(output.read_text())
    assert not written["complete"]
    assert "Stopped early" in to_markdown(written)
    for one in written["configurations"]:  # the child had loaded the model
        assert not one["complete"]
        assert one["lengths"] == []
        assert "golden=none" in to_lines(written)[0]
    assert "after" in written


def _wait_for_child(pid: int) -> None:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.is_file():
        pytest.skip("this system does not list a process's children")
    for _ in range(600):
        if children.read_text().strip():
            return
        time.sleep(0.05)
    pytest.fail("the benchmark started no child")


def test_configurations_measured_before_ctrl_c_are_kept(bundle, monkeypatch):
    def stop(result, bundle, engine, threads, request):
        if threads == 2:
            raise KeyboardInterrupt
        result["configurations"].append({"engine": engine, "threads": threads})

    monkeypatch.setattr(benchmark, "_add", stop)
    found = run_benchmark(Request(str(bundle), threads=(1, 2)))
    assert found["configurations"] == [{"engine": "onnx", "threads": 1}]
    assert not found["complete"]


def test_what_cannot_be_measured_is_one_line_and_status_2(bundle, tmp_path):
    for arguments, said in (
        ((bundle, "--threads", "0"), "'0' is not a whole number of at least 1"),
        ((bundle, "--engine", "tflite"), "engine 'tflite' cannot run this bundle (onnx): export with --format tflite"),
        ((bundle, "--lengths", "65"), "--lengths 65: "),
        ((bundle, "--texts", tmp_path / "absent"), "--texts names a file"),
        ((bundle, "--output", bundle / "bundle.json"), "already exists"),
        ((tmp_path / "absent",), "no such folder"),
        ((), "name a bundle"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    with pytest.raises(EngineError, match="cannot run this bundle"):
        run_benchmark(Request(str(bundle), engines=("tflite",)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"schema": "edge_albert.bench", "schema_version": 2}', "schema_version is 2, this edge_albert reads 1"),
        ('{"schema": "edge_albert.probe", "schema_version": 1}', "schema is not edge_albert.bench"),
        ("[]", "schema is not edge_albert.bench"),
        ("{", "not valid JSON"),
        (None, "cannot be read"),
    ],
)
def test_documents_that_cannot_be_compared(result, tmp_path, content, said):
    (tmp_path / "a.json").write_text(json.dumps(result))
    if content is not None:
        (tmp_path / "b.json").write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        bench.main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert "b.json" in str(caught.value)


def test_one_configuration_that_fails_does_not_stop_the_others(bundle, monkeypatch):
    real = subprocess.Popen

    def popen(command, **options):
        request = json.loads(command[-1])
        if request["threads"] == 2:
            command = [*command[:-1], json.dumps({**request, "lengths": [65]})]
        return real(command, **options)

    monkeypatch.setattr(benchmark.subprocess, "Popen", popen)
    found = run_benchmark(Request(str(bundle), threads=(1, 2), lengths=(8,), runs=1, warm_up=1))
    assert [one["threads"] for one in found["configurations"]] == [1]
    assert [one["threads"] for one in found["failed"]] == [2]
    assert "takes at most 64 tokens" in to_markdown(found)


# -- the device --------------------------------------------------------------------------------------------------------


def pi(root: Path) -> Path:
    """The files of a Raspberry Pi 4 that tell of it, as Raspberry Pi OS has them."""
    files = {f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_governor": "ondemand\n" for n in range(4)}
    files |= {f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq": f"{600000 + n}\n" for n in range(4)}
    files |= {f"sys/devices/system/cpu/cpu{n}/cpufreq/cpuinfo_max_freq": "1800000\n" for n in range(4)}
    files |= {
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand\n",
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
        "sys/class/thermal/thermal_zone0/temp": "48199\n",
        "sys/class/thermal/thermal_zone1/type": "broken\n",
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd crc32 cpuid\n\nModel\t\t: Raspberry Pi 4 Model B\n",
        "proc/sys/kernel/arch": "aarch64\n",
        "proc/self/comm": "python3\n",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def vcgencmd(folder: Path, said: str) -> None:
    folder.mkdir()
    (folder / "vcgencmd").write_text(f'#!/bin/sh\n[ "$1" = get_throttled ] && echo "{said}"\n')
    (folder / "vcgencmd").chmod(0o755)


def test_the_state_of_a_pi(tmp_path, monkeypatch):
    vcgencmd(tmp_path / "bin", "throttled=0x50005")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    state = read_state(pi(tmp_path / "root"))
    assert state["governors"] == ["ondemand"]
    assert state["frequency_mhz"] == [600, 600.001, 600.002, 600.003]
    assert state["max_frequency_mhz"] == [1800] * 4
    assert state["temperature_c"] == {"cpu-thermal": 48.199}
    assert state["throttle_count"] is None
    assert state["throttled"]["value"] == "0x50005"
    assert throttling(state, state) == [
        "under-voltage now", "throttled now", "under-voltage since start", "throttled since start",
    ]  # fmt: skip
    machine = describe_machine(tmp_path / "root")
    assert machine["board"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert machine["cpu"] == "Raspberry Pi 4 Model B"


def test_a_device_that_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    state = read_state(tmp_path)
    assert state == {
        "governors": [], "frequency_mhz": [], "max_frequency_mhz": [], "temperature_c": {}, "throttle_count": None,
        "throttled": None, "load_average": state["load_average"],
    }  # fmt: skip
    assert throttling(state, state) == []
    vcgencmd(tmp_path / "bin", "VCHI initialization failed")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin{os.pathsep}/usr/bin")
    assert read_state(tmp_path)["throttled"] is None


def test_heat_on_x86_is_counted(tmp_path):
    count = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    count.parent.mkdir(parents=True)
    count.write_text("3\n")
    before = read_state(tmp_path)
    count.write_text("5\n")
    assert throttling(before, read_state(tmp_path)) == ["slowed down for heat 2 times meanwhile"]


@pytest.mark.parametrize(
    ("file", "content", "architecture", "emulated"),
    [
        ("proc/self/comm", "python3\n", "aarch64", False),
        ("proc/self/comm", "qemu-aarch64-st\n", "aarch64", True),
        ("proc/sys/kernel/arch", "x86_64\n", "aarch64", True),
        ("proc/sys/kernel/arch", "aarch64\n", "armv7l", False),  # 32-bit Python on a 64-bit Pi
        ("proc/cpuinfo", "model name\t: QEMU Virtual CPU version 2.5+\n", "aarch64", True),
    ],
)
def test_emulation_is_seen(tmp_path, file, content, architecture, emulated):
    (pi(tmp_path) / file).write_text(content)
    assert is_emulated(tmp_path, architecture) is emulated
