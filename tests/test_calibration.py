"""Collecting: what transformers' own layers see, in a file that only its own model may use; and `calibrate`."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibration_helpers import plant_outliers, sentences, tiny_source, write_rows
from safetensors.numpy import load_file, save_file

from calibration.agreement import run_reference
from calibration.collect import Calibration, collect, read_calibration, weights_hash
from calibration.ranges import METHODS
from calibration.reference import ReferenceModel
from calibration.sensitivity import compare_cost
from calibration.texts import MOST_TEXTS, TextFile, TextSet, calibration_set, encode
from converters.convert import convert
from edge_albert.bundle import to_json
from edge_albert.calibrate import main
from edge_albert.errors import CheckpointError, DataError, EdgeAlbertError
from edge_albert.exporting.source import Source
from edge_albert.runtime.engine import open_engine
from edge_albert.runtime.session import make_feeds
from edge_albert.sites import activation_sites

pytest.importorskip("onnx")
SITES = {  # transformers' module ► what goes into it
    "encoder.embedding_hidden_mapping_in": "embeddings.projection.input",
    "attention.query": "layer.attention.input",
    "attention.dense": "layer.attention.context",
    "layers.0.ffn": "layer.ffn.input",
    "ffn_output": "layer.ffn_output.input",
    "pooler": "pooler.input",
}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Source:
    return tiny_source(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def calibration(given) -> Calibration:
    return collect(given.checkpoint, given.task, texts_of(given, sentences(40)))


def texts_of(given: Source, texts: list[str]) -> TextSet:
    return TextSet("texts.txt", len(texts), [encode(t, None, given.checkpoint.config, given.tokenizer) for t in texts])


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_every_site_and_iteration_is_what_transformers_sees(given, calibration):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AlbertForSequenceClassification.from_pretrained(given.checkpoint.folder).eval()
    seen: dict[str, list[list[np.ndarray]]] = {site: [] for site in SITES.values()}

    def hook(site: str, calls: list[np.ndarray]):
        return lambda module, inputs: calls.append(inputs[0].detach().reshape(-1, inputs[0].shape[-1]).numpy())

    for encoding in texts_of(given, sentences(40)).encodings:
        handles, calls = [], {site: [] for site in SITES.values()}
        for name, module in model.named_modules():
            for ending, site in SITES.items():
                if name.endswith(ending):
                    handles.append(module.register_forward_pre_hook(hook(site, calls[site])))
        with torch.no_grad():
            model(**{key: torch.from_numpy(value) for key, value in make_feeds([encoding], 0).items()})
        for handle in handles:
            handle.remove()
        for site, arrays in calls.items():
            seen[site].append(arrays)
    for site, texts in seen.items():
        recorded = calibration.sites[site]["iterations"]
        assert len(recorded) == len(texts[0]), site
        for iteration, facts in enumerate(recorded):
            values = np.concatenate([calls[iteration] for calls in texts])
            assert facts["min"] == pytest.approx(values.min(), abs=1e-4)
            assert facts["max"] == pytest.approx(values.max(), abs=1e-4)
            width = facts["histogram"]["limit"] / 2048
            assert facts["percentiles"]["99"] == pytest.approx(np.percentile(values, 99), abs=2 * width)
            assert sum(facts["histogram"]["counts"]) == values.size


def test_every_site_is_there(given, calibration):
    wanted = activation_sites(given.checkpoint.config, pooled=True)
    assert set(calibration.sites) == set(wanted)
    for site, times in wanted.items():
        assert len(calibration.sites[site]["iterations"]) == max(1, times)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_have_sites_of_their_own(tmp_path, groups):
    found = tiny_source(tmp_path / "groups", num_hidden_layers=3, num_hidden_groups=groups)
    sites = collect(found.checkpoint, found.task, texts_of(found, sentences(4))).sites
    runs = found.checkpoint.config.group_runs()
    names = ["layer.ffn.input", *(f"layer.{group}.0.ffn.input" for group in range(1, groups))]
    assert [len(sites[name]["iterations"]) for name in names] == list(runs)


def test_shared_ranges_cover_every_iteration(calibration):
    for site, entry in calibration.sites.items():
        lows, highs = zip(*(part["ranges"]["minmax"] for part in entry["iterations"]), strict=True)
        assert entry["shared"]["ranges"]["minmax"] == [min(lows), max(highs)], site
    per_iteration = calibration.ranges("mse", per_iteration=True)
    shared = calibration.ranges("mse", per_iteration=False)
    assert per_iteration.spans["layer.ffn.input"].shape == (3, 2)
    assert shared.spans["layer.ffn.input"].shape == (1, 2)


def test_planted_outlier_channels_are_found(tmp_path):
    planted = plant_outliers(tmp_path / "planted", gain=30, channel=11)
    sites = collect(planted.checkpoint, planted.task, texts_of(planted, sentences(20))).sites
    for site in ("layer.attention.input", "layer.ffn.input"):
        assert [channel for channel, _ in sites[site]["shared"]["outlier_channels"]] == [11]
    assert sites["layer.attention.context"]["shared"]["outlier_channels"] == []


def test_the_better_range_wins_in_the_engine_and_for_its_reason(tmp_path):
    """A channel of 30 times the others' size carries most of what the next product reads. Entropy sees one value in 64
    and cuts it off; min-max and the squared error keep it. So entropy's file must be the worst, and it must be the cut
    that makes it so."""
    planted = plant_outliers(tmp_path / "planted", gain=30)
    found = collect(planted.checkpoint, planted.task, texts_of(planted, sentences(100)))
    encodings = texts_of(planted, sentences(60, seed=1)).encodings
    config, tensors, task = planted.checkpoint.config, planted.checkpoint.tensors, planted.task
    expected = run_reference(ReferenceModel(config, tensors, task), encodings, 0, per_token=False)
    losses = {}
    for method in METHODS:
        path = tmp_path / f"{method}.onnx"
        ranges = found.ranges(method, per_iteration=True)
        path.write_bytes(convert(config, tensors, task, precision="int8-static", ranges=ranges).content)
        engine = open_engine(path, threads=1)
        rows = [np.array(engine.run(make_feeds([encoding], 0))["logits"][0]) for encoding in encodings]
        losses[method] = compare_cost(expected, rows, task).loss
    assert losses["entropy"] > 1.5 * max(losses["minmax"], losses["mse"], losses["percentile"])
    part = found.sites["layer.attention.input"]["iterations"][-1]
    (channel, peak) = part["outlier_channels"][0]
    assert channel == 5
    assert max(np.abs(part["ranges"]["entropy"])) < 0.8 * peak
    assert max(np.abs(part["ranges"]["mse"])) > 0.8 * peak


def test_a_model_whose_activations_overflow_is_named(given):
    tensors = dict(given.checkpoint.tensors)
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    tensors[name] = tensors[name] * np.float32(1e38)
    with np.errstate(all="ignore"), pytest.raises(CheckpointError, match=r"layer.ffn.output is not finite"):
        collect(replace(given.checkpoint, tensors=tensors), given.task, texts_of(given, sentences(2)))


# -- the file ----------------------------------------------------------------------------------------------------------


def stored(calibration: Calibration, path: Path, **changes) -> Path:
    path.write_text(to_json({**calibration.content, **changes}), encoding="utf-8")
    return path


def test_a_file_gives_back_what_was_collected(given, calibration, tmp_path):
    path = stored(calibration, tmp_path / "calibration.json")
    assert path.stat().st_size < 150_000
    found = read_calibration(path, given.checkpoint, given.task)
    for method in METHODS:
        spans = found.ranges(method, per_iteration=True).spans
        for site, span in calibration.ranges(method, per_iteration=True).spans.items():
            np.testing.assert_array_equal(spans[site], span)


def test_another_models_file_is_refused(given, calibration, tmp_path):
    other = tiny_source(tmp_path / "other", seed=1)
    path = stored(calibration, tmp_path / "calibration.json")
    with pytest.raises(DataError, match="another model"):
        read_calibration(path, other.checkpoint, other.task)
    assert weights_hash(other.checkpoint) != weights_hash(given.checkpoint)


def test_one_changed_weight_is_another_model(given, calibration, tmp_path):
    tensors = dict(given.checkpoint.tensors)
    tensors["albert.pooler.bias"] = tensors["albert.pooler.bias"] + np.float32(1e-3)
    with pytest.raises(DataError, match="another model"):
        read_calibration(
            stored(calibration, tmp_path / "calibration.json"), replace(given.checkpoint, tensors=tensors), given.task
        )


def drop_site(content: dict) -> None:
    del content["sites"]["layer.ffn.input"]


def drop_iteration(content: dict) -> None:
    content["sites"]["layer.ffn.input"]["iterations"].pop()


def turn_range(content: dict) -> None:
    content["sites"]["layer.ffn.input"]["shared"]["ranges"]["mse"].reverse()


def spoil_sensitivity(content: dict) -> None:
    content["sensitivity"] = {"texts": 3}


@pytest.mark.parametrize("damage", [drop_site, drop_iteration, turn_range, spoil_sensitivity])
def test_damaged_files_are_refused(given, calibration, tmp_path, damage):
    content = json.loads(to_json(calibration.content))
    damage(content)
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="damaged"):
        read_calibration(path, given.checkpoint, given.task)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "schema"), ('{"schema": "other"}', "schema is not"), (None, "cannot be read")],
)
def test_files_of_another_kind_are_refused(given, tmp_path, content, message):
    path = tmp_path / "calibration.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_calibration(path, given.checkpoint, given.task)


def test_a_newer_file_is_refused(given, calibration, tmp_path):
    with pytest.raises(DataError, match="schema_version is 99"):
        read_calibration(stored(calibration, tmp_path / "c.json", schema_version=99), given.checkpoint, given.task)


# -- the texts ---------------------------------------------------------------------------------------------------------


def set_of(given: Source, path: Path) -> TextSet:
    return calibration_set(TextFile(path), given.checkpoint.config, given.task, given.tokenizer)


def test_the_projects_own_sentences_are_the_default(given):
    found = calibration_set(None, given.checkpoint.config, given.task, given.tokenizer)
    assert len(found.examples) >= 300
    assert found.warning is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", "the blue door\n\na small dog\n"),
        ("t.tsv", "text\nthe blue door\na small dog\n"),
        ("t.tsv", "label\ttext\nlabel 1\tthe blue door\nlabel 0\ta small dog\n"),
        ("t.csv", 'text,other\n"the blue door",1\n"a small dog",2\n'),
        ("t.jsonl", '{"text": "the blue door"}\n{"text": "a small dog"}\n'),
    ],
)
def test_every_form_of_text_is_read(given, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    found = set_of(given, tmp_path / name)
    assert [example.text for example in found.examples] == ["the blue door", "a small dog"]
    assert found.warning is not None
    assert "fewer than 16" in found.warning


def test_a_large_set_is_sampled_evenly(given, tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n".join(f"the blue door {number}" for number in range(3 * MOST_TEXTS)))
    found = set_of(given, path)
    assert (len(found.examples), found.offered) == (MOST_TEXTS, 3 * MOST_TEXTS)
    assert found.examples[0].text.endswith(" 0")
    assert found.examples[-1].text.endswith(f" {3 * MOST_TEXTS - 1}")


def test_pairs_of_an_embedding_model_are_two_texts(tmp_path):
    given = tiny_source(tmp_path / "embedding", "sentence-embedding")
    path = write_rows(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore", [("the blue door", "a small dog", 2.5)])
    assert [(example.text, example.pair) for example in set_of(given, path).examples] == [
        ("the blue door", None),
        ("a small dog", None),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", "\n \n", "holds no text"),
        ("empty.tsv", "text\tlabel\n", "holds no usable row"),
        ("absent.txt", None, "cannot be read"),
        ("latin.txt", b"caf\xe9", "not UTF-8"),
        ("stars.tsv", "text\tlabel\nthe door\t4.5\n", r"stars.tsv:2: the model has no label '4.5', only label 0"),
        ("other.tsv", "text\tlabel\nthe door\tlabel 1\na dog\tspam\n", r"other.tsv:3: the model has no label 'spam'"),
        ("columns.tsv", "review\nthe blue door\n", "--text-column"),
    ],
)
def test_sets_of_another_task_are_refused(given, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(EdgeAlbertError, match=message):
        set_of(given, tmp_path / name)


def test_single_texts_are_no_set_for_question_answering(tmp_path):
    given = tiny_source(tmp_path / "questions", "question-answering")
    (tmp_path / "t.txt").write_text("the blue door\n")
    with pytest.raises(DataError, match="question-answering reads two"):
        set_of(given, tmp_path / "t.txt")
    squad = write_rows(tmp_path / "t.tsv", "question\tcontext", [("who painted?", "the baker painted the door")])
    assert set_of(given, squad).examples[0].pair == "the baker painted the door"


@pytest.mark.parametrize(
    ("task", "name", "content", "first"),
    [
        (
            "question-answering",
            "squad.json",
            json.dumps({"data": [{"paragraphs": [{"context": "the baker painted", "qas": [
                {"id": "1", "question": "who?", "answers": [{"text": "the baker", "answer_start": 0}]}]}]}]}),
            ("who?", "the baker painted"),
        ),
        (
            "multiple-choice",
            "race.jsonl",
            '{"article": "the blue door", "question": "it is", "options": ["blue", "open"], "answer": "A"}',
            ("the blue door", "it is blue"),
        ),
        ("token-classification", "ner.jsonl", '{"tokens": ["a", "dog"], "tags": ["O", "B-X"]}', ("a dog", None)),
        ("token-classification", "ner.conll", "a O\ndog B-X\n\nnobody O\n", ("a dog", None)),
        ("token-classification", "plain.jsonl", '{"text": "a dog"}', ("a dog", None)),
    ],
)  # fmt: skip
def test_a_tasks_own_files_are_read(tmp_path, task, name, content, first):
    pytest.importorskip("torch")
    given = tiny_source(tmp_path / "model", task)
    (tmp_path / name).write_text(content)
    example = set_of(given, tmp_path / name).examples[0]
    assert (example.text, example.pair) == first


def test_numbers_are_labels_where_nobody_named_them(tmp_path):
    given = tiny_source(tmp_path / "unnamed", id2label={0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    unnamed = replace(given.checkpoint, config=given.checkpoint.config.with_labels(["LABEL_0", "LABEL_1", "LABEL_2"]))
    path = write_rows(tmp_path / "t.tsv", "text\tlabel", [("the blue door", 2)])
    found = calibration_set(TextFile(path), unnamed.config, given.task, given.tokenizer)
    assert len(found.examples) == 1


# -- the command -------------------------------------------------------------------------------------------------------


def test_calibrate_writes_a_file_that_is_read_again(given, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("\n".join(sentences(20)))
    out = tmp_path / "out"
    arguments = ["--model", str(given.checkpoint.folder), "--data", str(tmp_path / "t.txt"), "--output", str(out)]
    assert main(arguments) == 0
    assert sorted(path.name for path in out.iterdir()) == ["calibration.json", "report.md", "sensitivity.svg"]
    printed = capsys.readouterr().out
    for words in ("layer.attention.context", "ffn_output.weight", "collect  20 of 20 texts of t.txt"):
        assert words in printed
    found = read_calibration(out / "calibration.json", given.checkpoint, given.task)
    assert found.sensitivity is not None
    assert found.sensitivity.texts == 20
    cells = [e for e in ElementTree.parse(out / "sensitivity.svg").iter() if e.tag.endswith("rect")]
    assert len(cells) == 6 * 4  # matrices of the layer × (three iterations and all of them)
    assert "prefers-color-scheme:dark" in (out / "sensitivity.svg").read_text()
    with pytest.raises(EdgeAlbertError, match="--force"):
        main(arguments)


def test_calibrate_as_json_says_nothing_else(given, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the blue door\n")
    words = ["--model", str(given.checkpoint.folder), "--data", str(tmp_path / "t.txt"), "--no-sensitivity", "--json"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert "only 1 texts" in printed.err


def test_calibrate_needs_neither_torch_nor_leaves_anything_on_bad_input(given, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from edge_albert.cli import run_command; from edge_albert.calibrate import main\n"
        "run_command(lambda _: main(sys.argv[1:]))"
    )
    words = ["--model", str(given.checkpoint.folder), "--data", "absent.txt", "--output", "out"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "edge_albert: error: absent.txt: cannot be read (No such file or directory)\n"
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_weight_file_is_bad_input(given, tmp_path):
    tensors = load_file(given.checkpoint.folder / "model.safetensors")
    tensors["albert.pooler.weight"] = np.full_like(tensors["albert.pooler.weight"], np.nan)
    folder = tmp_path / "nan"
    folder.mkdir()
    for path in given.checkpoint.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"albert.pooler.weight"):
        main(["--model", str(folder), "--output", str(tmp_path / "out")])
