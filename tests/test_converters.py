"""The exported graph computes what transformers computes, in every form, and holds each weight once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, tiny_config, tiny_tensors

from converters.audit import audit_file
from converters.convert import convert
from converters.quantize import quantize_rows, relative_error
from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError, EngineError
from edge_albert.runtime.engine import open_engine
from edge_albert.tasks import TASKS

onnx = pytest.importorskip("onnx")
PRECISIONS = ("fp32", "fp16", "int8")  # int4: tests/test_int4.py; int8-static: tests/test_static_int8.py
LENGTHS = (1, 2, 16, 64)


def write(folder: Path, config: AlbertConfig, task: str, **options) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(convert(config, tiny_tensors(config, task), TASKS[task], **options).content)
    return path


def feeds(config: AlbertConfig, batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random ids and segments; each row but the first is padded by another amount."""
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        mask[row, max(1, length - row) :] = 0
    return {
        "input_ids": rng.integers(0, config.vocab_size, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


def transformers_output(config: AlbertConfig, task: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The same weights in transformers' own class."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    hf_config = transformers.AlbertConfig(**{k: v for k, v in config.to_dict().items() if k != "model_type"})
    name = TASKS[task].architecture
    model = getattr(transformers, name)(hf_config).eval()
    state = {
        (key.removeprefix("albert.") if name == "AlbertModel" else key): torch.from_numpy(value)
        for key, value in tiny_tensors(config, task).items()
    }
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert all("pooler" in key for key in missing)
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    with torch.no_grad():
        if task == "multiple-choice":
            return model(**{key: value[:, None] for key, value in tensors.items()}).logits.numpy()
        out = model(**tensors)
        if task == "question-answering":
            return torch.stack([out.start_logits, out.end_logits], dim=-1).numpy()
        if task == "sentence-embedding":
            mask = tensors["attention_mask"][..., None]
            mean = (out.last_hidden_state * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1).numpy()
        return out.logits.numpy()


def kept(output: np.ndarray, task: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Without the rows of padding, whose values mean nothing."""
    return output[inputs["attention_mask"] == 1] if TASKS[task].per_token else output


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("unroll", [False, True])
def test_fp32_equals_transformers(tmp_path, task, unroll):
    config = tiny_config(task)
    engine = open_engine(write(tmp_path, config, task, precision="fp32", unroll=unroll), threads=1)
    for length in LENGTHS:
        inputs = feeds(config, batch=3, length=length)
        found = engine.run(inputs)[TASKS[task].output]
        expected = transformers_output(config, task, inputs)
        np.testing.assert_allclose(kept(found, task, inputs), kept(expected, task, inputs), atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"hidden_act": "relu"},
        {"num_hidden_layers": 5, "num_hidden_groups": 2},
        {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
        {"num_hidden_layers": 1},
        {"num_hidden_groups": 3},
        {"embedding_size": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize("unroll", [False, True])
def test_every_shape_of_albert_equals_transformers(tmp_path, changes, unroll):
    config = tiny_config("text-classification", **changes)
    path = write(tmp_path, config, "text-classification", precision="fp32", unroll=unroll)
    inputs = feeds(config, batch=2, length=16)
    found = open_engine(path, threads=1).run(inputs)["logits"]
    np.testing.assert_allclose(found, transformers_output(config, "text-classification", inputs), atol=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_file_passes_full_check_and_holds_each_weight_once(tmp_path, task, unroll, precision):
    config = tiny_config(task, num_hidden_layers=4, num_hidden_groups=2)
    tensors = tiny_tensors(config, task)
    path = write(tmp_path, config, task, precision=precision, unroll=unroll)
    onnx.checker.check_model(onnx.load(str(path)), full_check=True)
    audit = audit_file(path, tensors, floor_bytes=0)
    assert audit.copies
    assert audit.repeated == {}
    assert audit.loops == (0 if unroll else 2)
    if precision == "int8":  # only the head is left in float
        assert len(audit.float_products) == (TASKS[task].head is not None)


def test_tied_groups_stand_once(tmp_path):
    config = tiny_config("text-classification").with_sharing("attention")
    tensors = tiny_tensors(config, "text-classification")
    audit = audit_file(write(tmp_path, config, "text-classification", precision="int8"), tensors, floor_bytes=0)
    assert audit.repeated == {}
    attention = [name for name in audit.copies if ".attention." in name]
    assert len(attention) == 4  # query, key, value, dense of three groups, stored once
    assert len([name for name in audit.copies if ".ffn" in name]) == 6


def test_int8_stays_close_and_fp16_closer(tmp_path):
    config = replace(TINY, hidden_size=128, intermediate_size=512).with_labels(("a", "b", "c"))
    inputs = feeds(config, batch=1, length=32)
    outputs = {}
    for precision in PRECISIONS:
        path = write(tmp_path, config, "text-classification", precision=precision)
        outputs[precision] = open_engine(path, threads=1).run(inputs)["logits"]
    scale = np.abs(outputs["fp32"]).max()
    assert 0 < np.abs(outputs["fp16"] - outputs["fp32"]).max() < 5e-3 * scale
    assert 0 < np.abs(outputs["int8"] - outputs["fp32"]).max() < 0.1 * scale


def test_sizes_follow_precision(tmp_path):
    config = tiny_config("text-classification", hidden_size=256, intermediate_size=1024)
    sizes = {
        p: write(tmp_path, config, "text-classification", precision=p).stat().st_size for p in ("fp32", "fp16", "int8")
    }
    assert sizes["fp16"] < 0.53 * sizes["fp32"]
    assert sizes["int8"] < 0.30 * sizes["fp32"]


def test_unrolling_adds_nodes_and_no_weights(tmp_path):
    config = tiny_config("text-classification", num_hidden_layers=12, hidden_size=256, intermediate_size=1024)
    loop = write(tmp_path, config, "text-classification").stat().st_size
    weights = sum(t.size for t in tiny_tensors(config, "text-classification").values())
    unrolled = write(tmp_path, config, "text-classification", unroll=True).stat().st_size
    assert loop < unrolled < loop + weights / 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_input_same_bytes(tmp_path, precision):
    config = tiny_config("text-classification")
    first = write(tmp_path, config, "text-classification", precision=precision).read_bytes()
    assert write(tmp_path, config, "text-classification", precision=precision).read_bytes() == first


def test_names_are_those_of_the_checkpoint(tmp_path):
    model = onnx.load(str(write(tmp_path, tiny_config("text-classification"), "text-classification")))
    names = {tensor.name for tensor in model.graph.initializer}
    assert {
        "embeddings.word.weight.int8",
        "layer.ffn.weight.int8",
        "layer.attention.query_key_value.weight.int8",
    } <= names
    assert [value.name for value in model.graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    assert "layer.attention" in {node.name for node in body.node}


def test_unknown_precision_and_format_are_refused():
    config = tiny_config("text-classification")
    tensors = tiny_tensors(config, "text-classification")
    with pytest.raises(EdgeAlbertError, match="int2"):
        convert(config, tensors, TASKS["text-classification"], precision="int2")
    with pytest.raises(EdgeAlbertError, match="coreml"):
        convert(config, tensors, TASKS["text-classification"], format="coreml")


# -- quantisation -----------------------------------------------------------------------------------------------------


def test_rows_are_quantised_within_half_a_step():
    weight = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    weight[7] = 0
    quantized = quantize_rows(weight)
    assert quantized.values.dtype == np.int8
    assert np.abs(quantized.values).max() == 127
    assert not quantized.values[7].any()
    assert (np.abs(quantized.dequantize() - weight) <= quantized.scale[:, None] * 0.5001).all()


def test_relative_error_of_a_known_case():
    assert relative_error(np.array([[3.0, 4.0]]), np.array([[3.0, 3.0]])) == pytest.approx(0.2)
    assert relative_error(np.zeros((2, 2)), np.zeros((2, 2))) == 0


# -- the audit, on files we did not write -----------------------------------------------------------------------------


def test_audit_counts_the_copies_of_a_file_that_has_two(tmp_path):
    """What the common route leaves behind: a weight once as int8, transposed, and once as float."""
    weight = np.random.default_rng(1).standard_normal((48, 64)).astype(np.float32)
    quantized = quantize_rows(weight)
    unsigned = (quantized.values.astype(np.int16) + 128).astype(np.uint8)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    graph = onnx.helper.make_graph(
        nodes,
        "two",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 48])],
        [
            onnx.numpy_helper.from_array(np.ascontiguousarray(weight.T), "w"),
            onnx.numpy_helper.from_array(unsigned, "q"),
        ],
    )
    path = tmp_path / "two.onnx"
    onnx.save(onnx.helper.make_model(graph), str(path))
    audit = audit_file(path, {"layer.weight": weight, "other": weight[::-1].copy()}, floor_bytes=0)
    assert audit.copies == {"layer.weight": ("q", "w"), "other": ()}
    assert audit.repeated == {"layer.weight": 2, "other": 0}
    assert audit.float_products == ("product",)


def test_audit_refuses_what_is_no_model(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x08\x07garbage" * 50)
    with pytest.raises(EngineError, match=r"broken\.onnx"):
        audit_file(path, {}, floor_bytes=0)
