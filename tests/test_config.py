"""config.py against transformers' AlbertConfig, and its refusals. Counts are checked in test_model.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_albert.config import PRESETS, AlbertConfig, count_parameters, preset
from edge_albert.errors import ConfigError

SMALL = AlbertConfig(hidden_size=32, num_attention_heads=4, intermediate_size=48)


def test_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    ours, theirs = AlbertConfig().to_dict(), transformers.AlbertConfig()
    for name in set(ours) - {"id2label", "label2id", "architectures"}:
        assert getattr(theirs, name) == ours[name], name
    assert theirs.id2label == AlbertConfig().id2label


def test_round_trip_through_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    shape = dict(hidden_size=48, num_attention_heads=3, num_hidden_groups=2, inner_group_num=2, hidden_act="relu",
                 layer_norm_eps=1e-6, problem_type="single_label_classification", architectures=("AlbertModel",),
                 hidden_dropout_prob=0.25, initializer_range=0.5, pad_token_id=7, tied_across_groups="ffn")  # fmt: skip
    ours = AlbertConfig(**shape, extra={"down_scale_factor": 1, "note": None}).with_labels(["ham", "spam", "é"])  # type: ignore[arg-type]
    theirs = transformers.AlbertConfig.from_dict(ours.to_dict())
    for name, value in shape.items():
        assert getattr(theirs, name) == (list(value) if isinstance(value, tuple) else value), name
    assert (theirs.id2label, theirs.label2id) == ({0: "ham", 1: "spam", 2: "é"}, {"ham": 0, "spam": 1, "é": 2})
    assert theirs.down_scale_factor == 1
    back = AlbertConfig.from_dict(theirs.to_dict())
    assert replace(back, extra={}) == replace(ours, extra={})
    assert back.extra["down_scale_factor"] == 1
    again = transformers.AlbertConfig.from_dict(back.to_dict())
    assert again.to_dict() == theirs.to_dict()


def test_unknown_fields_survive_the_file(tmp_path: Path) -> None:
    content = {"model_type": "albert", "hidden_size": 128, "net_structure_type": 0, "nested": {"ü": [1, None]}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    config = AlbertConfig.from_json(path)
    path.write_text(config.to_json(), encoding="utf-8")
    assert AlbertConfig.from_json(path) == config
    written = json.loads(path.read_text(encoding="utf-8"))
    assert {key: written[key] for key in content} == content


def test_num_labels_alone_names_labels_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    config = AlbertConfig.from_dict({"num_labels": 3})
    assert config.id2label == transformers.AlbertConfig(num_labels=3).id2label
    # and it does not stay behind to contradict the labels that come later
    assert transformers.AlbertConfig.from_dict(config.with_labels(["a", "b"]).to_dict()).num_labels == 2


def test_genuine_google_config(shared_data: Path) -> None:
    config = AlbertConfig.from_json(shared_data / "tf_ckpt_index" / "google_albert_base_zh.albert_config.json")
    assert (config.vocab_size, config.embedding_size, config.hidden_size) == (21128, 128, 768)
    assert (config.num_hidden_layers, config.hidden_act) == (12, "relu")
    assert config.extra["num_memory_blocks"] == 0


def test_groups_are_assigned_as_in_transformers() -> None:
    for layers in range(1, 49):
        for groups in range(1, layers + 1):
            config = replace(SMALL, num_hidden_layers=layers, num_hidden_groups=groups)
            used = [int(i / (layers / groups)) for i in range(layers)]  # the line in AlbertTransformer.forward
            assert [config.group_of(i) for i in range(layers)] == used
            runs = config.group_runs()
            assert (sum(runs), len(runs)) == (layers, groups)
            assert min(runs) >= 1


def test_sharing_of_the_paper() -> None:
    """Table 4 of the paper, ALBERT-base with E = 128, in whole millions."""
    base = preset("albert-base-v2")
    for sharing, millions in {"all": 12, "ffn": 38, "attention": 64, "none": 89}.items():
        assert abs(count_parameters(base.with_sharing(sharing)).total / 1e6 - millions) < 1, sharing
    assert base.with_sharing("ffn").with_sharing("all") == base
    with pytest.raises(ConfigError, match="'some' is not one of all, attention, ffn, none"):
        base.with_sharing("some")


def test_students_keep_to_their_size() -> None:
    assert count_parameters(preset("tiny")).total <= 1_500_000
    assert count_parameters(preset("mini")).total <= 5_000_000
    assert count_parameters(preset("small")).total <= 12_000_000


def test_unknown_preset_lists_the_names() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'huge'") as caught:
        preset("huge")
    assert all(name in str(caught.value) for name in PRESETS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert', not 'albert'"),
        ({"hidden_size": 0}, "hidden_size is 0: it must be a whole number"),
        ({"hidden_size": "768"}, "hidden_size is '768'"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5"),
        ({"type_vocab_size": True}, "type_vocab_size is True"),
        ({"hidden_size": 100, "num_attention_heads": 3}, "hidden_size 100 is not divisible"),
        ({"num_hidden_groups": 13}, "num_hidden_groups 13 exceeds num_hidden_layers 12"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is not one of"),
        ({"hidden_act": ["gelu"]}, "hidden_act .* is not one of"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5: it must be a number from 0"),
        ({"attention_probs_dropout_prob": "0.1"}, "attention_probs_dropout_prob is '0.1'"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
        ({"pad_token_id": 30000}, "pad_token_id 30000 is not one of the 30000 words"),
        ({"architectures": 1}, "architectures must be a list"),
        ({"tied_across_groups": "embeddings"}, "tied_across_groups 'embeddings'"),
        ({"id2label": {"a": "b"}}, "id2label must map whole numbers"),
        ({"id2label": ["a", "b"]}, "id2label must map whole numbers"),
        ({"id2label": {"0": "a", "2": "b"}}, "must number its labels 0, 1"),
        ({"id2label": {}}, "must number its labels 0, 1"),
        ({"num_labels": 0}, "num_labels is 0"),
        ([1, 2], "expected a JSON object, found list"),
    ],
)
def test_refusals_name_file_and_field(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message) as caught:
        AlbertConfig.from_json(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [(b"{", "not valid JSON"), (b"\xff\xfe", "not valid JSON")])
def test_damaged_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        AlbertConfig.from_json(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an ALBERT folder needs a config"):
        AlbertConfig.from_json(tmp_path / "config.json")
