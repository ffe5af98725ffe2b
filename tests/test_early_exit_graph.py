"""Early exit inside the files: the same exit and the same answer as the float model, in both engines and every form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_config, tiny_tensors

from calibration.exits import ExitModel, leave
from converters.convert import convert
from edge_albert.config import AlbertConfig
from edge_albert.early_exit import CRITERIA, NEVER, Exits
from edge_albert.errors import EdgeAlbertError
from edge_albert.runtime.engine import Engine, open_engine
from edge_albert.runtime.session import make_feeds
from edge_albert.tasks import TASKS
from edge_albert.tokenizer import Encoding

FORMATS = ("onnx", "tflite")
RULES = [
    ("text-classification", "confidence", 0.72),
    ("text-classification", "entropy", 0.75),
    ("text-classification", "patience", 1.0),
    ("text-classification", "patience", 2.0),
    ("text-regression", "change", 0.4),
    ("token-classification", "confidence", 0.45),
    ("token-classification", "entropy", 1.0),
    ("token-classification", "patience", 1.0),
]


@dataclass(frozen=True)
class Case:
    """A tiny model of six iterations, and random inputs of many lengths; answers: the float model's, all iterations."""

    config: AlbertConfig
    tensors: dict[str, np.ndarray]
    task: str
    encodings: list[Encoding]
    answers: list[np.ndarray]

    def exits(self, criterion: str, threshold: float) -> Exits:
        return Exits(criterion, threshold, self.config.num_hidden_layers, self.config.num_labels)

    def file(self, folder: Path, format: str, exits: Exits, **options: Any) -> Path:
        path = folder / f"model.{format}"
        options = {"precision": "fp32", **options}
        path.write_bytes(
            convert(self.config, self.tensors, TASKS[self.task], format=format, exits=exits, **options).content
        )
        return path


def make_case(task: str, heads: str = "shared", count: int = 60, **changes: Any) -> Case:
    config = tiny_config(task, num_hidden_layers=6, **changes).with_exits(heads)
    tensors = tiny_tensors(config, task, seed=3)
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 30, count)
    encodings = [Encoding(rng.integers(5, config.vocab_size, n).tolist(), [0] * int(n), [], [], []) for n in lengths]
    return Case(config, tensors, task, encodings, ExitModel(config, tensors, TASKS[task]).rows(encodings))


@pytest.fixture(scope="module")
def case() -> Callable[..., Case]:
    made: dict[str, Case] = {}

    def get(task: str, heads: str = "shared") -> Case:
        key = f"{task} {heads}"
        if key not in made:
            made[key] = make_case(task, heads)
        return made[key]

    return get


def run(engine: Engine, case: Case, more: dict[str, np.ndarray] | None = None, batch: int = 1):
    """Outputs without padding, and the iterations."""
    outputs, iterations = [], []
    for start in range(0, len(case.encodings), batch):
        part = case.encodings[start : start + batch]
        found = engine.run({**make_feeds(part, case.config.pad_token_id), **(more or {})})
        iterations += [int(used) for used in found["iterations"]]
        for row, encoding in zip(found["logits"], part, strict=True):
            outputs.append(row[: len(encoding.input_ids)] if TASKS[case.task].per_token else row)
    return outputs, iterations


def same(found, expected, tolerance: float = 2e-5) -> None:
    assert found[1] == expected[1].tolist()
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("task", "criterion", "threshold"), RULES)
def test_exit_and_answer_are_the_float_models(case, tmp_path: Path, format: str, task, criterion, threshold) -> None:
    one = case(task)
    exits = one.exits(criterion, threshold)
    engine = open_engine(one.file(tmp_path, format, exits), threads=1)
    rule = CRITERIA[criterion]
    expected = leave(one.answers, rule, threshold)
    assert len(set(expected[1].tolist())) > 1, "inputs leave at different depths"
    same(run(engine, one), expected)
    same(run(engine, one, exits.feeds(depth=3)), leave(one.answers, rule, threshold, depth=3))
    same(run(engine, one, exits.feeds(NEVER)), leave(one.answers, rule, rule.never))
    assert set(run(engine, one, exits.feeds(NEVER))[1]) == {6}
    assert set(run(engine, one, exits.feeds(depth=1))[1]) == {1}
    other = {"confidence": 0.6, "entropy": 0.9, "patience": 2.0, "change": 0.2}[criterion]
    same(run(engine, one, exits.feeds(other)), leave(one.answers, rule, other))
    engine.close()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_a_head_for_each_iteration(case, tmp_path: Path, format: str, task: str) -> None:
    one = case(task, "per-iteration")
    engine = open_engine(one.file(tmp_path, format, one.exits("confidence", 0.6)), threads=1)
    same(run(engine, one), leave(one.answers, CRITERIA["confidence"], 0.6))
    same(run(engine, one, one.exits("confidence", 0.6).feeds(NEVER)), leave(one.answers, CRITERIA["confidence"], 2))


@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_neighbours_change_nothing(case, tmp_path: Path, task: str) -> None:
    """In a batch each input's answer is frozen where it left, while its neighbours go on."""
    one = case(task)
    engine = open_engine(one.file(tmp_path, "onnx", one.exits("confidence", 0.6)), threads=1)
    same(run(engine, one, batch=7), leave(one.answers, CRITERIA["confidence"], 0.6))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_smaller_precisions(case, tmp_path: Path, format: str, precision: str) -> None:
    one = case("text-classification")
    engine = open_engine(one.file(tmp_path, format, one.exits("confidence", 0.72), precision=precision), threads=1)
    outputs, iterations = run(engine, one)
    expected, left = leave(one.answers, CRITERIA["confidence"], 0.72)
    agree = [i for i, used in enumerate(iterations) if used == left[i]]
    assert len(agree) >= {"fp16": 59, "int8": 54, "int4": 30}[precision]
    tolerance = {"fp16": 0.01, "int8": 0.15, "int4": 3.0}[precision]
    assert max(np.abs(outputs[i] - expected[i]).max() for i in agree) < tolerance
    assert len(set(iterations)) > 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_packed_weights_keep_the_exits(case, tmp_path: Path, format: str, task: str) -> None:
    """Another way to open the same file (ONNX Runtime's saved session, LiteRT's CompiledModel), lengths in turn."""
    one = case(task)
    path = one.file(tmp_path, format, one.exits("confidence", 0.6))
    engine = open_engine(path, threads=1, cache_dir=tmp_path / "cache")
    assert engine.packed is not None
    same(run(engine, one), leave(one.answers, CRITERIA["confidence"], 0.6))
    feeds = one.exits("confidence", 0.6).feeds(0.5, depth=4)
    same(run(engine, one, feeds), leave(one.answers, CRITERIA["confidence"], 0.5, depth=4))
    engine.close()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_packed_weights_change_no_bit(case, tmp_path: Path, format: str, precision: str) -> None:
    one = case("text-classification")
    path = one.file(tmp_path, format, one.exits("confidence", 0.6), precision=precision)
    plain, packed = (open_engine(path, threads=1, cache_dir=folder) for folder in (None, tmp_path / "cache"))
    expected, found = run(plain, one), run(packed, one)
    assert found[1] == expected[1]
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    plain.close()
    packed.close()


@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_onnx_finds_nothing_to_complain_of(case, tmp_path: Path, task: str) -> None:
    """Its checker; and a caller who knows of three inputs gets the defaults."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    one = case(task)
    path = one.file(tmp_path, "onnx", one.exits("patience", 1.0))
    onnx.checker.check_model(onnx.load(path))
    session = ort.InferenceSession(str(path))
    assert {given.name for given in session.get_inputs()} == {"input_ids", "attention_mask", "token_type_ids"}
    assert {given.name for given in session.get_overridable_initializers()} == {"exit_threshold", "max_depth"}
    _, used = session.run(["logits", "iterations"], make_feeds(one.encodings[:1], 0))
    assert used.tolist() == [leave(one.answers[:1], CRITERIA["patience"], 1)[1][0]]


def test_weights_stand_once_and_the_loop_is_one(case, tmp_path: Path) -> None:
    from converters.audit import audit_file

    one = case("text-classification")
    for format in FORMATS:
        audit = audit_file(one.file(tmp_path, format, one.exits("entropy", 0.5)), one.tensors, floor_bytes=1)
        assert audit.repeated == {}
        assert audit.loops == 1


@pytest.mark.parametrize(("task", "inner"), [("text-classification", 2)])
def test_an_inner_stack(tmp_path: Path, task: str, inner: int) -> None:
    one = make_case(task, count=12, inner_group_num=inner)
    for format in FORMATS:
        engine = open_engine(one.file(tmp_path, format, one.exits("confidence", 0.6)), threads=1)
        same(run(engine, one), leave(one.answers, CRITERIA["confidence"], 0.6))


def test_files_that_no_input_could_leave(case) -> None:
    one = case("text-classification")
    exits = one.exits("confidence", 0.6)

    def refused(message: str, config: AlbertConfig = one.config, **options: Any) -> None:
        tensors = tiny_tensors(config, one.task)
        with pytest.raises(EdgeAlbertError, match=message):
            convert(config, tensors, TASKS[one.task], exits=exits, **options)

    refused("train it with python -m edge_albert.finetune … --early-exit", one.config.with_exits(None))
    refused("an unrolled graph .* always runs every iteration", unroll=True)
    refused("an unrolled graph", compat=True, format="tflite")
    refused(
        "3 groups over 6 iterations",
        tiny_config(one.task, num_hidden_layers=6, num_hidden_groups=3).with_exits("shared"),
    )
    refused("1 group over 1 iteration", tiny_config(one.task, num_hidden_layers=1).with_exits("shared"))


def test_a_damaged_default_is_refused(case, tmp_path: Path) -> None:
    one = case("text-classification")
    path = one.file(tmp_path, "tflite", one.exits("confidence", 0.6))
    content = path.read_bytes()
    assert content.count(b'"exit_threshold": 0.6') == 1
    path.write_bytes(content.replace(b'"exit_threshold": 0.6', b'"exit_threshold": "6"'[:21]))
    with pytest.raises(EdgeAlbertError, match="not a TFLite model of this project"):
        open_engine(path, threads=1)
