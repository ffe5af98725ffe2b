"""The curves against transformers' hidden states and attentions, reading out against transformers' shorter models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiny_models import tiny_checkpoint, tiny_config, tiny_tensors  # noqa: E402
from tiny_spiece import tiny_corpus  # noqa: E402

from calibration.exits import ExitModel  # noqa: E402
from calibration.gate import read_evaluation  # noqa: E402
from calibration.texts import TextFile  # noqa: E402
from edge_albert.analysis.layers import PART, Request, measure, short_names  # noqa: E402
from edge_albert.analyze import main  # noqa: E402
from edge_albert.checkpoint import read_checkpoint, write_checkpoint  # noqa: E402
from edge_albert.errors import DataError, EdgeAlbertError, TokenizerError  # noqa: E402
from edge_albert.tasks import get_task  # noqa: E402
from edge_albert.tokenizer import load_tokenizer  # noqa: E402
from edge_albert.train_vocab import train_spiece  # noqa: E402

TEXTS = ("the baker paints the door", "a child sings", "the old farmer opens the small window in the morning", "birds")
LABELS = ("label 2", "label 0", "label 1", "label 2")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("layers") / "shared", seed=1)


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("layers") / "unshared", seed=2, num_hidden_groups=3)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.tsv"
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    return path


def theirs(folder: Path, iterations: int) -> Any:
    """Transformers' model from the folder, with so many iterations."""
    transformers = pytest.importorskip("transformers")
    cls = transformers.AlbertForSequenceClassification
    return cls.from_pretrained(folder, num_hidden_layers=iterations, attn_implementation="eager").eval()


def expected_curves(folder: Path, iterations: int) -> dict[str, np.ndarray]:
    """One text at a time, so that there is no padding; in NumPy."""
    model, tokenizer = theirs(folder, iterations), load_tokenizer(folder)
    rows: dict[str, list[np.ndarray]] = {
        "l2_distance": [],
        "angle_degrees": [],
        "output_norm": [],
        "attention_entropy": [],
    }
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).input_ids])
        with torch.no_grad():
            out = model(ids, output_hidden_states=True, output_attentions=True)
        states = [state[0].double().numpy() for state in out.hidden_states]
        x, y = np.stack(states[:-1]), np.stack(states[1:])  # (N, S, H)
        cosine = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
        probs = np.stack([attention[0].double().numpy() for attention in out.attentions])  # (N, A, S, S)
        rows["l2_distance"].append(np.linalg.norm(y - x, axis=-1))
        rows["angle_degrees"].append(np.degrees(np.arccos(cosine)))
        rows["output_norm"].append(np.linalg.norm(y, axis=-1))
        rows["attention_entropy"].append(-(probs * np.log(probs)).sum(-1).mean(axis=1))
    return {name: np.concatenate(parts, axis=1).mean(axis=1) for name, parts in rows.items()}  # over all tokens


@pytest.mark.parametrize(("name", "iterations"), [("shared", 6), ("unshared", 3)])
def test_curves_are_those_of_transformers(
    name: str, iterations: int, texts: Path, request: pytest.FixtureRequest
) -> None:
    """A model with one layer runs on to twice its three iterations; one with three layers cannot."""
    folder = request.getfixturevalue(name)
    (model,) = measure(Request((str(folder),), texts), "")["models"]
    assert model["iterations"] == 3
    expected = expected_curves(folder, iterations)
    assert set(model["curves"]) == set(expected)
    for curve, values in expected.items():
        assert len(values) == iterations
        np.testing.assert_allclose(model["curves"][curve], values, rtol=1e-4, err_msg=curve)


def test_reading_out_is_transformers_model_with_fewer_or_more_iterations(
    shared: Path, texts: Path, tmp_path: Path
) -> None:
    rows = tiny_corpus()[:60]
    tokenizer = load_tokenizer(shared)
    answers = []
    for iterations in range(1, 7):
        model = theirs(shared, iterations)
        with torch.no_grad():
            answers.append([int(model(torch.tensor([tokenizer.encode(r).input_ids])).logits.argmax()) for r in rows])
    data = tmp_path / "data.tsv"  # labelled by the model with one iteration, so that the others differ from it
    lines = [f"{text}\tlabel {answer}" for text, answer in zip(rows, answers[0], strict=True)]
    data.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    expected = [np.mean(np.equal(said, answers[0])) for said in answers]
    assert min(expected) < max(expected) == 1
    (measured,) = measure(Request((str(shared),), texts, TextFile(data)), "")["models"]
    assert measured["readout"]["metric"] == "accuracy"
    assert measured["readout"]["rows"] == len(rows)
    assert measured["readout"]["scores"] == pytest.approx(expected)


def test_command_draws_all_models_in_one_picture(
    shared: Path, unshared: Path, texts: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    models = ["--model", str(shared), str(unshared)]
    assert main(["layers", *models, "--texts", str(texts), "--data", str(data), "--output", str(out), "--quick"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["layers-readout.svg", "layers.json", "layers.svg"]
    for picture in ("layers.svg", "layers-readout.svg"):
        svg = (out / picture).read_text()
        assert ">shared<" in svg
        assert ">unshared<" in svg
    printed = capsys.readouterr().out
    assert printed.count("(as trained)") == 2
    assert printed.count("(beyond)") == 3
    assert PART.to_markdown(json.loads((out / "layers.json").read_text())) in printed


def test_pre_training_checkpoint_has_curves_and_is_not_judged(
    shared: Path, texts: Path, data: Path, tmp_path: Path
) -> None:
    config = tiny_config("text-classification")
    folder = tmp_path / "run" / "model"
    write_checkpoint(folder, config, tiny_tensors(config, None), tokenizer_folder=shared)
    bare, judged = measure(Request((str(folder), str(shared)), texts, TextFile(data)), "")["models"]
    assert bare["name"] == "run"
    assert "readout" not in bare
    assert len(bare["curves"]["l2_distance"]) == 6
    assert "readout" in judged
    with pytest.raises(EdgeAlbertError, match="no model has a head that it could judge"):
        measure(Request((str(folder),), texts, TextFile(data)), "")


def test_each_depth_is_read_by_the_head_that_was_trained_there(texts: Path, data: Path, tmp_path: Path) -> None:
    """With a head for every iteration, as the exits themselves answer; beyond the last, by the last."""
    extra = {"early_exit": {"heads": "per-iteration"}}
    folder = tiny_checkpoint(tmp_path / "exits", num_hidden_layers=3, extra=extra)
    (measured,) = measure(Request((str(folder),), texts, TextFile(data)), "")["models"]
    read, tokenizer = read_checkpoint(folder), load_tokenizer(folder)
    evaluation = read_evaluation(TextFile(data), None, read.config, get_task("text-classification"), tokenizer)
    answers = ExitModel(read.config, read.tensors, get_task("text-classification")).rows(evaluation.judged.encodings)
    gold = evaluation.judged.gold
    for depth in range(3):
        expected = np.mean([row[depth].argmax() == label for row, label in zip(answers, gold, strict=True)])
        assert measured["readout"]["scores"][depth] == pytest.approx(expected)


def test_columns_of_the_labelled_file(shared: Path, texts: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text(data.read_text().replace("text\tlabel", "body\tfolder", 1))
    words = ["layers", "--model", str(shared), "--texts", str(texts), "--data", str(other)]
    with pytest.raises(DataError, match="--text-column"):
        main(words)
    assert main([*words, "--text-column", "body", "--label-column", "folder"]) == 0


def test_names_tell_models_apart() -> None:
    assert short_names(["runs/a/model", "runs/b/model"]) == ["a", "b"]
    assert short_names(["x/seed-1/model", "y/seed-1/model"]) == ["x/seed-1", "y/seed-1"]
    assert short_names(["same", "same"]) == ["1: same", "2: same"]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_one_iteration_makes_no_curve(texts: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "one", num_hidden_layers=1)
    with pytest.raises(EdgeAlbertError, match="num_hidden_layers is 1: one iteration makes no curve"):
        main(["layers", "--model", str(folder), "--texts", str(texts)])


@pytest.mark.parametrize("content", [b"", b" \n\n\t\n", b"\xff\xfe\x00"])
def test_text_file_without_text(content: bytes, shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"empty\.txt: (holds no text|not UTF-8)"):
        main(["layers", "--model", str(shared), "--texts", str(path)])


def test_a_run_without_labels_leaves_no_picture_of_one_with(
    shared: Path, texts: Path, data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    words = ["layers", "--model", str(shared), "--texts", str(texts), "--output", str(tmp_path / "out")]
    main([*words, "--data", str(data)])
    with pytest.raises(EdgeAlbertError, match="--force"):
        main(words)
    main([*words, "--force"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["layers.json", "layers.svg"]


def test_tokenizer_of_another_model(shared: Path, texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(shared, folder)
    (folder / "spiece.model").write_bytes(train_spiece(iter(tiny_corpus()), 150))
    with pytest.raises(TokenizerError, match="150 entries, the model's vocab_size is 176: they belong to different"):
        main(["layers", "--model", str(folder), "--texts", str(texts)])


def test_label_that_the_model_lacks(shared: Path, texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.tsv"
    path.write_text("text\tlabel\nbirds\tanimal\n")
    with pytest.raises(DataError, match=r"other\.tsv:2: the model has no label 'animal'"):
        main(["layers", "--model", str(shared), "--texts", str(texts), "--data", str(path)])
