"""The memory model holds against measurement; a plan fits its budget; longer texts are refused or read in windows."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_bundle

import edge_albert
from edge_albert.bundle import open_bundle
from edge_albert.config import PRESETS
from edge_albert.errors import DataError, EngineError
from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle
from edge_albert.runtime import budget, engine
from edge_albert.runtime.budget import MB, make_plan, needed, packing_fits
from edge_albert.runtime.classify import softmax
from edge_albert.runtime.session import Session

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import memory_model  # noqa: E402

pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")
BOTH = ("onnx", "tflite")
linux = pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="there is no /proc here")
TEXT = "the baker painted the blue door in the morning. "


@pytest.fixture(scope="module")
def default_bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("default") / "bundle"
    export_bundle(Request(source=str(DEFAULT_MODEL), output=folder, formats=BOTH, measure=False))
    return folder


@pytest.fixture(scope="module")
def base_bundle(tmp_path_factory) -> Path:
    """ALBERT-base in int8, with weights that transformers drew."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from peers.model_folder import stand_in_tokenizer

    work = tmp_path_factory.mktemp("base")
    config = transformers.AlbertConfig(**_shape(PRESETS["albert-base-v2"]), hidden_act="gelu_new")
    transformers.AlbertForSequenceClassification(config).save_pretrained(work / "source")
    (work / "source" / "spiece.model").write_bytes(stand_in_tokenizer(config.vocab_size))
    export_bundle(Request(source=str(work / "source"), output=work / "bundle", formats=BOTH, measure=False))
    return work / "bundle"


def _shape(config) -> dict[str, int]:
    names = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    return {name: getattr(config, name) for name in (*names, "intermediate_size", "max_position_embeddings")}


# -- the model of memory -----------------------------------------------------------------------------------------------


def compare(folder: Path, name: str, mapped: bool, cache: Path) -> None:
    """Anonymous memory of a fresh process, at the peak of every batch and length, within 15 % of the model's."""
    measured = memory_model.measure(folder, name, cache if mapped else None)
    bundle = open_bundle(folder)
    for (batch, length), peak in zip(memory_model.RUNS, measured["runs"], strict=True):
        found = max(peak, measured["opening"])
        assert memory_model.predicted(bundle, name, mapped, measured, batch, length) == pytest.approx(found, rel=0.15)
    if mapped:
        need = needed(bundle, name, mapped=True, threads=1, batch=1, length=16, process=0)
        assert need.mapped == pytest.approx(measured["mapped"], rel=0.4, abs=1 * MB)


@linux
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", BOTH)
def test_the_model_holds_for_the_default_model(default_bundle, tmp_path, name, mapped):
    compare(default_bundle, name, mapped, tmp_path)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", BOTH)
def test_the_model_holds_for_albert_base(base_bundle, tmp_path, name, mapped):
    compare(base_bundle, name, mapped, tmp_path)


def test_parts_follow_the_formula(default_bundle):
    bundle = open_bundle(default_bundle)
    size, table = (default_bundle / "model.onnx").stat().st_size, 8000 * 64
    assert budget.weight_bytes(bundle, "onnx") == (table, size - table)
    one = needed(bundle, "onnx", mapped=False, threads=1, batch=1, length=128, process=20 * MB)
    four = needed(bundle, "onnx", mapped=False, threads=1, batch=4, length=128, process=20 * MB)
    double = needed(bundle, "onnx", mapped=False, threads=1, batch=1, length=256, process=20 * MB)
    assert four.activations == pytest.approx(4 * one.activations)
    cost = budget._COSTS["onnx", "int8", False]
    assert double.activations - 2 * one.activations == pytest.approx(cost.per_score * 2 * (256**2 - 2 * 128**2))
    assert one.weights == pytest.approx(cost.fixed * MB + cost.table * table + cost.layers * (size - table))
    assert one.total == pytest.approx(
        20 * MB + one.engine + one.tokenizer + one.weights + max(one.loading, one.activations) + one.code
    )
    row = needed(bundle, "tflite", mapped=False, threads=1, batch=1, length=128, process=0)
    assert needed(bundle, "tflite", mapped=False, threads=1, batch=9, length=128, process=0) == row  # row by row


def test_a_precision_that_is_not_known_counts_as_the_largest(default_bundle):
    bundle = open_bundle(default_bundle)
    manifest = {**bundle.manifest, "models": {"onnx": {**bundle.manifest["models"]["onnx"], "precision": "fp8"}}}
    other = replace(bundle, manifest=manifest)
    assert budget._cost(other, "onnx", False) == budget._COSTS["onnx", "fp32", False]


# -- plans -------------------------------------------------------------------------------------------------------------


def test_the_longest_text_that_fits_is_found(default_bundle):
    bundle = open_bundle(default_bundle)

    def total(length: int, batch: int = 1) -> float:
        return needed(bundle, "tflite", mapped=False, threads=1, batch=batch, length=length).total

    plan = make_plan(bundle, total(300) / MB + 0.01, engine="tflite", threads=1)
    assert abs(plan.max_length - 300) <= 5  # what this process holds changes a little from call to call
    assert plan.need.total <= plan.budget
    assert make_plan(bundle, 8000, engine="tflite", threads=1).max_length == 512


def test_the_largest_batch_that_fits_is_found(default_bundle):
    bundle = open_bundle(default_bundle)
    room = needed(bundle, "onnx", mapped=False, threads=1, batch=5, length=512).total
    plan = make_plan(bundle, room / MB + 1, engine="onnx", threads=1, batch_size=64)
    assert plan.max_length == 512
    assert 5 <= plan.batch_size <= 6
    assert make_plan(bundle, 8000, engine="onnx", batch_size=64).batch_size == 64


def test_the_engine_that_fits_longer_texts_is_taken(default_bundle):
    bundle = open_bundle(default_bundle)
    assert make_plan(bundle, 8000).engine == bundle.formats[0]
    tight = needed(bundle, "tflite", mapped=False, threads=1, batch=1, length=64).total / MB
    assert make_plan(bundle, tight, threads=1).engine == "tflite"
    with pytest.raises(EngineError, match="with onnx"):
        make_plan(bundle, tight - 2, engine="onnx", threads=1)


def test_what_cannot_fit_is_refused_with_the_number_that_would(default_bundle):
    with pytest.raises(
        EngineError, match=r"does not fit into memory_mb 5: .* needs \d+ with onnx or \d+ with tflite"
    ) as caught:
        edge_albert.load(default_bundle, memory_mb=5, threads=1)
    enough = int(str(caught.value).split(" with tflite")[0].split()[-1])
    with pytest.raises(EngineError, match="does not fit"):
        edge_albert.load(default_bundle, memory_mb=enough - 3, threads=1)
    with edge_albert.load(default_bundle, memory_mb=enough + 1, threads=1).session as session:
        assert session.format == "tflite"
        assert session.max_length >= 16


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "64", True])
def test_budgets_that_are_none(default_bundle, value):
    with pytest.raises(EngineError, match=r"memory_mb is .*: give a number of MB above 0"):
        edge_albert.load(default_bundle, memory_mb=value)


def test_other_bad_input(default_bundle, tmp_path):
    with pytest.raises(EngineError, match="threads is 0"):
        edge_albert.load(default_bundle, memory_mb=500, threads=0)
    onnx_only = tiny_bundle(tmp_path / "bundle")
    with pytest.raises(EngineError, match="engine 'tflite' cannot run this bundle"):
        edge_albert.load(onnx_only, memory_mb=500, engine="tflite")


def test_an_engine_that_is_not_installed_is_not_planned_for(default_bundle, monkeypatch):
    monkeypatch.setattr(engine, "installed", lambda name: name == "onnx")
    monkeypatch.setattr(budget, "installed", lambda name: name == "onnx")
    with pytest.raises(EngineError, match=r"needs \d+ with onnx \("):
        make_plan(open_bundle(default_bundle), 5)


def test_under_a_budget_weights_are_packed_only_if_that_fits(default_bundle, tmp_path):
    cache = tmp_path / "cache"
    bundle = open_bundle(default_bundle)
    plan = make_plan(bundle, 8000, engine="onnx", threads=1)
    assert packing_fits(plan)
    tight = plan.need.total / MB + 0.5
    with Session(default_bundle, engine="onnx", threads=1, cache_dir=cache, memory_mb=tight) as session:
        assert not packing_fits(session.plan)
        assert session.engine.packed is None
        assert not cache.exists()
    Session(default_bundle, engine="onnx", threads=1, cache_dir=cache).close()
    with Session(default_bundle, engine="onnx", threads=1, cache_dir=cache, memory_mb=8000) as session:
        assert session.plan.mapped
        assert session.engine.packed is not None


# -- long texts --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("windows")
    names = ("text-classification", "text-regression", "sentence-embedding", "multiple-choice", "question-answering")
    return {task: tiny_bundle(root / task, task) for task in names}


def window_rows(session: Session, text: str, pair: str | None = None, **cut) -> tuple[list[np.ndarray], list[int]]:
    """The engine's rows for the tokenizer's windows of 64 tokens that share 16."""
    windows = session.tokenizer.encode_windows(text, pair, max_length=64, stride=16, **cut)
    assert len(windows) > 2
    return session.infer(windows), [len(window) for window in windows]


def test_a_long_text_is_an_average_over_windows_and_says_so(bundles):
    text = TEXT * 12
    model = edge_albert.load(bundles["text-classification"])
    rows, sizes = window_rows(model.session, text)
    expected = np.average(softmax(np.stack(rows)), axis=0, weights=sizes)
    answer = model(text, windows=True)
    assert answer.label == f"label {expected.argmax()}"
    assert answer.score == pytest.approx(expected.max(), abs=1e-6)
    assert answer.windows == len(rows)
    assert model([text, TEXT], windows=True) == [answer, model(TEXT)]
    assert model(TEXT, windows=True) == model(TEXT)
    assert model(TEXT).windows == 1

    model = edge_albert.load(bundles["text-regression"])
    rows, sizes = window_rows(model.session, text)
    assert model(text, windows=True).score == pytest.approx(np.average(np.stack(rows)[:, 0], weights=sizes), abs=1e-6)

    model = edge_albert.load(bundles["sentence-embedding"])
    rows, sizes = window_rows(model.session, text)
    mean = np.average(np.stack(rows), axis=0, weights=sizes)
    found = model(text, windows=True)
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-6)
    assert found.dtype == np.float32
    assert model.count_windows(text) == len(rows)


def test_the_longer_part_of_a_pair_goes_through_the_windows(bundles):
    model = edge_albert.load(bundles["text-classification"])
    for first, second, cut in ((TEXT * 12, "a map", "only_first"), ("a map", TEXT * 12, "only_second")):
        rows, sizes = window_rows(model.session, first, second, truncation=cut)
        expected = np.average(softmax(np.stack(rows)), axis=0, weights=sizes)
        assert model(first, second, windows=True).score == pytest.approx(expected.max(), abs=1e-6)
    with pytest.raises(DataError, match="text: both parts are long"):
        model(TEXT * 12, TEXT * 12, windows=True)


def test_choices_and_answers_tell_their_windows(bundles):
    choice = edge_albert.load(bundles["multiple-choice"])(TEXT * 12, ["the door", "a map"], windows=True)
    assert choice.windows > 2
    model = edge_albert.load(bundles["question-answering"])
    assert model("who painted?", TEXT * 12).windows > 2
    assert model("who painted?", TEXT).windows == 1


def test_a_long_text_stays_an_error_unless_it_is_asked_for(bundles):
    model = edge_albert.load(bundles["text-classification"])
    with pytest.raises(DataError, match=r"text: \d+ tokens, the model takes 64: shorten it, truncate .* \(--windows\)"):
        model(TEXT * 12)
    with pytest.raises(DataError, match="exclude each other"):
        model(TEXT * 12, truncate=True, windows=True)
    with pytest.raises(DataError, match="nothing in it is in the model's vocabulary"):
        model("☃☃☃ ☃" * 40, windows=True)


def test_what_the_budget_leaves_is_the_longest_text(default_bundle):
    bundle = open_bundle(default_bundle)
    room = needed(bundle, "tflite", mapped=False, threads=1, batch=1, length=128).total / MB
    model = edge_albert.load(default_bundle, memory_mb=room, engine="tflite", threads=1)
    longest = model.session.max_length
    assert 16 <= longest < 512
    with pytest.raises(
        DataError, match=rf"the memory budget of {room:g} MB has room for {longest}".replace(".", r"\.")
    ):
        model("call now to win a free phone " * 60)
    answer = model("call now to win a free phone " * 60, windows=True)
    assert answer.windows > 1
    assert len(model.session.encode("call now " * 500, truncate=True)) == longest


def test_the_command_reads_windows_and_keeps_the_budget(default_bundle, capsys):
    from edge_albert import run

    assert run.main([str(default_bundle), "--windows", "call now to win a free phone " * 200]) == 0
    assert "windows)" in capsys.readouterr().out
    with pytest.raises(EngineError, match="does not fit into memory_mb 5"):
        run.main([str(default_bundle), "--memory-mb", "5", "a text"])
