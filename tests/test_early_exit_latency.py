"""A latency budget becomes a limit on iterations; the benchmark of an early-exit bundle times all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import tiny_checkpoint

import edge_albert
from edge_albert.bench import main as bench_main
from edge_albert.errors import DataError, EdgeAlbertError, EngineError
from edge_albert.export import main as export_main
from edge_albert.run import main as run_main
from edge_albert.runtime.latency import LatencyBudget, LatencyRequest, read_budget

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
    budget = LatencyBudget(20.0, ((16, 10.0), (64, 40.0)), 1)
    assert [budget.iterations(tokens, 10) for tokens in (3, 16, 17, 64, 128)] == [10, 10, 5, 5, 2]
    with pytest.raises(DataError, match=r"one iteration of 64 tokens takes about 20\.0 ms on this device"):
        LatencyBudget(15.0, ((64, 40.0),), 1).iterations(64, 2)


def test_long_texts_get_fewer(bundle: Path, times: Path) -> None:
    model = edge_albert.load(bundle, latency_ms=25, benchmark=times, exit_threshold="never")
    with model.session as session:
        assert len(session.encode(TEXT)) <= 16 < len(session.encode(LONG))
        assert model(TEXT).iterations == 5
        assert model(LONG).iterations == 3  # ⌊5 · 25 / 40⌋
        assert model(LONG, depth=2).iterations == 2
        with pytest.raises(EdgeAlbertError, match="depth 99: the model has 1 to 5 iterations"):
            model(LONG, depth=99)
    with pytest.raises(DataError, match="one iteration of"):
        edge_albert.load(bundle, latency_ms=1, benchmark=times)(LONG)


def test_the_command_and_refusals(bundle: Path, times: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(bundle), "--exit-threshold", "never", "--latency-ms", "5", "--json", TEXT]
    assert run_main([*words, "--benchmark", str(times)]) == 0
    assert json.loads(capsys.readouterr().out)["answer"][0]["iterations"] == 2
    with pytest.raises(EngineError, match="needs the times of this device"):
        run_main(words)
    with pytest.raises(EngineError, match="says nothing without a budget"):
        run_main([str(bundle), "--benchmark", str(times), TEXT])
    for ms in (0, -1, float("inf"), float("nan")):
        with pytest.raises(EngineError, match="must be a number above 0"):
            LatencyRequest.of(ms, times)
    with pytest.raises(EngineError, match="leave batch_size at 1"):
        edge_albert.load(bundle, latency_ms=25, benchmark=times, batch_size=2)


def test_a_text_that_does_not_fit_leaves_the_others_their_answers(
    bundle: Path, times: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(bundle), "--exit-threshold", "never", "--latency-ms", "3", "--benchmark", str(times)]
    assert run_main([*words, TEXT, LONG, TEXT]) == 2
    answered, refused = capsys.readouterr()
    assert len(answered.splitlines()) == 2
    assert refused.startswith("edge_albert: error: text 2: latency_ms 3: one iteration of ")


def test_times_of_another_engine_model_or_number_of_threads(bundle: Path, times: Path, tmp_path: Path) -> None:
    """A result may hold several configurations: only the one that will run says how long it takes."""
    result = json.loads(times.read_text())
    (known,) = result["configurations"]
    slow = [{"length": 64, "ms": {"p90": 1000.0}}]
    others = [{**known, "lengths": slow, **other} for other in ({"engine": "tflite"}, {"model_sha256": "0"})]
    four = {**known, "threads": 4, "lengths": [{"length": 64, "ms": {"p90": 7.0}}]}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**result, "configurations": [*others, known, four]}))
    request = LatencyRequest(5.0, path)
    sha = known["model_sha256"]
    found = read_budget(request, engine="onnx", threads=None, model_sha256=sha)
    assert (found.times, found.threads) == (((16, 10.0), (64, 40.0)), known["threads"])
    assert read_budget(request, engine="onnx", threads=4, model_sha256=sha).times == ((64, 7.0),)
    with edge_albert.load(bundle, latency_ms=25, benchmark=path).session as session:
        assert session._budget == LatencyBudget(25, found.times, known["threads"])
    with pytest.raises(EngineError, match="no times of the engine 'litert'"):
        read_budget(request, engine="litert", threads=None, model_sha256=sha)
    with pytest.raises(
        EngineError, match=r"the times of another model: run python -m edge_albert\.bench on this bundle"
    ):
        read_budget(request, engine="tflite", threads=None, model_sha256="1")
    with pytest.raises(EngineError, match=rf"has times with {known['threads']}, 4 threads, not 3"):
        edge_albert.load(bundle, latency_ms=25, benchmark=path, threads=3)
    with pytest.raises(DataError):
        read_budget(LatencyRequest(5.0, bundle / "report.json"), engine="onnx", threads=None, model_sha256=sha)


def test_the_benchmark_runs_every_iteration(bundle: Path) -> None:
    """At a threshold of 0 everything would leave after one; random tokens must not decide what is timed."""
    from edge_albert.runtime.bench_child import _feeds

    with edge_albert.load(bundle).session as session:
        assert session.engine.run(_feeds(session, 16))["iterations"] == [5]
        feeds = {name: array for name, array in _feeds(session, 16).items() if array.ndim == 2}
        assert session.engine.run(feeds)["iterations"] == [1]
