"""int4 files compute what the weights in them say, in both formats and every form, and are as small as promised."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
import pytest
from test_converters import feeds
from tiny_models import tiny_config, tiny_tensors

from calibration.reference import ReferenceModel
from converters.audit import audit_file
from converters.convert import Converted, convert
from converters.graph_files import read_model_file
from converters.quantize import (
    BLOCK_SIZES,
    BlockQuantized,
    fitting_block,
    pack_halves,
    pack_nibbles,
    quantize_blocks,
    quantize_rows,
)
from converters.tflite_reader import read_tflite
from edge_albert.config import AlbertConfig, preset
from edge_albert.errors import EdgeAlbertError, EngineError
from edge_albert.runtime.engine import open_engine
from edge_albert.sites import quantizable_weights, short_name
from edge_albert.tasks import TASKS

onnx = pytest.importorskip("onnx")
CLASSIFY = "text-classification"
FORMATS = ("onnx", "tflite")


def wide_config(**changes) -> AlbertConfig:
    """Rows that blocks of 32 and 64 divide everywhere, and blocks of 128 in the last product."""
    return tiny_config(CLASSIFY, **{"embedding_size": 64, **changes})


def written(folder: Path, config: AlbertConfig, format: str, **options) -> tuple[Path, Converted]:
    if format == "tflite":
        pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    options = {"precision": "int4", **options}
    converted = convert(config, tiny_tensors(config, CLASSIFY), TASKS[CLASSIFY], format=format, **options)
    path = folder / f"model.{format}"
    path.write_bytes(converted.content)
    return path, converted


def weight_name(name: str) -> str:
    return short_name(name).replace("_embeddings.weight", ".weight")


def as_stored(config: AlbertConfig, overrides: dict[str, str], block_size: int = 64) -> dict[str, np.ndarray]:
    """The checkpoint with every matrix replaced by what its precision makes of it."""
    out = dict(tiny_tensors(config, CLASSIFY))
    for name, weight in out.items():
        short = weight_name(name)
        if short not in quantizable_weights(config, pooled=True):
            continue
        small = short in ("embeddings.position.weight", "embeddings.token_type.weight")
        precision = overrides.get(short, "int8" if small else "int4")
        size = fitting_block(weight.shape[1], block_size)
        if precision == "int4" and size is not None:
            out[name] = quantize_blocks(weight, size).dequantize()
        elif precision in ("int4", "int8"):
            out[name] = quantize_rows(weight).dequantize()
    return out


# -- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_file_computes_with_the_weights_it_holds(tmp_path, format, unroll, block_size):
    """Against the float model on the rounded weights; what remains is the engines' rounding of activations to int8."""
    config = wide_config()
    path, _ = written(tmp_path, config, format, unroll=unroll, block_size=block_size)
    inputs = feeds(config, batch=2, length=24)
    exact = ReferenceModel(config, tiny_tensors(config, CLASSIFY), TASKS[CLASSIFY])(**inputs)
    expected = ReferenceModel(config, as_stored(config, {}, block_size), TASKS[CLASSIFY])(**inputs)
    found = open_engine(path, threads=1).run(inputs)["logits"]
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    assert np.abs(found - exact).max() > 2 * np.abs(found - expected).max()  # so that this test can tell them apart


@pytest.mark.parametrize("format", FORMATS)
def test_each_matrix_in_the_precision_asked_for(tmp_path, format):
    config = wide_config()
    overrides = {
        "embeddings.word.weight": "int8",
        "embeddings.position.weight": "int4",
        "layer.attention.key.weight": "fp32",
        "layer.ffn_output.weight": "int8",
        "pooler.weight": "fp16",
    }
    path, converted = written(tmp_path, config, format, overrides=overrides)
    schemes = {name: record.scheme for name, record in converted.weights.items()}
    assert schemes == {
        "embeddings.word.weight": "int8 per row",
        "embeddings.token_type.weight": "int8 per row",
        "embeddings.position.weight": "int4 by block of 64",
        "encoder.embedding_hidden_mapping_in.weight": "int4 by block of 64",
        "layer.attention.query.weight": "int4 by block of 64",
        "layer.attention.key.weight": "fp32",
        "layer.attention.value.weight": "int4 by block of 64",
        "layer.attention.dense.weight": "int4 by block of 64",
        "layer.ffn.weight": "int4 by block of 64",
        "layer.ffn_output.weight": "int8 per row",
        "pooler.weight": "fp16",
        "classifier.weight": "fp32",
    }
    inputs = feeds(config, batch=1, length=24)
    expected = ReferenceModel(config, as_stored(config, overrides), TASKS[CLASSIFY])(**inputs)
    found = open_engine(path, threads=1).run(inputs)["logits"]
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    assert audit_file(path, tiny_tensors(config, CLASSIFY), floor_bytes=0).repeated == {}


@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_no_block_divides_stay_int8(tmp_path, format):
    config = tiny_config(CLASSIFY)  # rows of 16 in the tables
    _, converted = written(tmp_path, config, format)
    assert converted.weights["embeddings.word.weight"].scheme == "int8 per row"
    assert converted.weights["layer.ffn.weight"].scheme == "int4 by block of 64"


@pytest.mark.parametrize("format", FORMATS)
def test_values_rounded_beforehand_are_what_the_file_holds(tmp_path, format):
    config = wide_config()
    rng = np.random.default_rng(3)
    given = BlockQuantized(
        rng.integers(-7, 8, (64, 128)).astype(np.int8), rng.uniform(0.01, 0.02, (64, 4)).astype(np.float16)
    )
    name = "layer.ffn_output.weight"
    path, converted = written(tmp_path, config, format, rounded={name: given}, block_size=32)
    assert converted.weights[name].scheme == "int4 by block of 32, error compensated"
    stored = {tensor.name: tensor for tensor in read_model_file(path).tensors}
    packed = stored[f"{name}.int4"]
    if format == "onnx":
        assert packed.values.reshape(64, 64).tolist() == pack_nibbles(given.values + np.int8(8)).tolist()
    else:
        assert packed.values.tolist() == given.values.tolist()
        assert packed.nbytes == 64 * 64
    scales = stored[f"{name}.scale" if format == "onnx" else f"{name}.int4.scale"]
    np.testing.assert_array_equal(scales.values.reshape(64, 4), given.scales)


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("unroll", [False, True])
def test_each_weight_stands_once_and_all_products_are_quantised(tmp_path, format, unroll):
    config = wide_config(num_hidden_layers=4, num_hidden_groups=2)
    path, _ = written(tmp_path, config, format, unroll=unroll)
    if format == "onnx":
        onnx.checker.check_model(onnx.load(str(path)), full_check=True)
    audit = audit_file(path, tiny_tensors(config, CLASSIFY), floor_bytes=0)
    assert audit.copies
    assert audit.repeated == {}
    assert audit.loops == (0 if unroll else 2)
    assert len(audit.float_products) == 1  # the head


def test_audit_sees_a_copy_in_another_packing(tmp_path):
    """A weight once as int4 of MatMulNBits, and once more as float."""
    config = wide_config()
    path, _ = written(tmp_path, config, "onnx")
    tensors = tiny_tensors(config, CLASSIFY)
    name = next(name for name in tensors if weight_name(name) == "layer.ffn.weight")
    model = onnx.load(str(path))
    model.graph.initializer.append(onnx.numpy_helper.from_array(tensors[name], "again"))
    onnx.save(model, str(path))
    audit = audit_file(path, tensors, floor_bytes=0)
    assert audit.repeated == {name: 2}
    assert audit.copies[name] == ("again", "layer.ffn.weight.int4")


@pytest.mark.parametrize("format", FORMATS)
def test_same_input_same_bytes(tmp_path, format):
    config = wide_config()
    contents = {written(tmp_path, config, format)[1].content for _ in range(2)}
    assert len(contents) == 1


@pytest.mark.parametrize(("format", "most"), [("onnx", 7.0e6), ("tflite", 6.6e6)])
def test_albert_base_is_as_small_as_promised(format, most):
    """The sizes that issue 6 asks for; weights of noise, which nothing can squeeze."""
    config = preset("albert-base-v2").with_labels(("a", "b"))
    converted = convert(config, noise(config), TASKS[CLASSIFY], format=format, precision="int4")
    assert len(converted.content) <= most
    assert converted.floor_bytes < len(converted.content) < 1.1 * converted.floor_bytes


def noise(config: AlbertConfig) -> dict[str, np.ndarray]:
    """Weights of every shape, quickly: no two rows are alike."""
    from edge_albert.checkpoint import expected_shapes

    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        for name, shape in expected_shapes(config, CLASSIFY).items()
    }


def test_floor_counts_every_matrix_at_its_own_precision():
    config = wide_config()
    tensors = tiny_tensors(config, CLASSIFY)
    parameters = sum(tensor.size for tensor in tensors.values())

    def floor(precision: str, **overrides: str) -> int:
        named = {name.replace("__", "."): value for name, value in overrides.items()}
        return convert(config, tensors, TASKS[CLASSIFY], precision=precision, overrides=named).floor_bytes

    assert (floor("fp32"), floor("fp16"), floor("int8")) == (4 * parameters, 2 * parameters, parameters)
    assert floor("int8", layer__ffn__weight="int4") == parameters - 64 * 128 // 2
    assert floor("int8", layer__ffn__weight="fp32") == parameters + 3 * 64 * 128
    tables = (config.max_position_embeddings + config.type_vocab_size) * 64  # stay int8
    assert floor("int4") == ceil((parameters + tables) / 2)
    tied = wide_config().with_sharing("attention")
    floors = [
        convert(tied, tiny_tensors(tied, CLASSIFY), TASKS[CLASSIFY], precision=p).floor_bytes for p in ("int8", "fp32")
    ]
    assert floors[1] == 4 * floors[0]


# -- blocks and packing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_blocks_are_rounded_within_half_a_step(block_size):
    weight = np.random.default_rng(0).standard_normal((20, 256)).astype(np.float32)
    weight[3] = 0
    weight[4, :block_size] = 1e-9  # below what float16 can say
    quantized = quantize_blocks(weight, block_size)
    assert quantized.block_size == block_size
    assert np.abs(quantized.values).max() == 7
    assert not quantized.values[3].any()
    np.testing.assert_array_equal(quantized.scales, quantized.scales.astype(np.float16))
    steps = np.repeat(quantized.scales, block_size, axis=1)
    assert (np.abs(quantized.dequantize() - weight) <= steps * 0.502).all()


def test_nibbles_are_packed_as_onnx_packs_them():
    values = np.random.default_rng(0).integers(-7, 8, (6, 64)).astype(np.int8)
    tensor = onnx.TensorProto(
        data_type=onnx.TensorProto.INT4, dims=values.shape, raw_data=pack_nibbles(values).tobytes()
    )
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), values)


def test_halves_come_back_by_arithmetic():
    values = np.random.default_rng(0).integers(-7, 8, (6, 64)).astype(np.int8)
    packed = pack_halves(values).astype(np.float32)
    assert packed.shape == (6, 32)
    right = np.floor(packed / 16)
    np.testing.assert_array_equal(np.concatenate([packed - 16 * right - 8, right], axis=1), values)


def test_fitting_block():
    assert [fitting_block(columns, 128) for columns in (128, 192, 96, 48, 16)] == [128, 64, 32, None, None]
    assert fitting_block(128, 32) == 32


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"overrides": {"layer.fnn.weight": "int8"}},
            "'layer.fnn.weight' is not a weight of this model.*layer.ffn.weight",
        ),
        ({"overrides": {"classifier.weight": "int8"}}, "'classifier.weight' is not a weight"),
        ({"overrides": {"layer.ffn.weight": "int5"}}, "precision 'int5' is not one of fp32"),
        ({"block_size": 48}, "block size 48 is not one of 32, 64, 128"),
        ({"format": "tflite", "compat": True}, "int4 does not go with --tflite-compat"),
        (
            {"precision": "int8", "overrides": {"pooler.weight": "int4"}, "format": "tflite", "compat": True},
            "int4 does not go with --tflite-compat",
        ),
        (
            {"rounded": {"layer.ffn.weight": quantize_blocks(np.ones((128, 64), np.float32), 32)}},
            "layer.ffn.weight: the rounded values are .* in blocks of 32.*round this model's weights again",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_clear_line(options, said):
    config = wide_config()
    options = {"precision": "int4", **options}
    with pytest.raises(EdgeAlbertError, match=said) as caught:
        convert(config, tiny_tensors(config, CLASSIFY), TASKS[CLASSIFY], **options)
    assert "\n" not in str(caught.value)


def test_manifest_names_the_engine_that_int4_needs(tmp_path):
    assert written(tmp_path, wide_config(), "onnx")[1].facts["needs"] == "onnxruntime>=1.18"
    assert written(tmp_path, wide_config(), "tflite")[1].facts["needs"] == "ai-edge-litert>=2.1"
    assert "needs" not in written(tmp_path, wide_config(), "tflite", precision="int8")[1].facts


@pytest.mark.parametrize(
    ("name", "version"), [("ai-edge-litert", "2.0.3"), ("tflite-runtime", "2.14.0"), ("tensorflow", "2.19.0")]
)
def test_engines_that_cannot_are_not_shown_the_file(tmp_path, monkeypatch, name, version):
    """LiteRT 2.0.3 multiplies blockwise int4 wrongly without a word; tflite-runtime 2.14 ends the process."""
    from edge_albert.runtime import tflite_engine

    path, _ = written(tmp_path, wide_config(), "tflite")
    package = tflite_engine.Package(name, version, None)  # no module: the file must not get that far
    monkeypatch.setattr(tflite_engine, "_find_package", lambda: package)
    with pytest.raises(EngineError, match=rf"{name} {version} does not multiply int4.*ai-edge-litert>=2\.1.*--int8"):
        open_engine(path, threads=1)


def test_products_say_the_version_that_engines_answering_wrongly_do_not_know(tmp_path):
    """LiteRT 1.4, which Android apps have, and 2.0.3 run version 13 and answer wrongly; 14 they refuse."""
    file = read_tflite(written(tmp_path, wide_config(), "tflite")[0])
    versions = {op.outputs[0]: op.version for op in file.operators if op.name == "FULLY_CONNECTED"}
    assert versions.pop("logits") == 5
    assert set(versions.values()) == {14}


def test_check_finds_blocks_whose_scales_lie_elsewhere(tmp_path):
    """The engine would follow the number of the scales' tensor without asking."""
    from converters.flatbuffer import write_flatbuffer
    from edge_albert.flatbuffer import FlatbufferError
    from edge_albert.tflite_format import MODEL_SCHEMA, check_model, read_model

    path, _ = written(tmp_path, wide_config(), "tflite")
    for field, value in (("scales", 100_000), ("scales", 0), ("block_size", 0), ("block_size", 48), ("zero_points", 0)):
        model = read_model(path.read_bytes(), strict=True)
        tensor = next(
            tensor for tensor in model["subgraphs"][0]["tensors"] if (tensor["quantization"] or {}).get("details")
        )
        tensor["quantization"]["details"][1][field] = value
        with pytest.raises(FlatbufferError, match=r"scales|blocks"):
            check_model(write_flatbuffer(model, MODEL_SCHEMA))


def test_reader_unpacks_int4(tmp_path):
    path, _ = written(tmp_path, wide_config(), "tflite")
    tensors = tiny_tensors(wide_config(), CLASSIFY)
    weight = next(array for name, array in tensors.items() if weight_name(name) == "layer.ffn.weight")
    found = next(c for c in read_tflite(path).constants if c.name == "layer.ffn.weight.int4")
    assert (found.dtype, found.nbytes) == ("int4", weight.size // 2)
    np.testing.assert_array_equal(found.values, quantize_blocks(weight, 64).values)


@pytest.mark.parametrize("format", FORMATS)
def test_packed_weights_from_a_cache_give_the_same_numbers(tmp_path, format):
    config = wide_config()
    path, _ = written(tmp_path, config, format)
    inputs = feeds(config, batch=1, length=20)
    expected = open_engine(path, threads=1).run(inputs)["logits"]
    for _ in range(2):
        cached = open_engine(path, threads=1, cache_dir=tmp_path / "cache")
        assert cached.packed is not None
        np.testing.assert_array_equal(cached.run(inputs)["logits"], expected)
        cached.close()
