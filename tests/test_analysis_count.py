"""Counting: every formula against built models, transformers' among them, and PyTorch's flop counter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from edge_albert.analysis import count  # noqa: E402
from edge_albert.analyze import main  # noqa: E402
from edge_albert.config import PRESETS, AlbertConfig, preset  # noqa: E402
from edge_albert.errors import ConfigError, EdgeAlbertError  # noqa: E402
from edge_albert.model import build_model  # noqa: E402

SMALL = replace(preset("tiny"), vocab_size=300, max_position_embeddings=64, num_hidden_layers=3)


def theirs(config: AlbertConfig, kind: str = "AlbertModel") -> Any:
    """Transformers' model of that shape, without memory for its weights."""
    with torch.device("meta"):
        return getattr(transformers, kind)(transformers.AlbertConfig(**config.to_dict(), attn_implementation="eager"))


def their_bert(shape: count.Shape) -> Any:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = {name: getattr(shape.config, name) for name in names}
    with torch.device("meta"):
        return transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation="eager"))


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_parameters_of_transformers_models(name: str) -> None:
    model, counted = theirs(preset(name)), count.Shape(preset(name)).parameters()
    assert counted.total == parameters(model)
    assert counted.embedding == parameters(model.embeddings)
    assert counted.projection == parameters(model.encoder.embedding_hidden_mapping_in)
    assert counted.layers == parameters(model.encoder.albert_layer_groups)
    assert counted.pooler == parameters(model.pooler)


@pytest.mark.parametrize("size", ["base", "large"])
def test_bert_has_the_parameters_of_transformers_bert(size: str) -> None:
    assert count.bert(size).parameters().total == parameters(their_bert(count.bert(size)))


def test_published_numbers_of_bert() -> None:
    """What the model cards of bert-base-uncased and bert-large-uncased are loaded as: 109,482,240 and 335,141,888."""
    assert count.bert("base").parameters().total == 109_482_240
    assert count.bert("large").parameters().total == 335_141_888


def test_heads_have_the_parameters_of_transformers_heads() -> None:
    config = SMALL.with_labels(["a", "b", "c"])
    encoder, heads = count.Shape(config).parameters().total, count.count_heads(config)
    both = heads["masked words"] + heads["sentence order"]
    two = config.with_labels(["first", "second"])  # transformers gives these heads num_labels outputs
    assert encoder + both == parameters(theirs(two, "AlbertForPreTraining"))
    assert encoder + heads["classifier"] == parameters(theirs(config, "AlbertForSequenceClassification"))
    pooled = encoder - count.Shape(config).parameters().pooler
    assert pooled + heads["question answering"] == parameters(theirs(two, "AlbertForQuestionAnswering"))


@pytest.mark.parametrize("sharing", ["attention", "ffn"])
def test_half_shared_layers_are_counted_once(sharing: str) -> None:
    """No model of transformers ties half a layer: ours does, whose numbers tests/test_model.py holds to theirs."""
    config = SMALL.with_sharing(sharing)
    assert count.Shape(config).parameters().total == parameters(build_model(config))


def test_savings_are_those_of_built_models() -> None:
    config = preset("albert-base-v2")
    bert = count.Shape(replace(count.bert("base").config, vocab_size=config.vocab_size))
    shared = replace(config, embedding_size=config.hidden_size)
    projection = count.Shape(shared).parameters().projection
    assert count.count_savings(config) == {
        "neither": parameters(their_bert(bert)),
        "factorised": parameters(theirs(config.with_sharing("none"))),
        "shared": parameters(theirs(shared)) - projection,
        "both": parameters(theirs(config)),
    }
    assert count.count_savings(bert.config)["both"] == count.count_savings(config)["both"]  # to 128, as in the paper


def test_table_1_of_the_paper() -> None:
    """BERT's, and ALBERT base and large round to the paper's millions; xlarge and xxlarge are known not to."""
    rows = count.measure({}, "")["paper_table_1"]
    rounded = {row["name"]: (row["paper_millions"], round(row["parameters"] / 1e6)) for row in rows}
    assert rounded == {
        "BERT base": (108, 108), "BERT large": (334, 334), "ALBERT base": (12, 12), "ALBERT large": (18, 18),
        "ALBERT xlarge": (60, 59), "ALBERT xxlarge": (235, 223),
    }  # fmt: skip


# -- multiply-adds and activations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 16, 64])
@pytest.mark.parametrize("name", ["albert", "bert", "ours"])
def test_multiply_adds_are_those_of_the_flop_counter(name: str, length: int) -> None:
    config = replace(SMALL, inner_group_num=2, num_hidden_groups=3) if name == "ours" else SMALL
    shape = count.Shape(config)
    if name == "bert":
        shape = count.Shape(replace(config, embedding_size=config.hidden_size), projected=False)
    model = {"albert": theirs, "ours": lambda c: build_model(c).to("meta")}.get(name, lambda _: their_bert(shape))(
        config
    )
    ids = torch.ones((2, length), dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    assert 2 * 2 * shape.macs(length) == counter.get_total_flops()  # two sequences, a multiply-add is two


class Written(TorchDispatchMode):
    """The sizes of what matrix products write."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.sizes.append(out.numel())
        return out


@pytest.mark.parametrize(("batch", "length"), [(1, 16), (3, 40)])
def test_activations_are_what_matrix_products_write(batch: int, length: int) -> None:
    model = theirs(SMALL).eval()
    projection, pooler = (batch * n * SMALL.hidden_size for n in (length, 1))
    with Written() as written, torch.no_grad():
        model(torch.ones((batch, length), dtype=torch.long, device="meta"))
    counted = count.count_activations(SMALL, batch, length)
    assert sum(written.sizes) == counted.all_iterations + projection + pooler
    assert max(written.sizes) == counted.largest
    assert counted.all_iterations == SMALL.num_hidden_layers * counted.one_iteration


# -- the command -------------------------------------------------------------------------------------------------------


def test_command_counts_a_shape_of_the_users_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(SMALL.to_json())
    assert main(["count", "--config", str(folder), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["shapes"]["mine"]["parameters"]["total"] == parameters(theirs(SMALL))
    assert record["shapes"]["mine"]["bytes"]["int4"] == round(parameters(theirs(SMALL)) / 2)
    assert set(record["shapes"]["mine"]["macs"]) == {"16"}  # it has 64 positions
    assert {"seed", "commit", "machine", "command"} <= set(record)
    assert main(["count", "--config", str(folder / "config.json")]) == 0
    assert "| mine |" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["bert-base", "albert-base-v2"])
def test_a_users_shape_replaces_none_of_ours(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(SMALL.to_json())
    assert main(["count", "--config", str(folder), str(folder), "--json"]) == 0
    shapes = json.loads(capsys.readouterr().out)["shapes"]
    assert shapes[name]["parameters"]["total"] > 10e6
    mine = [shapes[f"{name} ({number})"]["parameters"]["total"] for number in (2, 3)]
    assert mine == [parameters(theirs(SMALL))] * 2


def test_a_berts_config_is_not_counted_as_an_alberts(tmp_path: Path) -> None:
    path = tmp_path / "bert_config.json"
    said = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522}
    path.write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"bert_config\.json: has neither model_type nor embedding_size"):
        main(["count", "--config", str(path)])


def test_command_writes_numbers_and_picture_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    main(["count", "--output", str(out)])
    assert sorted(path.name for path in out.iterdir()) == ["count.json", "count.svg"]
    with pytest.raises(EdgeAlbertError, match=r"count\.json: exists already.*--force"):
        main(["count", "--output", str(out)])
    (out / "count-mine.svg").write_text("somebody's own")
    main(["count", "--output", str(out), "--force"])
    assert (out / "count-mine.svg").read_text() == "somebody's own"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EdgeAlbertError, match="file: is a file: name a folder with --output"):
        main(["count", "--output", str(tmp_path / "file")])
    assert (tmp_path / "file").read_text() == "mine"


def test_hidden_size_not_divisible_by_heads(tmp_path: Path) -> None:
    """One line that names file and field, status 2, no traceback."""
    bad = tmp_path / "config.json"
    bad.write_text(json.dumps({**SMALL.to_dict(), "num_attention_heads": 5}))
    with pytest.raises(ConfigError, match="not divisible by num_attention_heads 5"):
        main(["count", "--config", str(bad)])
    command = [sys.executable, "-m", "edge_albert.analyze", "count", "--config", str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"edge_albert: error: {bad}: hidden_size 192 is not divisible")
    assert done.stderr.count("\n") == 1


def test_document_without_a_place(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = tmp_path / "doc.md"
    document.write_text("# nothing here\n")
    with pytest.raises(EdgeAlbertError, match="no place for count"):
        main(["count", "--output", str(tmp_path / "out"), "--document", str(document)])
    assert document.read_text() == "# nothing here\n"
    assert not (tmp_path / "out").exists(), "said before anything is measured"
    with pytest.raises(EdgeAlbertError, match="--document needs --output"):
        main(["count", "--document", str(document)])


def test_without_the_drawing_library_the_extra_is_named(tmp_path: Path) -> None:
    """Before anything is measured: one line, status 2."""
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('gone', name='matplotlib')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "edge_albert.analyze", "count", "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert (
        done.stderr
        == "edge_albert: error: the package matplotlib is not installed: pip install 'edge-albert[report]'\n"
    )
    assert not (tmp_path / "out").exists()
