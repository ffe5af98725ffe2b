"""TensorFlow checkpoints: the container against genuine files, the names against a forward pass written by hand.

The forward passes below use TensorFlow's variables as TensorFlow does (kernels on the right, TensorFlow's scopes) and
share nothing with the mapping; transformers then runs what the mapping made of the same variables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf1_writer import masked_crc, plain_crc, write_tf1

from edge_albert.checkpoint import check_tensors, read_checkpoint, write_checkpoint
from edge_albert.checkpoint_formats.crc32c import crc32c, masked_crc32c
from edge_albert.checkpoint_formats.tf_checkpoint import read_index, read_variable
from edge_albert.checkpoint_formats.tf_names import hugging_face_names
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError, EdgeAlbertError

E, H, F, V, P = 8, 16, 32, 50, 20
CONFIG = {
    "vocab_size": V, "embedding_size": E, "hidden_size": H, "intermediate_size": F, "num_attention_heads": 2,
    "num_hidden_layers": 4, "max_position_embeddings": P, "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip
GOOGLE_INDEX = "google_albert_base_zh.model.ckpt-best"
BRIGHTMART_INDEX = "brightmart_albert_tiny_zh.albert_model.ckpt"
Variables = dict[str, np.ndarray]


def randoms(shapes: dict[str, tuple[int, ...]]) -> Variables:
    """Values of a size at which the tokens stay different through the layers."""
    rng = np.random.default_rng(0)
    scale = {name: 1.0 if name.endswith("_embeddings") else 0.15 for name in shapes}
    values = {n: scale[n] * rng.standard_normal(shape) + n.endswith("/gamma") for n, shape in shapes.items()}
    return {name: value.astype(np.float32) for name, value in values.items()}


def dense_shapes(scope: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{scope}/kernel": (inputs, outputs), f"{scope}/bias": (outputs,)}


def norm_shapes(scope: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{scope}/gamma": (size,), f"{scope}/beta": (size,)}


def common_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Both families' embeddings at `width`, pooler and pre-training heads."""
    return {
        "bert/embeddings/word_embeddings": (V, E),
        "bert/embeddings/position_embeddings": (P, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        **norm_shapes("bert/embeddings/LayerNorm", width),
        **dense_shapes("bert/pooler/dense", H, H),
        **dense_shapes("cls/predictions/transform/dense", H, width),
        **norm_shapes("cls/predictions/transform/LayerNorm", width),
        "cls/predictions/output_bias": (V,),
        "cls/seq_relationship/output_weights": (2, H),
        "cls/seq_relationship/output_bias": (2,),
    }


def google_variables(groups: int = 1, inner: int = 1) -> Variables:
    shapes = common_shapes(E) | dense_shapes("bert/encoder/embedding_hidden_mapping_in", E, H)
    for group in range(groups):
        for layer in range(inner):
            scope = f"bert/encoder/transformer/group_{group}/inner_group_{layer}"
            for projection in ("self/query", "self/key", "self/value", "output/dense"):
                shapes |= dense_shapes(f"{scope}/attention_1/{projection}", H, H)
            shapes |= dense_shapes(f"{scope}/ffn_1/intermediate/dense", H, F)
            shapes |= dense_shapes(f"{scope}/ffn_1/intermediate/output/dense", F, H)
            shapes |= norm_shapes(f"{scope}/LayerNorm", H) | norm_shapes(f"{scope}/LayerNorm_1", H)
    return randoms(shapes)


def brightmart_variables() -> Variables:
    scope = "bert/encoder/layer_shared"
    shapes = common_shapes(H) | {"bert/embeddings/word_embeddings_2": (E, H)}
    for projection in ("self/query", "self/key", "self/value", "output/dense"):
        shapes |= dense_shapes(f"{scope}/attention/{projection}", H, H)
    shapes |= dense_shapes(f"{scope}/intermediate/dense", H, F) | dense_shapes(f"{scope}/output/dense", F, H)
    shapes |= norm_shapes(f"{scope}/attention/output/LayerNorm", H) | norm_shapes(f"{scope}/output/LayerNorm", H)
    return randoms(shapes)


def google_folder(folder: Path, variables: Variables, *, name: str = "model.ckpt-best", **fields: Any) -> Path:
    write_tf1(folder / name, variables | {"global_step": np.int64(7)})
    (folder / "albert_config.json").write_text(json.dumps(CONFIG | fields))
    return folder


def error_of(source: Path, task: str | None = None) -> str:
    with pytest.raises(EdgeAlbertError) as caught:
        read_checkpoint(source, task=task)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- what the graphs compute ----------------------------------------------------------------------------------------


def dense(v: Variables, scope: str, x: np.ndarray) -> np.ndarray:
    return x @ v[f"{scope}/kernel"] + v[f"{scope}/bias"]


def norm(v: Variables, scope: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * v[f"{scope}/gamma"] + v[f"{scope}/beta"]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(v: Variables, scope: str, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(B, S, H) ► (B, S, H), two heads, before the output projection."""
    q, k, w = (
        dense(v, f"{scope}/{name}", x).reshape(*x.shape[:2], 2, H // 2).transpose(0, 2, 1, 3)
        for name in ("query", "key", "value")
    )
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(H // 2) - 10000.0 * (1 - mask[:, None, None, :])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)  # (B, 2, S, S)
    return (weights @ w).transpose(0, 2, 1, 3).reshape(x.shape)


def google_encoder(v: Variables, words: np.ndarray, rest: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x = norm(v, "bert/embeddings/LayerNorm", words + rest)
    x = dense(v, "bert/encoder/embedding_hidden_mapping_in", x)
    for layer in range(4):
        for inner in range(2):
            scope = f"bert/encoder/transformer/group_{layer // 2}/inner_group_{inner}"
            a = dense(v, f"{scope}/attention_1/output/dense", attention(v, f"{scope}/attention_1/self", x, mask))
            x = norm(v, f"{scope}/LayerNorm", x + a)
            f = gelu(dense(v, f"{scope}/ffn_1/intermediate/dense", x))
            x = norm(v, f"{scope}/LayerNorm_1", x + dense(v, f"{scope}/ffn_1/intermediate/output/dense", f))
    return x


def brightmart_encoder(v: Variables, words: np.ndarray, rest: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x = norm(v, "bert/embeddings/LayerNorm", words @ v["bert/embeddings/word_embeddings_2"] + rest)
    scope = "bert/encoder/layer_shared"
    for _ in range(4):
        a = dense(v, f"{scope}/attention/output/dense", attention(v, f"{scope}/attention/self", x, mask))
        a = norm(v, f"{scope}/attention/output/LayerNorm", a + x)
        f = dense(v, f"{scope}/output/dense", gelu(dense(v, f"{scope}/intermediate/dense", a)))
        x = norm(v, f"{scope}/output/LayerNorm", f + a)
    return x


def pretraining_outputs(
    variables: Variables, encoder: Callable[..., np.ndarray], ids: np.ndarray, types: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Masked-word logits (B, S, V) and sentence-order logits (B, 2), in float64."""
    v = {name: array.astype(np.float64) for name, array in variables.items()}
    rest = v["bert/embeddings/token_type_embeddings"][types] + v["bert/embeddings/position_embeddings"][: ids.shape[1]]
    x = encoder(v, v["bert/embeddings/word_embeddings"][ids], rest, mask)
    t = gelu(dense(v, "cls/predictions/transform/dense", x))
    t = norm(v, "cls/predictions/transform/LayerNorm", t)
    if "bert/embeddings/word_embeddings_2" in v:
        t = t @ v["bert/embeddings/word_embeddings_2"].T
    words = t @ v["bert/embeddings/word_embeddings"].T + v["cls/predictions/output_bias"]
    pooled = np.tanh(dense(v, "bert/pooler/dense", x[:, 0]))
    return words, pooled @ v["cls/seq_relationship/output_weights"].T + v["cls/seq_relationship/output_bias"]


@pytest.mark.parametrize("family", ["google", "brightmart"])
def test_transformers_computes_what_the_graph_does(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if family == "google":
        variables, encoder = google_variables(2, 2), google_encoder
        fields: dict[str, Any] = {"num_hidden_groups": 2, "inner_group_num": 2}
    else:
        variables, encoder, fields = brightmart_variables(), brightmart_encoder, {"ln_type": "postln"}
    read = read_checkpoint(google_folder(tmp_path / "tf", variables, **fields))
    write_checkpoint(tmp_path / "hf", read.config, read.tensors)
    model = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "hf").eval()

    rng = np.random.default_rng(1)
    ids, types = rng.integers(0, V, (3, 11)), rng.integers(0, 2, (3, 11))
    mask = (np.arange(11) < np.array([11, 7, 3])[:, None]).astype(np.int64)
    words, order = pretraining_outputs(variables, encoder, ids, types, mask)
    with torch.no_grad():
        theirs = model(*(torch.from_numpy(a) for a in (ids, mask, types)))
    real = mask.astype(bool)
    assert np.abs(words[0, 0] - words[0, 1]).max() > 1
    assert np.abs(order[0] - order[1]).max() > 0.05
    np.testing.assert_allclose(theirs.prediction_logits.numpy()[real], words[real], atol=2e-5)
    np.testing.assert_allclose(theirs.sop_logits.numpy(), order, atol=1e-5)


# -- the genuine index files ----------------------------------------------------------------------------------------


@pytest.fixture
def genuine(shared_data: Path) -> Path:
    return shared_data / "tf_ckpt_index"


@pytest.mark.parametrize(
    ("prefix", "count", "total"), [(GOOGLE_INDEX, 33, 42_677_296), (BRIGHTMART_INDEX, 31, 17_180_744)]
)
def test_genuine_index(genuine: Path, prefix: str, count: int, total: int) -> None:
    """total: the size of the data file, which Google's archive gives; entries fill it in key order without gaps."""
    index = read_index(genuine / prefix)
    assert len(index) == count
    end = 0
    for name, variable in index.items():
        assert variable.offset == end
        assert variable.size == (8 if name == "global_step" else 4 * math.prod(variable.shape))
        assert variable.dtype == (9 if name == "global_step" else 1)
        end += variable.size
    assert end == total
    assert index["bert/embeddings/word_embeddings"].shape == (21128, 128)


def test_genuine_checksum(genuine: Path) -> None:
    """The one value in Google's file that is known without its data: a step count of 0."""
    assert read_index(genuine / GOOGLE_INDEX)["global_step"].crc == masked_crc32c(bytes(8))


def test_genuine_names_are_those_of_these_tests(genuine: Path) -> None:
    assert read_index(genuine / GOOGLE_INDEX).keys() - {"global_step"} == google_variables().keys()
    assert read_index(genuine / BRIGHTMART_INDEX).keys() == brightmart_variables().keys()


def test_genuine_google_names_and_shapes_make_the_genuine_config(genuine: Path) -> None:
    config = AlbertConfig.from_json(genuine / "google_albert_base_zh.albert_config.json")
    index = read_index(genuine / GOOGLE_INDEX)
    zeros = {n: np.broadcast_to(np.float32(0), v.shape) for n, v in index.items() if n != "global_step"}
    check_tensors(config, hugging_face_names(zeros), None, "albert_base_zh")


def test_genuine_brightmart_archive(genuine: Path, tmp_path: Path) -> None:
    """The genuine names, shapes (but for 21 words in place of 21,128) and config, over zeros."""
    index = read_index(genuine / BRIGHTMART_INDEX)
    shapes = {name: variable.shape for name, variable in index.items() if "word_embeddings" not in name}
    small = {"bert/embeddings/word_embeddings": (21, 128), "bert/embeddings/word_embeddings_2": (128, 312)}
    shapes |= small | {"cls/predictions/output_bias": (21,)}
    write_tf1(tmp_path / "albert_model.ckpt", {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    config = json.loads((genuine / "brightmart_albert_tiny_zh.albert_config_tiny.json").read_text())
    (tmp_path / "albert_config_tiny.json").write_text(json.dumps(config | {"vocab_size": 21}))
    read = read_checkpoint(tmp_path)
    assert (read.config.embedding_size, read.config.hidden_size) == (312, 312)
    assert read.config.hidden_act == "gelu_new"
    assert read.tensors["albert.embeddings.word_embeddings.weight"].shape == (21, 312)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("prefix", [GOOGLE_INDEX, BRIGHTMART_INDEX])
def test_no_damage_of_an_index_goes_unnoticed(genuine: Path, tmp_path: Path, prefix: str, step: int) -> None:
    whole = (genuine / f"{prefix}.index").read_bytes()
    right = {name: replace(v, file=Path()) for name, v in read_index(genuine / prefix).items()}
    damaged = [whole[:size] for size in range(0, len(whole), 5 * step)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(0, len(whole), step)]
    unnoticed = 0
    for content in damaged:
        (tmp_path / "x.index").write_bytes(content)
        try:
            index = read_index(tmp_path / "x")
        except CheckpointError:
            continue
        unnoticed += 1  # in the footer's padding, the handle of the empty meta index, or that index itself
        assert {name: replace(v, file=Path()) for name, v in index.items()} == right
    assert unnoticed < 64 / step + 2


# -- the container --------------------------------------------------------------------------------------------------


def test_crc32c_vectors_of_rfc_3720() -> None:
    for data, crc in (
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ):
        assert crc32c(data) == crc


@pytest.mark.parametrize("size", [1, 2047, 2048, 4096, 4099, 65_537, 200_001])
def test_crc32c_in_lanes_equals_byte_by_byte(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert crc32c(data) == plain_crc(data)
    assert masked_crc32c(bytearray(data)) == masked_crc(data)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_variables_are_read_bit_exact(tmp_path: Path, shards: int, dtype: str) -> None:
    variables = {name: array.astype(dtype) for name, array in google_variables(3, 2).items()}
    variables |= {"scalar": np.float32(2), "empty": np.zeros((0, 3), np.float32), "many": np.arange(20_000)}
    write_tf1(tmp_path / "x", variables, shards=shards)
    read = {name: read_variable(name, variable) for name, variable in read_index(tmp_path / "x").items()}
    assert read.keys() == variables.keys()
    for name, array in variables.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()


def test_bfloat16(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    numbers = torch.randn(7, 5).to(torch.bfloat16)
    write_tf1(tmp_path / "x", {"a": numbers.view(torch.int16).numpy().view(np.uint16)}, bfloat16=True)
    assert np.array_equal(read_variable("a", read_index(tmp_path / "x")["a"]), numbers.float().numpy())


def test_damaged_data_file(tmp_path: Path) -> None:
    folder = google_folder(tmp_path / "a", google_variables())
    path = folder / "model.ckpt-best.data-00000-of-00001"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert f"{path}: is cut short, it ends before cls/seq_relationship/output_weights does" in error_of(folder)
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    assert f"{path}: is damaged: the checksum of bert/embeddings/word_embeddings does not fit" in error_of(folder)
    path.unlink()
    assert f"{path}: cannot be read (No such file or directory): the checkpoint is incomplete" in error_of(folder)
    (folder / "model.ckpt-best.index").write_bytes(b"")
    assert "model.ckpt-best.index: is no TensorFlow checkpoint index, or is cut short" in error_of(folder)


def test_partitioned_variables_are_refused(tmp_path: Path) -> None:
    folder = google_folder(tmp_path, google_variables())
    write_tf1(folder / "model.ckpt-best", google_variables(), sliced=("bert/pooler/dense/bias",))
    assert "bert/pooler/dense/bias is a partitioned variable, which cannot be read" in error_of(folder)


# -- folders --------------------------------------------------------------------------------------------------------


def test_archive_with_a_subfolder_and_a_tf_hub_module(tmp_path: Path) -> None:
    variables = google_variables()
    google_folder(tmp_path / "archive" / "albert_base", variables)
    module = tmp_path / "module"
    write_tf1(module / "variables" / "variables", {f"module/{name}": array for name, array in variables.items()})
    (module / "assets").mkdir()
    (module / "saved_model.pb").write_bytes(b"")
    (module / "assets" / "albert_config.json").write_text(json.dumps(CONFIG))
    (module / "assets" / "30k-clean.model").write_bytes(b"")
    archive, hub = read_checkpoint(tmp_path / "archive"), read_checkpoint(module)
    assert archive.folder == tmp_path / "archive" / "albert_base"
    assert hub.folder == module / "assets"
    assert hub.source == f"{module} (variables)"
    assert archive.tensors.keys() == hub.tensors.keys()
    assert all(np.array_equal(archive.tensors[name], hub.tensors[name]) for name in hub.tensors)
    kernel = variables["bert/encoder/embedding_hidden_mapping_in/kernel"]
    assert np.array_equal(hub.tensors["albert.encoder.embedding_hidden_mapping_in.weight"], kernel.T)


def test_of_several_checkpoints_the_best_else_the_last_is_read_and_named(tmp_path: Path) -> None:
    variables = google_variables()
    for step in (900, 1000):
        google_folder(tmp_path, variables | {"bert/pooler/dense/bias": np.full(H, step, np.float32)},
                      name=f"model.ckpt-{step}")  # fmt: skip
    read = read_checkpoint(tmp_path)
    assert read.source == f"{tmp_path} (model.ckpt-1000, chosen of 2 there)"
    assert read.tensors["albert.pooler.bias"][0] == 1000
    google_folder(tmp_path, variables)
    assert read_checkpoint(tmp_path).source == f"{tmp_path} (model.ckpt-best, chosen of 3 there)"


def test_folders_that_leave_a_choice_or_lack_a_config(tmp_path: Path) -> None:
    for name in ("base", "large"):
        google_folder(tmp_path / "two" / name, google_variables())
    assert "several folders in it hold a checkpoint (base, large): name one of them" in error_of(tmp_path / "two")
    base = tmp_path / "two" / "base"
    for name in ("albert_config_tiny.json", "albert_config_base.json"):
        (base / name).write_text(json.dumps(CONFIG))
    assert read_checkpoint(base).task is None  # albert_config.json is there too
    (base / "albert_config.json").unlink()
    assert "several configs (albert_config_base.json, albert_config_tiny.json): keep the one" in error_of(base)
    for path in base.glob("*.json"):
        path.unlink()
    assert "no albert_config.json beside the checkpoint" in error_of(base)


def test_config_of_tensorflow(tmp_path: Path) -> None:
    read = read_checkpoint(google_folder(tmp_path / "a", google_variables(), down_scale_factor=1))
    assert read.config.hidden_act == "gelu_new"  # TensorFlow's gelu is the tanh approximation
    assert read.config.extra["down_scale_factor"] == 1
    relu = read_checkpoint(google_folder(tmp_path / "b", google_variables(), hidden_act="relu"))
    assert relu.config.hidden_act == "relu"
    message = error_of(google_folder(tmp_path / "c", google_variables(), intermediate_size=64))
    assert "ffn.weight (32, 16), not (64, 16)" in message


# -- heads and what is no ALBERT ------------------------------------------------------------------------------------


def head(rows: int, scope: str = "") -> Variables:
    return {f"{scope}output_weights": np.ones((rows, H), np.float32), f"{scope}output_bias": np.ones(rows, np.float32)}


@pytest.mark.parametrize(
    ("extra", "wanted", "task", "name", "labels"),
    [
        (head(3), None, "text-classification", "classifier.weight", 3),
        (head(1), None, "text-regression", "classifier.weight", 1),
        (head(1), "multiple-choice", "multiple-choice", "classifier.weight", 1),
        (head(9), "token-classification", "token-classification", "classifier.weight", 9),
        (head(2, "cls/squad/"), None, "question-answering", "qa_outputs.weight", 2),
        (head(3), "sentence-embedding", "sentence-embedding", "albert.embeddings.LayerNorm.bias", 3),
        ({}, None, None, "predictions.dense.weight", 2),
    ],
)
def test_heads(tmp_path: Path, extra: Variables, wanted: str | None, task: str | None, name: str, labels: int) -> None:
    slots = {
        "bert/pooler/dense/kernel/adam_m": np.zeros((H, H), np.float32),
        "bert/pooler/dense/kernel/adam_v": np.zeros((H, H), np.float32),
        "bert/pooler/dense/bias/AdamWeightDecayOptimizer_1": np.zeros(H, np.float32),
    }
    read = read_checkpoint(google_folder(tmp_path, google_variables() | extra | slots), task=wanted)
    assert read.task == task
    assert name in read.tensors
    assert read.config.num_labels == labels
    write_checkpoint(tmp_path / "hf", read.config, read.tensors, task=read.task)
    again = read_checkpoint(tmp_path / "hf", task=task)
    assert again.tensors.keys() == read.tensors.keys()
    assert all(np.array_equal(again.tensors[n], read.tensors[n]) for n in read.tensors)


def test_what_is_no_albert_is_refused_by_name(tmp_path: Path) -> None:
    google = google_variables()
    bert = {name.replace("transformer/group_0/inner_group_0", "layer_0"): array for name, array in google.items()}
    xlnet = google | {"start_logits/dense/kernel": np.zeros((H, 1), np.float32)}
    tf2 = {"model/pooler/kernel/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(1, np.float32)}
    surplus = google | {"bert/pooler/extra/kernel": np.zeros((1, 2), np.float32)}
    for number, (variables, said) in enumerate(
        (
            (bert, "is a bert checkpoint (it holds bert/encoder/layer_0/"),
            (xlnet, "has the XLNet-type head of SQuAD 2.0 (start_logits/dense/kernel)"),
            (tf2, "is a TensorFlow 2 checkpoint, which names objects and not variables"),
            (surplus, "surplus: bert/pooler/extra/kernel"),
        )
    ):
        assert said in error_of(google_folder(tmp_path / str(number), variables))


def test_google_bert_archive_is_called_a_bert(tmp_path: Path) -> None:
    write_tf1(tmp_path / "bert_model.ckpt", {"bert/encoder/layer_0/output/dense/bias": np.zeros(4, np.float32)})
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    assert "is a bert checkpoint" in error_of(tmp_path)


def test_brightmart_that_cannot_be_folded(tmp_path: Path) -> None:
    variables = brightmart_variables()
    message = error_of(google_folder(tmp_path / "a", variables, ln_type="preln"))
    assert "ln_type 'preln': layers that normalise their input are no ALBERT" in message
    variables["bert/embeddings/word_embeddings_2"] = np.zeros((E + 1, H), np.float32)
    message = error_of(google_folder(tmp_path / "b", variables))
    assert "word_embeddings (50, 8) and word_embeddings_2 (9, 16) do not multiply to (V, 16)" in message
