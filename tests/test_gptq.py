"""Error compensation is what the paper says, and it pays: on the layer, on the model, for every iteration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_int4 import wide_config, written
from tiny_models import tiny_tensors

from calibration.agreement import default_texts, run_reference
from calibration.gptq import (
    DAMPING,
    Inputs,
    _inverse_factor,
    collect_inputs,
    compensate,
    compensated_weights,
    table_readers,
)
from calibration.reference import ReferenceModel
from calibration.sensitivity import canonical_weights
from converters.quantize import BlockQuantized, quantize_blocks
from edge_albert.checkpoint import Checkpoint, read_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError
from edge_albert.exporter import DEFAULT_MODEL
from edge_albert.runtime.engine import open_engine
from edge_albert.sites import quantizable_weights
from edge_albert.tasks import TASKS
from edge_albert.tokenizer import Encoding, load_tokenizer

CLASSIFY = TASKS["text-classification"]


def correlated_inputs(columns: int, count: int = 400, seed: int = 0) -> np.ndarray:
    """(count, columns): a few directions that most of the inputs lie in, and two channels far larger than the rest."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, 8)) @ rng.standard_normal((8, columns)) + 0.2 * rng.standard_normal(
        (count, columns)
    )
    inputs[:, [5, 40]] *= 20
    return inputs


def output_error(weight: np.ndarray, quantized: BlockQuantized, inputs: np.ndarray) -> float:
    """‖(W - Ŵ) X‖ / ‖W X‖"""
    return float(np.linalg.norm(inputs @ (weight - quantized.dequantize()).T) / np.linalg.norm(inputs @ weight.T))


# -- the algorithm ----------------------------------------------------------------------------------------------------


def by_the_formula(weight: np.ndarray, hessian: np.ndarray, quantized: BlockQuantized) -> np.ndarray:
    """Equation 2 of the paper, taken at its word: a new inverse over the columns that are left, after every column."""
    left = weight.astype(np.float64)
    scales = np.repeat(quantized.scales, quantized.block_size, axis=1).astype(np.float64)
    damped = hessian + DAMPING * np.diag(hessian).mean() * np.eye(len(hessian))
    values = np.empty(weight.shape, np.int8)
    for column in range(weight.shape[1]):
        values[:, column] = np.clip(np.rint(left[:, column] / scales[:, column]), -7, 7)
        inverse = np.linalg.inv(damped[column:, column:])
        error = left[:, column] - values[:, column] * scales[:, column]
        left[:, column:] -= np.outer(error / inverse[0, 0], inverse[0])
    return values


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_values_are_those_of_the_papers_formula(block_size):
    weight = np.random.default_rng(1).standard_normal((12, 256)).astype(np.float32)
    inputs = correlated_inputs(256)
    hessian = inputs.T @ inputs
    quantized = compensate(weight, hessian, block_size)
    assert (quantized.values.shape, quantized.block_size) == (weight.shape, block_size)
    expected = by_the_formula(weight, hessian, quantized)
    assert (quantized.values != expected).mean() < 0.002  # a value on the edge of two steps may fall either way


def test_factor_is_that_of_the_inverse():
    inputs = correlated_inputs(300)
    hessian = inputs.T @ inputs
    factor = _inverse_factor(hessian, DAMPING)
    np.testing.assert_allclose(factor, np.triu(factor), atol=1e-12)
    damped = hessian + DAMPING * np.diag(hessian).mean() * np.eye(300)
    np.testing.assert_allclose(factor.T @ factor @ damped, np.eye(300), atol=1e-8)


def test_inputs_that_say_nothing_of_each_other_leave_plain_rounding():
    weight = np.random.default_rng(2).standard_normal((10, 128)).astype(np.float32)
    quantized = compensate(weight, np.eye(128), 32)
    steps = np.repeat(quantized.scales, 32, axis=1)
    np.testing.assert_array_equal(quantized.values, np.clip(np.rint(weight / steps), -7, 7))


def test_a_layer_with_correlated_inputs_loses_a_third_of_what_plain_rounding_costs():
    weight = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    inputs, unseen = correlated_inputs(256, seed=4), correlated_inputs(256, seed=4)[::-1] * 0.9
    quantized = compensate(weight, inputs.T @ inputs, 64)
    assert output_error(weight, quantized, unseen) < 0.33 * output_error(weight, quantize_blocks(weight, 64), unseen)


def test_channels_that_are_always_zero_and_an_input_that_is():
    weight = np.random.default_rng(5).standard_normal((8, 64)).astype(np.float32)
    inputs = correlated_inputs(64)
    inputs[:, 10:20] = 0
    for hessian in (inputs.T @ inputs, np.zeros((64, 64))):
        found = compensate(weight, hessian, 32).dequantize()
        assert np.isfinite(found).all()
        assert np.linalg.norm(found - weight) < 0.5 * np.linalg.norm(weight)


# -- the shared layer -------------------------------------------------------------------------------------------------


def checkpoint_of(**changes) -> tuple[Checkpoint, list[Encoding]]:
    config = wide_config(**changes)
    return in_memory(config, tiny_tensors(config, CLASSIFY.name)), random_texts(config, 24)


def random_texts(config: AlbertConfig, count: int, seed: int = 0) -> list[Encoding]:
    """Any ids, 8 to 40 of them a text: an untrained model has no language that it would be at home in."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, 40, count)
    ids = [rng.integers(5, config.vocab_size, length).tolist() for length in lengths]
    return [Encoding(row, [0] * len(row), [(0, 0)] * len(row), [0] * len(row), [0] * len(row)) for row in ids]


def in_memory(config: AlbertConfig, tensors: dict[str, np.ndarray]) -> Checkpoint:
    return Checkpoint(config, tensors, source="a test", folder=Path(), task=CLASSIFY.name)


def test_inputs_are_those_of_all_iterations_and_no_padding():
    checkpoint, encodings = checkpoint_of()
    site = "layer.ffn.input"
    rows: list[np.ndarray] = []
    iterations = set()

    def observe(name: str, iteration: int, array: np.ndarray) -> None:
        if name == site:
            rows.append(array.copy())
            iterations.add(iteration)

    model = ReferenceModel(checkpoint.config, checkpoint.tensors, CLASSIFY, observe=observe)
    for encoding in encodings:  # one by one: nothing is padded
        run_reference(model, [encoding], 0, per_token=False)
    inputs = np.concatenate(rows)
    assert iterations == {0, 1, 2}
    assert len(inputs) == 3 * sum(len(encoding.input_ids) for encoding in encodings)
    found = collect_inputs(checkpoint, CLASSIFY, encodings, {site})
    assert set(found) == {site}
    assert found[site].count == len(inputs)
    np.testing.assert_allclose(found[site].mean, inputs.mean(axis=0), atol=1e-5)
    expected = np.cov(inputs.T.astype(np.float64), bias=True) * len(inputs)
    np.testing.assert_allclose(found[site].hessian, expected, rtol=1e-4, atol=1e-2)


def test_inputs_of_two_sites_join():
    first, second = correlated_inputs(64, seed=1) + 30, correlated_inputs(64, count=100, seed=2)
    one, other = (Inputs(len(x), x.mean(axis=0), np.cov(x.T, bias=True) * len(x)) for x in (first, second))
    both = np.concatenate([first, second])
    joined = one.joined(other)
    np.testing.assert_allclose(joined.mean, both.mean(axis=0))
    np.testing.assert_allclose(joined.hessian, np.cov(both.T, bias=True) * len(both), atol=1e-6)


def test_tied_weights_are_rounded_as_one():
    config = wide_config().with_sharing("ffn")
    checkpoint, encodings = checkpoint_of()
    checkpoint = in_memory(config, tiny_tensors(config, CLASSIFY.name))
    names = [name for name in quantizable_weights(config, pooled=True) if name.endswith(".ffn.weight")]
    found = compensated_weights(checkpoint, CLASSIFY, encodings, names)
    assert len(found) == 3
    assert all(found[name].values.tobytes() == found[names[0]].values.tobytes() for name in names)


def test_rows_that_no_block_divides_are_left_out():
    checkpoint, encodings = checkpoint_of(embedding_size=16)
    names = ["embeddings.word.weight", "encoder.embedding_hidden_mapping_in.weight", "pooler.weight"]
    assert set(compensated_weights(checkpoint, CLASSIFY, encodings, names)) == {"pooler.weight"}
    assert compensated_weights(checkpoint, CLASSIFY, encodings, names[:2]) == {}


def test_weights_that_are_not_finite_are_one_clear_line():
    checkpoint, encodings = checkpoint_of()
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.bias"
    checkpoint.tensors[name][0] = np.inf
    with pytest.raises(CheckpointError, match="not finite"), np.errstate(all="ignore"):
        compensated_weights(checkpoint, CLASSIFY, encodings, ["layer.ffn.weight"])


# -- the model --------------------------------------------------------------------------------------------------------


def as_rounded(checkpoint: Checkpoint, rounded: dict[str, BlockQuantized]) -> dict[str, np.ndarray]:
    """The checkpoint's tensors with these weights, and their biases shifted."""
    full = canonical_weights(checkpoint, CLASSIFY)
    tensors = dict(checkpoint.tensors)
    for name, part in rounded.items():
        bias = full[name].removesuffix("weight") + "bias"
        tensors[full[name]] = part.dequantize()
        tensors[bias] = tensors[bias] + (0 if part.shift is None else part.shift)
    return tensors


def model_errors(checkpoint: Checkpoint, calibration: list[Encoding], held_out: list[Encoding]) -> dict[str, list]:
    """What plain and compensated rounding do to texts that were not calibrated with.

    logits: mean absolute difference; state: relative difference of the last hidden state that the head reads.
    """
    full = canonical_weights(checkpoint, CLASSIFY)
    names = [name for name, site in quantizable_weights(checkpoint.config, pooled=True).items() if site]
    weights = {name: checkpoint.float32(full[name]) for name in names}
    plain = {name: quantize_blocks(weight, 64) for name, weight in weights.items()}
    compensated = compensated_weights(checkpoint, CLASSIFY, calibration, names, block_size=64)
    assert compensated.keys() == plain.keys()

    def outputs(rounded: dict[str, BlockQuantized]) -> tuple[np.ndarray, np.ndarray]:
        states = []

        def observe(site: str, iteration: int, rows: np.ndarray) -> None:
            if site == "pooler.input":
                states.append(rows.copy())

        model = ReferenceModel(checkpoint.config, as_rounded(checkpoint, rounded), CLASSIFY, observe=observe)
        return np.array(run_reference(model, held_out, 0, per_token=False)), np.concatenate(states)

    (logits, state), *others = (outputs(rounded) for rounded in ({}, plain, compensated))
    return {
        "logits": [float(np.abs(found - logits).mean()) for found, _ in others],
        "state": [float(np.linalg.norm(found - state) / np.linalg.norm(state)) for _, found in others],
    }


def test_the_default_model_loses_half_of_what_plain_rounding_costs():
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    encodings = [tokenizer.encode(text, max_length=128) for text in default_texts()]
    errors = model_errors(read_checkpoint(DEFAULT_MODEL, task=None), encodings[::2], encodings[1::2])
    assert errors["state"][1] < 0.5 * errors["state"][0]
    assert errors["logits"][1] < 0.75 * errors["logits"][0]  # a trained model's lie far from zero: few of them move


def test_a_table_is_rounded_for_what_reads_it():
    """No text is needed for that: the norm's and the projection's weights say which directions count."""
    checkpoint = read_checkpoint(DEFAULT_MODEL, task=None)
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    texts = [tokenizer.encode(text, max_length=128) for text in default_texts()[::2]]
    name, full = "embeddings.word.weight", "albert.embeddings.word_embeddings.weight"
    table = checkpoint.float32(full)
    compensated = compensated_weights(checkpoint, CLASSIFY, [], [name])[name]
    assert compensated.shift is None

    def logits(changed: np.ndarray) -> np.ndarray:
        model = ReferenceModel(checkpoint.config, {**checkpoint.tensors, full: changed}, CLASSIFY)
        return np.array(run_reference(model, texts, 0, per_token=False))

    exact = logits(table)
    plain, better = (np.abs(logits(q.dequantize()) - exact).mean() for q in (quantize_blocks(table, 64), compensated))
    assert better < 0.7 * plain


def test_what_reads_a_table_is_the_norm_and_the_projection():
    checkpoint, _ = checkpoint_of()
    tensors = checkpoint.tensors
    row = np.random.default_rng(0).standard_normal(64)
    normed = (row - row.mean()) / row.std() * tensors["albert.embeddings.LayerNorm.weight"]
    read = tensors["albert.encoder.embedding_hidden_mapping_in.weight"] @ normed
    assert row @ table_readers(checkpoint).hessian @ row == pytest.approx(read @ read * row.var(), rel=1e-4)


@pytest.mark.parametrize(("planted", "most"), [(1, 0.4), (3, 0.6)], ids=["ordinary", "outlier channels"])
def test_other_models_do_too(planted, most):
    """Outliers: two channels of the hidden state far above the others, and read by small weights."""
    checkpoint, _ = checkpoint_of(hidden_size=128, intermediate_size=512, num_hidden_layers=6)
    tensors = {name: tensor.copy() for name, tensor in checkpoint.tensors.items()}
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    for name in ("attention.LayerNorm.weight", "full_layer_layer_norm.weight"):
        tensors[layer + name][[7, 90]] *= planted
    for name in ("attention.query.weight", "attention.key.weight", "attention.value.weight", "ffn.weight"):
        tensors[layer + name][:, [7, 90]] /= planted**2
    texts = [random_texts(checkpoint.config, count, seed) for count, seed in ((120, 0), (60, 1))]
    errors = model_errors(in_memory(checkpoint.config, tensors), *texts)
    assert errors["state"][1] < most * errors["state"][0]
    assert errors["logits"][1] < most * errors["logits"][0]


@pytest.mark.parametrize("format", ["onnx", "tflite"])
def test_the_engines_run_what_was_compensated(tmp_path, format):
    checkpoint, encodings = checkpoint_of()
    sites = quantizable_weights(checkpoint.config, pooled=True)
    rounded = compensated_weights(checkpoint, CLASSIFY, encodings, [name for name, site in sites.items() if site])
    tables = {name: "fp32" for name, site in sites.items() if not site}
    path, _ = written(tmp_path, checkpoint.config, format, rounded=rounded, overrides=tables)
    model = ReferenceModel(checkpoint.config, as_rounded(checkpoint, rounded), CLASSIFY)
    expected = np.array(run_reference(model, encodings[:6], 0, per_token=False))
    engine = open_engine(path, threads=1)
    found = np.array(run_reference(lambda **feeds: engine.run(feeds)["logits"], encodings[:6], 0, per_token=False))
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    assert any(np.abs(part.shift).max() > 0 for part in rounded.values())
