"""A latency budget becomes a limit on iterations; the benchmark of an early-exit bundle times all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import tiny_checkpoint

import edge_albert
from edge_albert.bench import main as bench_main
from edge_albert.errors import DataError, EngineError
from edge_albert.export import main as export_main
from edge_albert.run import main as run_main
from edge_albert.runtime.latency import LatencyBudget, read_budget

TEXT, LONG = "nobody sings", "the baker found a coin in the river"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latency")
    source = tiny_checkpoint(folder / "model", num_hidden_layers=5, extra={"early_exit": {"heads": "shared"}})
    words = ["--early-exit", "confidence", "--exit-threshold", "0", "--format", "onnx", "--no-measure"]
    assert export_main(["--model", str(source), "--output", str(folder / "bundle"), *words]) == 0
    return folder / "bundle"


@pytest.fixture(scope="module")
def times(bundle: Path) -> Path:
    """What the benchmark wrote, with times that do not depend on this machine: 10 ms at 16 tokens, 40 at 64."""
    path = bundle.parent / "bench.json"
    words = ["--lengths", "16,64", "--runs", "3", "--warm-up", "1", "--output", str(path)]
    assert bench_main([str(bundle), *words]) == 0
    result = json.loads(path.read_text())
    for row, ms in zip(result["configurations"][0]["lengths"], (10.0, 40.0), strict=True):
        row["ms"]["p90"] = ms
    path.write_text(json.dumps(result))
    return path


def test_iterations_that_fit() -> None:
    budget = LatencyBudget(20.0, ((16, 10.0), (64, 40.0)))
    assert [budget.iterations(tokens, 10) for tokens in (3, 16, 17, 64, 128)] == [10, 10, 5, 5, 2]
    with pytest.raises(EngineError, match=r"one iteration of 64 tokens takes about 20\.0 ms on this device"):
        LatencyBudget(15.0, ((64, 40.0),)).iterations(64, 2)


def test_long_texts_get_fewer(bundle: Path, times: Path) -> None:
    model = edge_albert.load(bundle, latency_ms=25, benchmark=times, exit_threshold="never")
    with model.session as session:
        assert len(session.encode(TEXT)) <= 16 < len(session.encode(LONG))
        assert model(TEXT).iterations == 5
        assert model(LONG).iterations == 3  # ⌊5 · 25 / 40⌋
        assert model(LONG, depth=2).iterations == 2
    with pytest.raises(EngineError, match="one iteration of"):
        edge_albert.load(bundle, latency_ms=1, benchmark=times)(LONG)


def test_the_command_and_refusals(bundle: Path, times: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(bundle), "--exit-threshold", "never", "--latency-ms", "5", "--json", TEXT]
    assert run_main([*words, "--benchmark", str(times)]) == 0
    assert json.loads(capsys.readouterr().out)["answer"][0]["iterations"] == 2
    with pytest.raises(EngineError, match="needs the times of this device"):
        run_main(words)
    with pytest.raises(EngineError, match="must be above 0"):
        read_budget(times, 0, None)
    with pytest.raises(EngineError, match="no times of the engine 'tflite'"):
        read_budget(times, 5, "tflite")
    with pytest.raises(DataError):
        read_budget(bundle / "report.json", 5, None)


def test_the_benchmark_runs_every_iteration(bundle: Path) -> None:
    """At a threshold of 0 everything would leave after one; random tokens must not decide what is timed."""
    from edge_albert.runtime.bench_child import _feeds

    with edge_albert.load(bundle).session as session:
        assert session.engine.run(_feeds(session, 16))["iterations"] == [5]
        feeds = {name: array for name, array in _feeds(session, 16).items() if array.ndim == 2}
        assert session.engine.run(feeds)["iterations"] == [1]
