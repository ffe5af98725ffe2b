"""Memory is counted where it is, and the probe measures a model in a process of its own."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, tiny_config, tiny_tensors

from edge_albert.errors import EngineError
from edge_albert.runtime import memory, probe
from edge_albert.runtime.memory import Memory, read_memory, reset_peak
from edge_albert.runtime.probe import probe_in_fresh_process

MB = 1_000_000
LATE = 2 * MB  # the kernel's counters, and what else this process does meanwhile

linux = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="there is no /proc here")

# -- this process ------------------------------------------------------------------------------------------------------


@linux
def test_resident_memory_agrees_with_statm():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert read_memory().rss == pytest.approx(pages * mmap.PAGESIZE, abs=LATE)


@linux
def test_touched_memory_is_anonymous_until_it_is_unmapped():
    before = read_memory()
    with mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
        during = read_memory()
    after = read_memory()
    assert during.anon - before.anon == pytest.approx(64 * MB, abs=LATE)
    assert during.rss - before.rss == pytest.approx(64 * MB, abs=LATE)
    assert during.file - before.file < LATE
    assert after.anon - before.anon < LATE
    assert after.peak >= during.rss - LATE


@linux
def test_a_mapped_file_is_file_backed(tmp_path):
    (tmp_path / "weights").write_bytes(b"\1" * (32 * MB))
    before = read_memory()
    with (tmp_path / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as weights:
        assert sum(weights[:: mmap.PAGESIZE]) == len(range(0, 32 * MB, mmap.PAGESIZE))
        during = read_memory()
    assert during.file - before.file == pytest.approx(32 * MB, abs=LATE)
    assert during.anon - before.anon < LATE


@linux
def test_the_peak_starts_again():
    with mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block[:] = b"\1" * len(block)
    high = read_memory()
    assert high.peak - high.rss > 60 * MB
    if not reset_peak():
        pytest.skip("this system does not let a process reset its peak")
    low = read_memory()
    assert low.peak == pytest.approx(low.rss, abs=LATE)


def test_without_proc_there_is_getrusage_and_nothing_else(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "absent" / "clear_refs")
    unit = 1 if sys.platform == "darwin" else 1024
    assert read_memory() == Memory(None, None, None, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    assert not reset_peak()


def test_a_status_file_without_some_fields(monkeypatch, tmp_path):
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t 20 kB\nVmRSS:\t 10 kB\nThreads:\t1\nSigQ:\t1/2 kB\n")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    assert read_memory() == Memory(rss=10240, anon=None, file=None, peak=20480)


# -- the probe ---------------------------------------------------------------------------------------------------------


def lookup_graph(path: Path, inputs: dict[str, int], width: int = 4) -> Path:
    """A graph that looks every input up in a table of its own: name ► rows. An id beyond the table is an error."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    tables = {name: np.ones((rows, width), np.float32) for name, rows in inputs.items()}
    nodes = [helper.make_node("Gather", [f"{name}_table", name], [f"{name}_rows"]) for name in inputs]
    nodes.append(helper.make_node("Sum", [f"{name}_rows" for name in inputs], ["out"]))
    graph = helper.make_graph(
        nodes,
        "lookup",
        [helper.make_tensor_value_info(name, kinds.INT32, ["B", "S"]) for name in inputs],
        [helper.make_tensor_value_info("out", kinds.FLOAT, ["B", "S", width])],
        [onnx.numpy_helper.from_array(table, f"{name}_table") for name, table in tables.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> Path:
    """A tiny int8 ALBERT of this project's own."""
    pytest.importorskip("onnx")
    from converters.convert import convert
    from edge_albert.tasks import get_task

    task, config = "text-classification", tiny_config("text-classification")
    converted = convert(config, tiny_tensors(config, task), get_task(task))
    path = tmp_path_factory.mktemp("probe") / "model.onnx"
    path.write_bytes(converted.content)
    return path


def test_a_graph_of_others_is_measured_whatever_it_calls_its_inputs(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    path = lookup_graph(tmp_path / "peer.onnx", {"segment": 1, "Padding_Mask:0": 2, "tokens/id": 50})
    result = probe_in_fresh_process(path, plain=True, lengths=(7, 3), runs=5, vocab_size=50)
    json.dumps(result, allow_nan=False)
    assert result["engine"] == f"onnxruntime {ort.__version__}"
    assert result["file_bytes"] == path.stat().st_size
    assert [(row["length"], row["runs"]) for row in result["runs"]] == [(7, 5), (3, 5)]
    for row in result["runs"]:
        for times in (row["wall_ms"], row["cpu_ms"]):
            assert 0 < times["min"] <= times["p50"] <= times["p90"] <= times["p99"]
            assert times["min"] <= times["mean"] <= times["p99"]


@linux
def test_a_table_of_40_mb_is_seen_in_anonymous_memory(tmp_path):
    pytest.importorskip("onnxruntime")
    path = lookup_graph(tmp_path / "large.onnx", {"input_ids": 1000}, width=10_000)
    result = probe_in_fresh_process(path, plain=True, lengths=(2,), runs=1, vocab_size=1000)
    assert 39 * MB < result["load_anon_bytes"] < 85 * MB
    assert result["anon_bytes"] == max(result["load_anon_bytes"], result["runs"][0]["anon_bytes"])
    assert result["peak_rss_bytes"] > result["baseline_rss_bytes"] + 39 * MB


def test_our_engine_starts_from_a_cache_the_second_time(tiny_model, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    cache = tmp_path / "cache"
    kept = []
    for _ in range(2):
        result = probe_in_fresh_process(tiny_model, lengths=(8,), runs=2, vocab_size=TINY.vocab_size, cache_dir=cache)
        assert result["engine"] == f"onnxruntime {ort.__version__}"
        kept.append({path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()})
    assert kept[0]
    assert kept[0] == kept[1]


def test_the_inputs_are_always_the_same_and_look_like_a_sentence():
    once, again = probe.random_feeds(9, vocab_size=6), probe.random_feeds(9, vocab_size=6)
    assert once["input_ids"].tolist() == [[2, 5, 5, 5, 5, 5, 5, 5, 3]]
    assert all((once[name] == again[name]).all() for name in once)


def test_what_cannot_be_measured_is_said_in_one_line(tiny_model, tmp_path):
    pytest.importorskip("onnxruntime")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(tiny_model.read_bytes()[:2000])
    other = lookup_graph(tmp_path / "other.onnx", {"pixels": 3})
    text = tmp_path / "model.txt"
    text.touch()
    for arguments, said in (
        ({"model": tmp_path / "absent.onnx"}, "no such file"),
        ({"model": text}, "no engine is called 'txt'"),
        ({"model": broken}, "refused"),
        ({"model": broken, "plain": True}, "refused"),
        ({"model": broken, "plain": True, "engine": "tflite"}, "LiteRT refused"),
        ({"model": other, "plain": True}, "'pixels' is none of ids, mask and token types"),
        ({"model": tiny_model, "plain": True, "vocab_size": 30000}, "could not run it"),
    ):
        with pytest.raises(EngineError, match=said) as caught:
            probe_in_fresh_process(**arguments, lengths=(8,), runs=1)
        assert "\n" not in str(caught.value)
        assert str(arguments["model"]) in str(caught.value)


def test_the_command(tiny_model):
    pytest.importorskip("onnxruntime")
    command = [
        sys.executable,
        "-m",
        "edge_albert.runtime.probe",
        "--lengths",
        "4,8",
        "--runs",
        "2",
        "--vocab-size",
        "176",
    ]
    done = subprocess.run([*command, "--model", str(tiny_model)], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["model.onnx:", "load", "4", "8"]
    done = subprocess.run([*command, "--model", "absent.onnx"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "edge_albert: error: absent.onnx: no such file: name a .onnx or .tflite model\n"
    for bad in (["--lengths", "8,0"], ["--runs", "x"], ["--vocab-size", "5"]):
        done = subprocess.run([*command, "--model", str(tiny_model), *bad], capture_output=True, text=True)
        assert done.returncode == 2
        assert f"argument {bad[0]}" in done.stderr


# -- many requests -----------------------------------------------------------------------------------------------------

_FLAT = """
import json, sys
import edge_albert
from edge_albert.runtime.memory import read_memory
from edge_albert.runtime.probe import random_feeds
bundle, engine, cache, requests = sys.argv[1], sys.argv[2], sys.argv[3] or None, int(sys.argv[4])
anon = []
with edge_albert.load(bundle, engine=engine, threads=1, cache_dir=cache).session as session:
    feeds = [random_feeds(length, session.bundle.config.vocab_size) for length in (16, 384, 16, 512)]
    for i in range(requests):
        session.engine.run(feeds[i % 4])
        if i % 4 == 0:  # after a short one: what a long one needed has been given back
            anon.append(read_memory().anon)
print(json.dumps(anon))
"""


def growth(bundle: Path, engine: str, cache: Path | None, requests: int) -> float:
    """Bytes by which anonymous memory after the last eighth of short requests exceeds that after the second eighth."""
    command = [sys.executable, "-c", _FLAT, str(bundle), engine, str(cache or ""), str(requests)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    anon = json.loads(done.stdout)
    eighth = len(anon) // 8
    return float(np.median(anon[-eighth:]) - np.median(anon[eighth : 2 * eighth]))


@pytest.fixture(scope="module")
def default_bundle(tmp_path_factory) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle

    folder = tmp_path_factory.mktemp("flat") / "bundle"
    export_bundle(Request(source=str(DEFAULT_MODEL), output=folder, formats=("onnx", "tflite"), measure=False))
    return folder


@linux
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("engine", ["onnx", "tflite"])
def test_memory_stays_flat_over_400_requests(default_bundle, tmp_path, engine, mapped):
    assert growth(default_bundle, engine, tmp_path if mapped else None, 400) < 0.5 * MB


@linux
@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("engine", ["onnx", "tflite"])
def test_memory_stays_flat_over_10000_requests(default_bundle, tmp_path, engine, mapped):
    assert growth(default_bundle, engine, tmp_path if mapped else None, 10_000) < 0.5 * MB
