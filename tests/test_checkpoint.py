"""Hugging Face checkpoints: transformers writes and reads beside us, and every bad input is one clear line."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from edge_albert.checkpoint import Checkpoint, check_tensors, expected_shapes, read_checkpoint, write_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError, ConfigError, EdgeAlbertError
from edge_albert.tasks import TASKS

TINY = {
    "vocab_size": 50, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 20,
}  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = AlbertConfig(**TINY).with_labels(["no", "maybe", "yes"])  # type: ignore[arg-type]

# Hugging Face class, settings of its config, the task it is read as
CLASSES: list[tuple[str, dict[str, Any], str | None]] = [
    ("AlbertModel", {}, None),
    ("AlbertForPreTraining", {}, None),
    ("AlbertForMaskedLM", {}, None),
    ("AlbertForSequenceClassification", {"num_labels": 3}, "text-classification"),
    ("AlbertForSequenceClassification", {"num_labels": 1}, "text-regression"),
    ("AlbertForTokenClassification", {"num_labels": 5, "num_hidden_groups": 2}, "token-classification"),
    ("AlbertForQuestionAnswering", {"inner_group_num": 2}, "question-answering"),
    ("AlbertForMultipleChoice", {}, "multiple-choice"),
]


def random_tensors(config: AlbertConfig, task: str | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in expected_shapes(config, task).items()}


def save(folder: Path, tensors: dict[str, np.ndarray], config: AlbertConfig = CONFIG, **fields: Any) -> Path:
    """A Hugging Face folder without our own writer; `fields` go over those of config.json, None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {key: value for key, value in (config.to_dict() | fields).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(tensors, {"format": "pt"}))
    return folder


def classification(folder: Path, **fields: Any) -> Path:
    return save(folder, random_tensors(CONFIG, "text-classification"), **fields)


def same_tensors(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and a[n].tobytes() == b[n].tobytes() for n in a)


def error_of(source: str | Path, task: str | None = None) -> str:
    with pytest.raises(EdgeAlbertError) as caught:
        read_checkpoint(source, task=task)
    message = str(caught.value)
    assert "\n" not in message
    assert str(source) in message
    return message


# -- beside transformers --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("torch", reason="torch is not installed")
    return pytest.importorskip("transformers", reason="transformers is not installed")


def their_model(transformers: Any, name: str, **fields: Any) -> Any:
    import torch

    torch.manual_seed(0)
    model = getattr(transformers, name)(transformers.AlbertConfig(**TINY, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases too, which start as zeros
            parameter.normal_(0, 0.2)
    return model


def their_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    tied = ("predictions.decoder.weight", "predictions.decoder.bias")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}
    return {
        n if n.startswith(("albert.", "pred", "sop", "class", "qa")) else f"albert.{n}": s for n, s in shapes.items()
    }


@pytest.mark.parametrize(("name", "fields", "task"), CLASSES)
def test_transformers_model_survives_read_and_write(
    transformers: Any, tmp_path: Path, name: str, fields: dict[str, Any], task: str | None
) -> None:
    import torch

    theirs = their_model(transformers, name, **fields)
    theirs.save_pretrained(tmp_path / "theirs")
    read = read_checkpoint(tmp_path / "theirs")
    assert read.task == task
    assert {n: t.shape for n, t in read.tensors.items()} == their_shapes(theirs)

    write_checkpoint(tmp_path / "ours", read.config, read.tensors, task=read.task)
    again = read_checkpoint(tmp_path / "ours")
    assert again.task == task
    assert same_tensors(read.tensors, again.tensors)

    loaded, report = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[n], tensor) for n, tensor in theirs.state_dict().items())
    auto = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert auto.architectures == [name]


@pytest.mark.parametrize("task", [t for t in TASKS if t != "sentence-embedding"])
def test_expected_shapes_are_transformers(transformers: Any, task: str) -> None:
    fields = {"num_labels": 1} if task == "text-regression" else {"num_labels": 2}
    theirs = their_model(transformers, TASKS[task].architecture, num_hidden_groups=4, inner_group_num=2, **fields)
    config = replace(CONFIG.with_labels(["a", "b"]), num_hidden_groups=4, inner_group_num=2)
    assert expected_shapes(config, task) == their_shapes(theirs)


def test_tied_groups_are_written_in_full_and_transformers_computes_the_same(transformers: Any, tmp_path: Path) -> None:
    import torch

    config = CONFIG.with_sharing("attention")
    tensors = random_tensors(config, "text-classification")
    attention = [name for name in tensors if ".attention." in name]
    tensors |= {name: tensors[re.sub(r"groups\.\d", "groups.0", name)] for name in attention}
    write_checkpoint(tmp_path / "tied", config, tensors, task="text-classification")
    assert read_checkpoint(tmp_path / "tied").config.tied_across_groups == "attention"
    loaded = transformers.AlbertForSequenceClassification.from_pretrained(tmp_path / "tied").eval()
    groups = loaded.albert.encoder.albert_layer_groups
    assert len(groups) == 4
    first, last = groups[0].albert_layers[0], groups[3].albert_layers[0]
    assert torch.equal(first.attention.query.weight, last.attention.query.weight)
    assert not torch.equal(first.ffn.weight, last.ffn.weight)

    name = "albert.encoder.albert_layer_groups.2.albert_layers.0.attention.key.bias"
    untied = tensors | {name: tensors[name] + 1}
    with pytest.raises(CheckpointError, match=f"unequal though tied: {name}$"):
        check_tensors(config, untied, "text-classification", "here")
    check_tensors(replace(config, tied_across_groups=None), untied, "text-classification", "here")
    with pytest.raises(CheckpointError, match=r"unequal though tied: .*full_layer_layer_norm"):
        check_tensors(replace(config, tied_across_groups="ffn"), tensors, "text-classification", "here")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_read_exactly(transformers: Any, tmp_path: Path, kind: str) -> None:
    import torch

    dtype = getattr(torch, kind)
    theirs = their_model(transformers, "AlbertForSequenceClassification", num_labels=3).to(dtype)
    theirs.save_pretrained(tmp_path / "half")
    torch.save(theirs.state_dict(), tmp_path / "half.bin")
    read = read_checkpoint(tmp_path / "half")
    assert {t.dtype.name for t in read.tensors.values()} == {"float16" if kind == "float16" else "float32"}
    for name, tensor in theirs.state_dict().items():
        assert np.array_equal(read.float32(name), tensor.float().numpy())

    (tmp_path / "half" / "model.safetensors").unlink()
    (tmp_path / "half.bin").rename(tmp_path / "half" / "pytorch_model.bin")
    assert same_tensors(read_checkpoint(tmp_path / "half").tensors, read.tensors)

    write_checkpoint(tmp_path / "ours", read.config, read.tensors, task=read.task)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert loaded.dtype == (torch.float16 if kind == "float16" else torch.float32)
    assert all(torch.equal(loaded.state_dict()[n].to(dtype), t) for n, t in theirs.state_dict().items())


def test_sharded_safetensors_and_every_bin(transformers: Any, tmp_path: Path) -> None:
    import torch

    theirs = their_model(transformers, "AlbertForPreTraining")
    theirs.save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    read = read_checkpoint(tmp_path / "sharded")
    assert {n: t.shape for n, t in read.tensors.items()} == their_shapes(theirs)

    state = theirs.state_dict()
    state["albert.embeddings.position_ids"] = torch.arange(20)[None]  # as older versions wrote
    names = sorted(state)
    parts = {"pytorch_model-00001-of-00002.bin": names[:9], "pytorch_model-00002-of-00002.bin": names[9:]}
    config = (tmp_path / "sharded" / "config.json").read_text()
    for folder in ("zip", "legacy", "shards"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(config)
    torch.save(state, tmp_path / "zip" / "pytorch_model.bin")
    torch.save(state, tmp_path / "legacy" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    for file, part in parts.items():
        torch.save({name: state[name] for name in part}, tmp_path / "shards" / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "shards" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for folder in ("zip", "legacy", "shards"):
        assert same_tensors(read_checkpoint(tmp_path / folder).tensors, read.tensors)


# -- tasks ----------------------------------------------------------------------------------------------------------


def test_the_task_without_architectures_comes_from_the_tensors(tmp_path: Path) -> None:
    for number, task in enumerate(("text-classification", "token-classification", "question-answering")):
        folder = save(tmp_path / str(number), random_tensors(CONFIG, task))
        assert read_checkpoint(folder).task == task
    one = CONFIG.with_labels(["score"])
    assert (
        read_checkpoint(save(tmp_path / "one", random_tensors(one, "text-regression"), one)).task == "text-regression"
    )
    bare = read_checkpoint(save(tmp_path / "bare", random_tensors(CONFIG, None)))
    assert bare.task is None
    assert "albert.pooler.weight" in bare.tensors


def test_regression_is_told_by_problem_type_and_one_output_is_needed(tmp_path: Path) -> None:
    message = error_of(classification(tmp_path / "three", problem_type="regression"))
    assert "classifier.weight (3, 16), not (1, 16)" in message
    assert "text-regression needs 1 rows, correct id2label or the task" in message


def test_what_a_task_does_not_need_is_left_out(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    extra = {
        "predictions.bias": np.zeros(50, np.float32),
        "predictions.decoder.weight": np.zeros(3, np.float32),
        "sop_classifier.classifier.weight": np.zeros(2, np.float32),
        "albert.embeddings.position_ids": np.arange(20)[None],
    }
    folder = save(tmp_path / "a", tensors | extra)
    assert same_tensors(read_checkpoint(folder).tensors, tensors)
    expected = {
        "text-classification": tensors.keys(),
        "token-classification": {n for n in tensors if ".pooler." not in n},
        "sentence-embedding": {n for n in tensors if n.startswith("albert.") and ".pooler." not in n},
    }
    for task, names in expected.items():
        assert read_checkpoint(folder, task=task).tensors.keys() == names


def test_a_head_of_another_task_is_refused(tmp_path: Path) -> None:
    folder = classification(tmp_path / "a", architectures=["AlbertForSequenceClassification"])
    message = error_of(folder, "token-classification")
    assert "AlbertForSequenceClassification, a head for text-classification, not token-classification" in message
    assert read_checkpoint(folder, task="sentence-embedding").task == "sentence-embedding"
    bare = save(tmp_path / "bare", random_tensors(CONFIG, None), architectures=["AlbertModel"])
    message = error_of(bare, "text-classification")
    assert "missing: classifier.weight, classifier.bias: it has no head for text-classification, fine-tune" in message
    with pytest.raises(EdgeAlbertError, match="unknown task 'translation': choose one of text-classification"):
        read_checkpoint(bare, task="translation")


def test_sentence_embedding_round_trip(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "sentence-embedding")
    write_checkpoint(tmp_path / "a", CONFIG, tensors, task="sentence-embedding")
    for task in (None, "sentence-embedding"):
        assert same_tensors(read_checkpoint(tmp_path / "a", task=task).tensors, tensors)


# -- bad input, each one line ---------------------------------------------------------------------------------------


def test_no_folder_a_file_and_an_empty_folder(tmp_path: Path) -> None:
    assert error_of(tmp_path / "absent") == f"{tmp_path / 'absent'}: no such folder"
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x")
    assert "is a file, and a checkpoint is a folder" in error_of(file)
    (tmp_path / "empty").mkdir()
    assert "config.json: cannot be read" in error_of(tmp_path / "empty")


def test_no_config(tmp_path: Path) -> None:
    folder = classification(tmp_path / "a")
    (folder / "config.json").unlink()
    assert "config.json: cannot be read (No such file or directory)" in error_of(folder)


def test_no_weights_names_what_is_there_instead(tmp_path: Path) -> None:
    folder = classification(tmp_path / "a")
    (folder / "model.safetensors").unlink()
    assert "no weights: model.safetensors, pytorch_model.bin" in error_of(folder)
    (folder / "tf_model.h5").write_bytes(b"x")
    (folder / "flax_model.msgpack").write_bytes(b"x")
    message = error_of(folder)
    assert "flax_model.msgpack, tf_model.h5 cannot be read: save it again with save_pretrained" in message


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_truncated_safetensors(tmp_path: Path, size: int) -> None:
    path = classification(tmp_path / "a") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert "model.safetensors: damaged or cut short" in error_of(path.parent)


def test_git_lfs_pointer(tmp_path: Path) -> None:
    folder = classification(tmp_path / "a")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 46746112\n"
    (folder / "model.safetensors").write_bytes(pointer)
    assert "is a Git LFS pointer and not the file itself: run `git lfs pull`" in error_of(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin: is a Git LFS pointer" in error_of(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(tmp_path: Path, value: float) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    tensors["albert.pooler.bias"][7] = value
    assert "holding NaN or infinity: albert.pooler.bias" in error_of(save(tmp_path / "a", tensors))


def test_label_count(tmp_path: Path) -> None:
    message = error_of(classification(tmp_path / "a", id2label={"0": "no", "1": "yes"}))
    assert "classifier.weight (3, 16), not (2, 16), classifier.bias (3,), not (2,)" in message
    assert message.endswith(": id2label names 2 labels, correct id2label or the task")


def test_sizes_that_disagree_are_listed_in_one_error(tmp_path: Path) -> None:
    message = error_of(classification(tmp_path / "a", intermediate_size=64, vocab_size=60))
    for part in (
        "word_embeddings.weight (50, 8), not (60, 8)",
        "ffn.weight (32, 16), not (64, 16)",
        "ffn_output.weight",
    ):
        assert part in message
    many = error_of(classification(tmp_path / "b", hidden_size=32))
    assert re.search(r" and \d+ more", many)
    assert len(many) < 1500


def test_missing_surplus_shape_and_dtype_in_one_error(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    del tensors["albert.pooler.bias"]
    tensors["albert.encoder.extra.weight"] = np.zeros(1, np.float32)
    tensors["classifier.bias"] = np.zeros(3, np.int64)
    tensors["albert.pooler.weight"] = np.zeros((16, 15), np.float32)
    message = error_of(save(tmp_path / "a", tensors))
    for part in (
        "missing: albert.pooler.bias;",
        "surplus: albert.encoder.extra.weight;",
        "of another shape: albert.pooler.weight (16, 15), not (16, 16);",
        "not floating point: classifier.bias (int64)",
    ):
        assert part in message


def test_half_a_pretraining_head_is_missing_the_other_half(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, None) | {"predictions.bias": np.zeros(50, np.float32)}
    assert "missing: predictions.dense.weight, predictions.dense.bias" in error_of(save(tmp_path / "a", tensors))


def test_untied_decoder(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, None)
    tied = {"predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"]}
    assert same_tensors(read_checkpoint(save(tmp_path / "tied", tensors | tied)).tensors, tensors)
    untied = {"predictions.decoder.weight": tied["predictions.decoder.weight"] + 1}
    message = error_of(save(tmp_path / "untied", tensors | untied))
    assert "untied from the word embeddings: predictions.decoder.weight" in message


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("model_type_known", [True, False])
def test_bert_and_roberta(transformers: Any, tmp_path: Path, family: str, model_type_known: bool) -> None:
    sizes = {key: value for key, value in TINY.items() if key != "embedding_size"}
    for name in (f"{family}Model", f"{family}ForSequenceClassification"):
        folder = tmp_path / name
        model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**sizes))
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        if not model_type_known:
            del config["model_type"]
            (folder / "config.json").write_text(json.dumps(config))
        message = error_of(folder)
        assert "only ALBERT checkpoints can be read" in message
        found = f"model_type is '{family.lower()}'" if model_type_known else "checkpoint (it holds "
        assert found in message


def test_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, None)
    tensors["pooler.bias"] = tensors["albert.pooler.bias"]
    assert "holds both albert.pooler.bias and pooler.bias" in error_of(save(tmp_path / "a", tensors))


def test_a_dtype_that_is_not_read(tmp_path: Path) -> None:
    header = json.dumps({"albert.x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}).encode()
    folder = classification(tmp_path / "a")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0")
    assert "albert.x is stored as F8_E4M3: save it as float32" in error_of(folder)


# -- shards ---------------------------------------------------------------------------------------------------------


def sharded(folder: Path, weight_map: Any, tensors: dict[str, np.ndarray] | None = None) -> Path:
    save(folder, {})
    data = safetensors.numpy.save(random_tensors(CONFIG, "text-classification") if tensors is None else tensors)
    (folder / "model.safetensors").rename(folder / "unused")
    (folder / "model-00001-of-00001.safetensors").write_bytes(data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    "shard", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "a\\b", "a\0b", 7]
)
def test_shards_outside_the_folder_are_refused(tmp_path: Path, shard: Any) -> None:
    message = error_of(sharded(tmp_path / "a", {"classifier.bias": shard}))
    assert "only plain file names in the same folder are read" in message


def test_bad_shards(tmp_path: Path) -> None:
    name = "model-00001-of-00001.safetensors"
    assert "which no shard holds" in error_of(sharded(tmp_path / "a", {"classifier.other": name}))
    absent = {"classifier.bias": "model-00002-of-00002.safetensors"}
    assert "00002-of-00002.safetensors: cannot be read (No such file" in error_of(sharded(tmp_path / "b", absent))
    for number, damaged in enumerate(([], None, {"a": ["b"]}, "x")):
        assert "index.json" in error_of(sharded(tmp_path / f"c{number}", damaged))
    folder = sharded(tmp_path / "d", {"classifier.bias": name, "classifier.weight": "second.safetensors"})
    (folder / "second.safetensors").write_bytes((folder / name).read_bytes())
    assert "which another shard holds too" in error_of(folder)
    assert read_checkpoint(sharded(tmp_path / "e", {"classifier.bias": name})).task == "text-classification"


# -- .bin -----------------------------------------------------------------------------------------------------------


class Runs:
    """Runs a command when it is unpickled, as an attack does."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def with_bin(folder: Path, content: bytes) -> Path:
    classification(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    return folder


def test_bin_never_runs_anything(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    attack = {"classifier.bias": Runs(f"touch {tmp_path / 'ran'}")}
    buffer = io.BytesIO()
    torch.save(attack, buffer)
    for number, content in enumerate((pickle.dumps(attack, protocol=2), buffer.getvalue())):
        message = error_of(with_bin(tmp_path / str(number), content))
        assert "pytorch_model.bin: damaged, or holds objects besides tensors" in message
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(attack))  # a plain unpickler would have run it
    assert (tmp_path / "ran").exists()


def test_damaged_bins(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, buffer)
    legacy = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, legacy, _use_new_zipfile_serialization=False)
    damaged = [b"", b"garbage", buffer.getvalue()[:-200], buffer.getvalue()[:50]]
    damaged += [legacy.getvalue()[:size] for size in range(1, 400, 19)]
    for number, content in enumerate(damaged):
        assert "pytorch_model.bin: damaged" in error_of(with_bin(tmp_path / str(number), content))
    nested = io.BytesIO()
    torch.save({"model": {"a": torch.zeros(1)}}, nested)
    assert "is not a state dict of names and tensors" in error_of(with_bin(tmp_path / "nested", nested.getvalue()))
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    assert "PyTorch's tar format of before 2017" in error_of(with_bin(tmp_path / "tar", tar.getvalue()))


def test_bin_without_torch_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = error_of(with_bin(tmp_path / "a", b"x"))
    assert "reading a .bin file needs PyTorch: pip install torch, or save the model as safetensors" in message


def test_nothing_else_imports_torch(tmp_path: Path) -> None:
    folder = classification(tmp_path / "a")
    script = (
        "import sys; from edge_albert.checkpoint import read_checkpoint, write_checkpoint;"
        "c = read_checkpoint(sys.argv[1]); write_checkpoint(sys.argv[1] + '2', c.config, c.tensors, task=c.task);"
        "print([m for m in ('torch', 'transformers', 'onnx', 'huggingface_hub', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- the hub's cache ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of huggingface_hub after downloads of one model with safetensors and one with a .bin."""
    cache = tmp_path_factory.mktemp("hub")
    for name, weights in (("safe", "model.safetensors"), ("bin", "pytorch_model.bin")):
        repository = cache / f"models--owner--{name}"
        snapshot = classification(repository / "snapshots" / COMMIT)
        for folder in ("refs", "blobs"):
            (repository / folder).mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
        (snapshot / "model.safetensors").rename(repository / "blobs" / "weights")
        (snapshot / weights).symlink_to("../../blobs/weights")  # files of a snapshot are links, as in real caches
    return cache


def test_hub_names_without_a_network(hub_cache: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    script = """
import sys
from edge_albert.checkpoint import read_checkpoint
from edge_albert.errors import EdgeAlbertError
from edge_albert.checkpoint_formats.hub import fetch
c = read_checkpoint("owner/safe")
print(c.task, c.source, c.folder, len(c.tensors))
print(fetch("owner/bin") / "pytorch_model.bin")
for name in ("owner/unknown", "unknown"):
    try:
        read_checkpoint(name)
    except EdgeAlbertError as error:
        print(error)
"""
    environment = os.environ | {"HF_HUB_CACHE": str(hub_cache), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=hub_cache)
    safe, binary, *unknown = done.stdout.splitlines()
    assert safe == f"text-classification owner/safe {hub_cache / 'models--owner--safe' / 'snapshots' / COMMIT} 27"
    assert Path(binary).is_file()
    assert len(unknown) == 2
    for name, message in zip(("owner/unknown", "unknown"), unknown, strict=True):
        assert message.startswith(f"{name}: no such folder here, and no such model in the Hugging Face hub's cache")


def test_what_cannot_be_a_hub_name_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for source in ("./albert", "../albert", "/no/albert", "a/b/c", "~/albert", "a\\b", "https://hub/albert"):
        assert error_of(source) == f"{source}: no such folder"
    assert "needs huggingface_hub: pip install huggingface-hub" in error_of("owner/unknown")


# -- writing --------------------------------------------------------------------------------------------------------


def test_write_refuses_an_existing_folder_and_replaces_it_by_force(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    folder = tmp_path / "out"
    write_checkpoint(folder, CONFIG, tensors, task="text-classification")
    (folder / "stale").write_text("x")
    with pytest.raises(EdgeAlbertError, match=r"already exists and is not empty: .*--force"):
        write_checkpoint(folder, CONFIG, tensors, task="text-classification")
    assert (folder / "stale").exists()
    write_checkpoint(folder, CONFIG, tensors, task="text-classification", force=True)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    write_checkpoint(tmp_path / "a", CONFIG, tensors, task="text-classification")
    write_checkpoint(tmp_path / "b", CONFIG, dict(reversed(tensors.items())), task="text-classification")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_write_never_leaves_a_checkpoint_that_cannot_be_read(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    large = tensors | {"classifier.bias": np.full(3, 1e5, np.float32)}
    with pytest.raises(CheckpointError, match=r"holding NaN or infinity: classifier.bias"):
        write_checkpoint(tmp_path / "out", CONFIG, large, task="text-classification", dtype="float16")
    del tensors["classifier.bias"]
    with pytest.raises(CheckpointError, match=r"missing: classifier.bias"):
        write_checkpoint(tmp_path / "out", CONFIG, tensors, task="text-classification")
    assert list(tmp_path.iterdir()) == []


def test_write_converts_to_float16_and_says_so(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    config = replace(CONFIG, extra={"torch_dtype": "float32", "kept": [1]})
    write_checkpoint(tmp_path / "out", config, tensors, task="text-classification", dtype="float16")
    data = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (data["dtype"], data.get("torch_dtype"), data["kept"]) == ("float16", None, [1])
    read = read_checkpoint(tmp_path / "out")
    assert same_tensors(read.tensors, {n: t.astype(np.float16) for n, t in tensors.items()})


def test_write_accepts_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, "text-classification")
    strided = {n: np.repeat(t, 2, axis=0)[::2] if t.ndim == 1 else np.asfortranarray(t) for n, t in tensors.items()}
    write_checkpoint(tmp_path / "out", CONFIG, strided, task="text-classification")
    assert same_tensors(read_checkpoint(tmp_path / "out").tensors, tensors)


def test_write_copies_the_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "30k-clean.model").write_bytes(b"pieces")
    (source / "tokenizer_config.json").write_text("{}")
    (source / "notes.txt").write_text("not copied")
    tensors = random_tensors(CONFIG, None)
    write_checkpoint(tmp_path / "out", CONFIG, tensors, tokenizer_folder=source)
    assert (tmp_path / "out" / "spiece.model").read_bytes() == b"pieces"
    names = ["config.json", "model.safetensors", "spiece.model", "tokenizer_config.json"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty: holds no tokenizer: spiece.model or vocab.txt"):
        write_checkpoint(tmp_path / "other", CONFIG, tensors, tokenizer_folder=tmp_path / "empty")
    assert not (tmp_path / "other").exists()


def test_replacing_the_folder_that_the_tokenizer_comes_from(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, None)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "spiece.model").write_bytes(b"pieces")
    write_checkpoint(tmp_path / "out", CONFIG, tensors, tokenizer_folder=tmp_path / "out", force=True)
    assert (tmp_path / "out" / "spiece.model").read_bytes() == b"pieces"


def test_config_errors_come_through(tmp_path: Path) -> None:
    folder = classification(tmp_path / "a", hidden_size=15)
    with pytest.raises(ConfigError, match=r"config.json: hidden_size 15 is not divisible"):
        read_checkpoint(folder)


def test_float32_is_contiguous_and_names_what_is_missing(tmp_path: Path) -> None:
    array = np.ones((3, 4), np.float16).T
    checkpoint = Checkpoint(CONFIG, {"a": array}, "here", tmp_path, None)
    assert checkpoint.float32("a").dtype == np.float32
    assert checkpoint.float32("a").flags.c_contiguous
    with pytest.raises(CheckpointError, match="here: holds no b"):
        checkpoint.float32("b")
