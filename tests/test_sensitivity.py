"""What a rounded matrix costs, beside transformers doing the same; and the choice of precisions beside brute force."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from calibration_helpers import sentences, tiny_source

from calibration.agreement import run_reference
from calibration.mixed import assignment, fit_bytes, fit_loss, raised, smallest, stored_bytes, walk
from calibration.reference import ReferenceModel
from calibration.sensitivity import (
    Cost,
    Sensitivity,
    canonical_weights,
    compare_cost,
    fake_quantize,
    measure_sensitivity,
    points_lost,
)
from calibration.texts import encode
from converters.convert import convert
from edge_albert.exporting.source import Source
from edge_albert.reports.calibration_report import sensitivity_picture, sensitivity_table, spark
from edge_albert.runtime.session import make_feeds
from edge_albert.sites import quantizable_weights
from edge_albert.tasks import TASKS

pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Source:
    return tiny_source(tmp_path_factory.mktemp("model") / "model")


def encodings_of(given: Source, count: int) -> list:
    return [encode(text, None, given.checkpoint.config, given.tokenizer).encoding for text in sentences(count)]


@pytest.fixture(scope="module")
def study(given) -> Sensitivity:
    return measure_sensitivity(given.checkpoint, given.task, encodings_of(given, 12))


# -- what a rounding costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["embeddings.word.weight", "layer.ffn.weight", "layer.attention.key.weight"])
def test_a_matrix_in_all_iterations_costs_what_it_costs_transformers(given, study, name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def log_probabilities(model) -> list:
        with torch.no_grad():
            feeds = (make_feeds([encoding], 0) for encoding in encodings_of(given, 12))
            logits = [model(**{k: torch.from_numpy(v) for k, v in feed.items()}).logits[0] for feed in feeds]
        return [row.double().log_softmax(-1) for row in logits]

    model = transformers.AlbertForSequenceClassification.from_pretrained(given.checkpoint.folder).eval()
    before = log_probabilities(model)
    full = canonical_weights(given.checkpoint, given.task)[name]
    rounded = fake_quantize(given.checkpoint.float32(full), "int4")
    model.load_state_dict({full: torch.from_numpy(rounded)}, strict=False)
    after = log_probabilities(model)
    divergences = [
        torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum").item()
        for p, q in zip(before, after, strict=True)
    ]
    cost = study.matrices[name]["int4"]
    assert cost.loss == pytest.approx(np.mean(divergences), rel=0.02, abs=1e-7)
    changed = [p.argmax().item() != q.argmax().item() for p, q in zip(before, after, strict=True)]
    assert cost.changed == pytest.approx(np.mean(changed))


def test_one_iteration_alone_is_a_model_whose_layer_differs_there(given, study):
    """Three groups with the same layer are the same model; rounding the second group's matrix is rounding in iteration
    2."""
    config, name = given.checkpoint.config, "layer.attention.dense.weight"
    full = canonical_weights(given.checkpoint, given.task)[name]
    tensors = dict(given.checkpoint.tensors)
    for tensor, group in itertools.product(list(given.checkpoint.tensors), (1, 2)):
        tensors[tensor.replace("layer_groups.0", f"layer_groups.{group}")] = given.checkpoint.tensors[tensor]
    untied = replace(config, num_hidden_groups=3)
    encodings = encodings_of(given, 12)
    expected = run_reference(ReferenceModel(untied, tensors, given.task), encodings, 0, per_token=False)
    other = full.replace("layer_groups.0", "layer_groups.1")
    tensors[other] = fake_quantize(tensors[other], "int4")
    found = run_reference(ReferenceModel(untied, tensors, given.task), encodings, 0, per_token=False)
    cost = study.iterations[name][1]
    assert cost is not None
    assert cost.loss == pytest.approx(compare_cost(expected, found, given.task).loss, rel=0.01)


def test_every_matrix_and_iteration_is_there(given, study):
    assert set(study.matrices) == set(quantizable_weights(given.checkpoint.config, pooled=True))
    assert {name for name in study.matrices if name.startswith("layer.")} == set(study.iterations)
    assert all(len(costs) == 3 and all(costs) for costs in study.iterations.values())
    for name, costs in study.matrices.items():
        if name.startswith(("layer.", "pooler")):
            assert costs["int4"].loss > costs["int8"].loss > 0, name


def test_groups_have_cells_only_where_they_work(tmp_path):
    given = tiny_source(tmp_path / "groups", num_hidden_layers=4, num_hidden_groups=2)
    found = measure_sensitivity(given.checkpoint, given.task, encodings_of(given, 4))
    assert [cost is None for cost in found.iterations["layer.ffn.weight"]] == [False, False, True, True]
    assert [cost is None for cost in found.iterations["layer.1.0.ffn.weight"]] == [True, True, False, False]
    picture = sensitivity_picture(found.to_json())
    cells = [element for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("rect")]
    assert len(cells) == 12 * 2 + 12


def test_json_gives_the_same_back(study):
    assert Sensitivity.from_json(study.to_json()) == study


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_loss(tmp_path, task):
    given = tiny_source(tmp_path / "model", task)
    found = measure_sensitivity(given.checkpoint, given.task, encodings_of(given, 4), by_iteration=False)
    assert found.iterations == {}
    costs = found.matrices["layer.ffn.weight"]
    assert 0 < costs["int8"].loss < costs["int4"].loss < 1
    assert (costs["int4"].changed is None) == (task in ("text-regression", "multiple-choice", "sentence-embedding"))


def test_points_lost_of_known_answers():
    task = TASKS["text-classification"]
    a, b = np.array([2.0, 0.0]), np.array([0.0, 2.0])
    assert points_lost([a, a, b, b], [a, b, b, b], task) == 25
    numbers = [np.array([float(n)]) for n in range(4)]
    assert points_lost(numbers, [n * 2 + 1 for n in numbers], TASKS["text-regression"]) == pytest.approx(0)
    unit, turned = np.array([1.0, 0.0]), np.array([0.6, 0.8])
    assert points_lost([unit, unit], [unit, turned], TASKS["sentence-embedding"]) == pytest.approx(20)


# -- choosing ----------------------------------------------------------------------------------------------------------

SHAPES = {"a": (8, 64), "b": (64, 64), "c": (256, 64), "d": (16, 128), "e": (128, 128)}
LOSSES = {"a": (1e-4, 0.01), "b": (2e-4, 3e-3), "c": (1e-3, 2e-3), "d": (3e-6, 0.08), "e": (5e-4, 4e-3)}
TABLE = Sensitivity(100, {name: {"int8": Cost(x, 0.0), "int4": Cost(y, 0.01)} for name, (x, y) in LOSSES.items()}, {})


def loss_of(chosen) -> float:
    places = {"fp32": None, "int8": 0, "int4": 1}
    return sum(0.0 if places[p] is None else LOSSES[name][places[p]] for name, p in chosen.items())


def size_of(chosen) -> int:
    return sum(stored_bytes(SHAPES[name], precision, 64) for name, precision in chosen.items())


def everything() -> list[dict[str, str]]:
    return [dict(zip(SHAPES, kinds, strict=True)) for kinds in itertools.product(("fp32", "int8", "int4"), repeat=5)]


def test_every_stop_of_the_walk_is_the_best_of_all_243_files_of_its_size():
    steps = walk(TABLE, SHAPES, 64)
    for count in range(len(steps) + 1):
        chosen = assignment(TABLE, steps[:count])
        best = min(loss_of(other) for other in everything() if size_of(other) <= size_of(chosen))
        assert loss_of(chosen) == pytest.approx(best)


@pytest.mark.parametrize("limit", [size_of(smallest(SHAPES, 64)), 22_000, 25_000, 30_000, 60_000, 10**6])
def test_a_size_is_kept_and_nearly_the_best_is_made_of_it(limit):
    chosen = assignment(TABLE, fit_bytes(walk(TABLE, SHAPES, 64), limit, lambda s: size_of(assignment(TABLE, s))))
    assert size_of(chosen) <= limit
    best = min(loss_of(other) for other in everything() if size_of(other) <= limit)
    assert loss_of(chosen) <= 1.25 * best


@pytest.mark.parametrize("limit", [0, 1e-4, 2e-3, 0.01, 1])
def test_a_loss_is_kept_and_the_next_step_would_break_it(limit):
    steps = walk(TABLE, SHAPES, 64)
    taken = fit_loss(steps, limit, lambda part: loss_of(assignment(TABLE, part)))
    assert loss_of(assignment(TABLE, taken)) <= limit
    if len(taken) < len(steps):
        assert loss_of(assignment(TABLE, steps[: len(taken) + 1])) > limit


def test_sizes_are_those_of_the_file(given):
    """Between two files the difference is what the sizes say: all of it weights, nothing else changes."""
    config, tensors, task = given.checkpoint.config, given.checkpoint.tensors, given.task
    names = canonical_weights(given.checkpoint, task)
    files = {
        p: len(convert(config, tensors, task, precision="int8", overrides={"pooler.weight": p}).content)
        for p in ("fp32", "int8", "int4")
    }
    shape = tensors[names["pooler.weight"]].shape
    for p in ("fp32", "int4"):
        expected = stored_bytes(shape, p, 64) - stored_bytes(shape, "int8", 64)
        assert files[p] - files["int8"] == pytest.approx(expected, abs=600)  # names and nodes


def test_the_most_sensitive_rise_first():
    current = dict.fromkeys(SHAPES, "int4")
    assert raised(TABLE, current, 1) == {**current, "d": "int8"}
    assert raised(TABLE, current, 2) == {**current, "d": "int8", "a": "int8"}
    assert raised(TABLE, dict.fromkeys(SHAPES, "int8"), 1)["c"] == "fp32"
    assert raised(TABLE, current, 100) == dict.fromkeys(SHAPES, "fp32")
    assert raised(TABLE, dict.fromkeys(SHAPES, "fp32"), 3) == dict.fromkeys(SHAPES, "fp32")


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_small_pictures_show_small_things():
    assert spark([1, 4, 2]) == "▂█▄"
    assert spark([1e-6, 1]) == "▁█"
    assert spark([0, 0]) == "  "


def test_the_table_has_the_most_sensitive_first(study):
    rows = sensitivity_table(study.to_json()).splitlines()[4:]
    losses = [study.matrices[row.split("|")[1].strip()]["int4"].loss for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == len(study.matrices)
