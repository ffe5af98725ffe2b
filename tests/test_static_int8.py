"""Static int8: scales of activations worked out beforehand, in both formats, as a loop and unrolled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_environments import run_there
from test_converters import feeds
from tiny_models import tiny_config, tiny_tensors

from calibration.agreement import Agreement, compare, default_texts, run_reference
from calibration.reference import ReferenceModel
from converters.audit import audit_file
from converters.convert import convert
from converters.quantize import ActivationRanges, activation_parameters
from converters.tflite_reader import read_tflite
from edge_albert.checkpoint import read_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporter import DEFAULT_MODEL
from edge_albert.runtime.engine import open_engine
from edge_albert.sites import activation_sites
from edge_albert.tasks import TASKS
from edge_albert.tokenizer import load_tokenizer

onnx = pytest.importorskip("onnx")
CLASSIFY = TASKS["text-classification"]
FORMATS = ("onnx", "tflite")
Spans = dict[str, dict[int, tuple[float, float]]]


def observed(spans: Spans):
    """A callback of ReferenceModel that notes the smallest and largest value of every site and iteration."""

    def observe(site: str, iteration: int, rows: np.ndarray) -> None:
        low, high = spans.setdefault(site, {}).get(iteration, (np.inf, -np.inf))
        spans[site][iteration] = min(low, float(rows.min())), max(high, float(rows.max()))

    return observe


def as_ranges(spans: Spans) -> ActivationRanges:
    return ActivationRanges({site: np.array([part[i] for i in sorted(part)]) for site, part in spans.items()})


def tiny_ranges(config: AlbertConfig) -> ActivationRanges:
    spans: Spans = {}
    model = ReferenceModel(config, tiny_tensors(config, CLASSIFY.name), CLASSIFY, observe=observed(spans))
    for seed in range(4):
        model(**feeds(config, batch=4, length=32, seed=seed))
    return as_ranges(spans)


def written(folder: Path, config: AlbertConfig, format: str, **options) -> Path:
    if format == "tflite":
        pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    options = {"precision": "int8-static", "ranges": tiny_ranges(config), **options}
    path = folder / f"model.{format}"
    path.write_bytes(convert(config, tiny_tensors(config, CLASSIFY.name), CLASSIFY, format=format, **options).content)
    return path


# -- what is observed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_reference_reports_every_site_in_every_iteration(task):
    config = tiny_config(task, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
    seen: dict[str, list[int]] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def observe(site: str, iteration: int, rows: np.ndarray) -> None:
        seen.setdefault(site, []).append(iteration)
        shapes[site] = rows.shape

    inputs = feeds(config, batch=3, length=10)
    ReferenceModel(config, tiny_tensors(config, task), TASKS[task], observe=observe)(**inputs)
    sites = activation_sites(config, pooled=TASKS[task].pooled)
    assert seen.keys() == sites.keys()
    for site, iterations in seen.items():
        assert len(iterations) == max(sites[site], 1)
        assert (iterations == [-1]) == (sites[site] == 0)
    assert sorted(seen["layer.ffn.input"] + seen["layer.1.0.ffn.input"]) == [0, 1, 2, 3, 4]
    tokens = int(inputs["attention_mask"].sum())  # no padding
    assert shapes["layer.0.1.ffn_output.input"] == (tokens, config.intermediate_size)
    assert shapes["embeddings.projection.input"] == (tokens, config.embedding_size)
    if TASKS[task].pooled:
        assert shapes["pooler.input"] == (3, config.hidden_size)


def test_scale_and_zero_point_cover_the_span_and_keep_zero_exact():
    spans = np.array([[-1.0, 3.0], [0.5, 2.0], [-4.0, -1.0], [0.0, 0.0], [-1e-8, 1e-8]], np.float32)
    scale, zero = activation_parameters(spans)
    assert (scale.dtype, zero.dtype) == (np.float32, np.int8)
    low, high = (-128 - zero.astype(int)) * scale, (127 - zero.astype(int)) * scale
    assert (low <= np.minimum(spans[:, 0], 0) + scale).all()
    assert (high >= np.maximum(spans[:, 1], 0) - scale).all()
    np.testing.assert_allclose(scale[:3], [4 / 255, 2 / 255, 4 / 255], rtol=1e-6)
    assert scale[3] == 1


# -- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_engines_agree_with_the_float_model(tmp_path, format, unroll, groups):
    config = tiny_config(CLASSIFY.name, num_hidden_layers=4, num_hidden_groups=groups)
    engine = open_engine(written(tmp_path, config, format, unroll=unroll), threads=1)
    inputs = feeds(config, batch=3, length=20, seed=9)
    expected = ReferenceModel(config, tiny_tensors(config, CLASSIFY.name), CLASSIFY)(**inputs)
    found = engine.run(inputs)["logits"]
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


def default_model(**options) -> tuple[bytes, list[np.ndarray], list]:
    """The embedded spam filter as static int8, calibrated on half of the sentences; what it should say of others."""
    checkpoint = read_checkpoint(DEFAULT_MODEL, task=None)
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    encodings = [tokenizer.encode(text, max_length=128) for text in default_texts()]
    spans: Spans = {}
    model = ReferenceModel(checkpoint.config, checkpoint.tensors, CLASSIFY, observe=observed(spans))
    run_reference(model, encodings[::2], 0, per_token=False)
    held_out = encodings[1::4]
    expected = run_reference(
        ReferenceModel(checkpoint.config, checkpoint.tensors, CLASSIFY), held_out, 0, per_token=False
    )
    options = {"precision": "int8-static", "ranges": as_ranges(spans), **options}
    return convert(checkpoint.config, checkpoint.tensors, CLASSIFY, **options).content, expected, held_out


def agreement(path: Path, expected: list[np.ndarray], held_out: list) -> Agreement:
    engine = open_engine(path, threads=1)
    found = run_reference(lambda **inputs: engine.run(inputs)["logits"], held_out, 0, per_token=False)
    return compare(expected, found, CLASSIFY)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
def test_the_default_model_says_the_same(tmp_path, format, unroll):
    content, expected, held_out = default_model(format=format, unroll=unroll)
    path = tmp_path / f"model.{format}"
    path.write_bytes(content)
    found = agreement(path, expected, held_out)
    assert found.texts == 80
    assert found.same_label == 1
    assert found.mean_cosine > 0.999


@pytest.mark.parametrize("format", FORMATS)
def test_ranges_of_one_iteration_hold_in_that_iteration(tmp_path, format):
    """Ruin the ranges of the last iteration: what the file says must change, so each iteration's are really used."""
    config = tiny_config(CLASSIFY.name)
    inputs = feeds(config, batch=1, length=16)
    expected = open_engine(written(tmp_path, config, format, unroll=format == "tflite"), threads=1).run(inputs)[
        "logits"
    ]
    good = tiny_ranges(config)
    for iteration in range(3):
        spans = {site: np.array(rows) for site, rows in good.spans.items()}
        spans["layer.ffn.input"][iteration] = [-0.01, 0.01]
        path = written(tmp_path, config, format, unroll=format == "tflite", ranges=ActivationRanges(spans))
        found = open_engine(path, threads=1).run(inputs)["logits"]
        assert np.abs(found - expected).max() > 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
def test_one_range_may_hold_for_all_iterations(tmp_path, format, unroll):
    config = tiny_config(CLASSIFY.name)
    rows = tiny_ranges(config).spans
    shared = ActivationRanges({site: np.array([[r[:, 0].min(), r[:, 1].max()]]) for site, r in rows.items()})
    inputs = feeds(config, batch=1, length=16)
    expected = ReferenceModel(config, tiny_tensors(config, CLASSIFY.name), CLASSIFY)(**inputs)
    path = written(tmp_path, config, format, unroll=unroll, ranges=shared)
    found = open_engine(path, threads=1).run(inputs)["logits"]
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
def test_weights_from_a_cache_give_the_same_numbers(tmp_path, format, unroll):
    """XNNPACK's cache mixes up one weight with several biases, which the unrolled file has: it is not used there."""
    config = tiny_config(CLASSIFY.name)
    path = written(tmp_path, config, format, unroll=unroll)
    inputs = feeds(config, batch=1, length=20)
    expected = open_engine(path, threads=1).run(inputs)["logits"]
    for _ in range(2):
        cached = open_engine(path, threads=1, cache_dir=tmp_path / "cache")
        assert (cached.packed is None) == (format == "tflite" and unroll)
        np.testing.assert_array_equal(cached.run(inputs)["logits"], expected)
        cached.close()


@pytest.mark.parametrize("format", FORMATS)
def test_single_matrices_may_have_another_precision(tmp_path, format):
    config = tiny_config(CLASSIFY.name, embedding_size=64)
    overrides = {
        "layer.attention.key.weight": "fp32",
        "layer.ffn.weight": "int4",
        "layer.ffn_output.weight": "int8",
        "pooler.weight": "fp16",
    }
    path = written(tmp_path, config, format, overrides=overrides)
    inputs = feeds(config, batch=1, length=16)
    expected = ReferenceModel(config, tiny_tensors(config, CLASSIFY.name), CLASSIFY)(**inputs)
    assert np.abs(open_engine(path, threads=1).run(inputs)["logits"] - expected).max() < 0.3 * np.abs(expected).max()
    audit = audit_file(path, tiny_tensors(config, CLASSIFY.name), floor_bytes=0)
    assert audit.repeated == {}
    assert len(audit.float_products) == 3  # key, pooler and the head


def test_records_tell_the_two_kinds_of_int8_apart():
    config = tiny_config(CLASSIFY.name)
    options = {"precision": "int8-static", "ranges": tiny_ranges(config), "overrides": {"pooler.weight": "int8"}}
    for format in FORMATS:
        weights = convert(config, tiny_tensors(config, CLASSIFY.name), CLASSIFY, format=format, **options).weights
        assert weights["layer.ffn.weight"].scheme == "int8 per row, static inputs"
        assert weights["pooler.weight"].scheme == weights["embeddings.word.weight"].scheme == "int8 per row"


# -- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
def test_each_weight_stands_once_and_every_product_is_quantised(tmp_path, format, unroll):
    config = tiny_config(CLASSIFY.name, num_hidden_layers=6)
    path = written(tmp_path, config, format, unroll=unroll)
    audit = audit_file(path, tiny_tensors(config, CLASSIFY.name), floor_bytes=0)
    assert audit.repeated == {}
    assert audit.loops == (not unroll)
    assert len(audit.float_products) == 1  # the head
    if format == "onnx":
        onnx.checker.check_model(onnx.load(str(path)), full_check=True)


def test_onnx_runtime_makes_integer_products_of_it(tmp_path):
    """QuantizeLinear and DequantizeLinear are a way to write it; what runs has no float product but the head."""
    ort = pytest.importorskip("onnxruntime")
    config = tiny_config(CLASSIFY.name)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(written(tmp_path, config, "onnx")), options, disabled_optimizers=["SkipLayerNormFusion"])
    optimized = onnx.load(str(tmp_path / "optimized.onnx"))
    body = next(node for node in optimized.graph.node if node.op_type == "Loop").attribute[0].g
    kinds = [[node.op_type for node in graph.node] for graph in (optimized.graph, body)]
    assert [part.count("MatMulIntegerToFloat") for part in kinds] == [2, 4]  # projection, pooler; the layer
    assert "DequantizeLinear" not in kinds[0] + kinds[1]
    assert sum(part.count(op) for part in kinds for op in ("MatMul", "Gemm", "FusedMatMul")) == 1


def test_tflite_products_are_integers_throughout(tmp_path):
    path = written(tmp_path, tiny_config(CLASSIFY.name), "tflite")
    file = read_tflite(path)
    constants = {(constant.subgraph, constant.name): constant for constant in file.constants}
    products = [operator for operator in file.operators if operator.name == "FULLY_CONNECTED"]
    assert len(products) == 9
    for operator in products:
        weight, bias = (constants[operator.subgraph, name] for name in operator.inputs[1:])
        if operator.outputs == ("logits",):
            assert weight.dtype == bias.dtype == "float32"
            continue
        assert (weight.dtype, bias.dtype) == ("int8", "int32")
        assert len(weight.scale) == len(bias.scale) == len(bias.values)
        assert bias.scale / weight.scale == pytest.approx(float(bias.scale[0] / weight.scale[0]), rel=1e-4)
    layer = [operator.name for operator in file.operators if operator.subgraph.endswith(".layer")]
    assert layer.count("QUANTIZE") == 4  # one for query, key and value together
    assert layer.count("DEQUANTIZE") == 6


@pytest.mark.parametrize("format", FORMATS)
def test_same_input_same_bytes(tmp_path, format):
    config = tiny_config(CLASSIFY.name)
    assert len({written(tmp_path, config, format).read_bytes() for _ in range(2)}) == 1


# -- engines of old ---------------------------------------------------------------------------------------------------

_INTERPRETER = """
from {module} import Interpreter
interpreter = Interpreter(model_path="model.tflite", num_threads=1)
inputs = interpreter.get_input_details()
for detail in inputs:
    interpreter.resize_tensor_input(detail["index"], given[detail["name"]].shape)
interpreter.allocate_tensors()
for detail in inputs:
    interpreter.set_tensor(detail["index"], given[detail["name"]].astype(np.int32))
interpreter.invoke()
found["logits"] = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
"""
_SESSION = """
from pathlib import Path
from edge_albert.runtime.engine import open_engine
found["logits"] = open_engine(Path("model.onnx"), threads=1).run(given)["logits"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "format", "script"),
    [
        ("tflite-runtime-2.14.0", "tflite", _INTERPRETER.format(module="tflite_runtime.interpreter")),
        ("tensorflow-cpu-2.16.1", "tflite", _INTERPRETER.format(module="tensorflow.lite.python.interpreter")),
        ("onnxruntime-1.18.1", "onnx", _SESSION),
    ],
    ids=["tflite-runtime 2.14", "TensorFlow Lite 2.16", "ONNX Runtime 1.18"],
)
@pytest.mark.parametrize("precision", ["int8-static", "int4"])
def test_engines_of_old_compute_the_same(tmp_path, environment, format, script, precision):
    """Static int8 is what the old TensorFlow Lite has fast kernels for, so --tflite-compat goes with it."""
    if format == "tflite" and precision == "int4":
        pytest.skip("refused: see tests/test_int4.py")
    config = tiny_config(CLASSIFY.name, embedding_size=64)
    path = written(tmp_path, config, format, compat=format == "tflite", precision=precision)
    inputs = feeds(config, batch=1, length=20)
    expected = open_engine(path, threads=1).run(inputs)["logits"]
    found = run_there(environment, script, tmp_path, **inputs)["logits"]
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_ranges_that_do_not_fit_are_one_clear_line():
    config = tiny_config(CLASSIFY.name)
    tensors = tiny_tensors(config, CLASSIFY.name)
    good = tiny_ranges(config).spans
    cases = {
        "int8-static needs the ranges of the activations: calibrate": None,
        "the ranges have no layer.ffn.input: they were collected from another model": {
            site: rows for site, rows in good.items() if site != "layer.ffn.input"
        },
        r"the ranges of pooler.input are of shape \(2, 2\)": {**good, "pooler.input": np.zeros((2, 2))},
        "the ranges of layer.ffn.output are not a minimum and a maximum": {
            **good,
            "layer.ffn.output": np.array([[0, np.nan]]),
        },
        "the ranges of layer.attention.context are not a minimum and": {
            **good,
            "layer.attention.context": np.array([[1.0, -1.0]]),
        },
    }
    for said, spans in cases.items():
        ranges = None if spans is None else ActivationRanges(spans)
        with pytest.raises(EdgeAlbertError, match=said):
            convert(config, tensors, CLASSIFY, precision="int8-static", ranges=ranges)


def test_a_row_too_small_for_its_bias_is_refused():
    config = tiny_config(CLASSIFY.name)
    tensors = dict(tiny_tensors(config, CLASSIFY.name))
    tensors["albert.pooler.weight"] = tensors["albert.pooler.weight"].copy()
    tensors["albert.pooler.weight"][3] *= 1e-9
    options = {"precision": "int8-static", "ranges": tiny_ranges(config), "format": "tflite"}
    with pytest.raises(EdgeAlbertError, match=r"pooler\.weight: a row is too small.*another precision"):
        convert(config, tensors, CLASSIFY, **options)
    convert(config, tensors, CLASSIFY, overrides={"pooler.weight": "int8"}, **options)
