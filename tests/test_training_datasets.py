"""Rows of data sets: the layouts of `datasets` on the disk, a JSON file of splits, SNIPS' folder, and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from edge_albert.errors import DataError
from edge_albert.training.data.datasets import DatasetSplit
from edge_albert.training.data.examples import Columns, any_label, label_names, read_examples
from edge_albert.training.data.rows import Source
from edge_albert.training.finetuning.question_answering import read_questions
from edge_albert.training.finetuning.tagging import read_sentences

ROWS = [("good", 1), ("bad", 0), ("fine", 1)]


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")


def labelled(package: Any) -> Any:
    features = package.Features(
        {"sentence": package.Value("string"), "label": package.ClassLabel(names=["negative", "positive"])}
    )
    columns = {"sentence": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}
    return package.Dataset.from_dict(columns, features=features)


def read(source: Source, columns: Columns | None = None, *, skip: bool = False) -> list[tuple[str, str, int | str]]:
    found = read_examples(source, columns or Columns(), any_label, skip_bad=skip)
    return [(row.text, row.label, row.line) for row in found.rows]


NAMED = [("good", "positive", 1), ("bad", "negative", 2), ("fine", "positive", 3)]


def test_folder_as_on_the_hub(package: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        labelled(package).to_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    assert read(DatasetSplit(str(tmp_path), "validation")) == NAMED
    assert len(read(DatasetSplit(str(tmp_path), "train+validation"))) == 6
    assert read(tmp_path / "data" / "train-00000-of-00001.parquet") == NAMED
    with pytest.raises(DataError, match=r"\[test\]: cannot be read \(.*test"):
        read(DatasetSplit(str(tmp_path), "test"))


def test_folder_of_save_to_disk(package: Any, tmp_path: Path) -> None:
    package.DatasetDict({"train": labelled(package)}).save_to_disk(str(tmp_path / "many"))
    labelled(package).save_to_disk(str(tmp_path / "one"))
    assert read(DatasetSplit(str(tmp_path / "many"), "train")) == NAMED
    assert read(DatasetSplit(str(tmp_path / "one"), "train")) == NAMED
    with pytest.raises(DataError, match=r"no split 'dev': it has train"):
        read(DatasetSplit(str(tmp_path / "many"), "dev"))
    with pytest.raises(DataError, match=r"no split 'validation': it was saved as one, 'train'"):
        read(DatasetSplit(str(tmp_path / "one"), "validation"))  # its rows are the training rows


def test_classes_keep_their_order(package: Any, tmp_path: Path) -> None:
    """MRPC's: F1 is that of label 1, which is "equivalent" and not the second by name."""
    feature = package.ClassLabel(names=["not_equivalent", "equivalent"])
    features = package.Features({"text": package.Value("string"), "label": feature})
    columns = {"text": ["x", "y", "z"], "label": [1, 0, 1]}
    package.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "train.parquet")
    found = read_examples(tmp_path / "train.parquet", Columns(), any_label, skip_bad=False)
    assert label_names(found.rows) == ["not_equivalent", "equivalent"]
    assert [row.label for row in found.rows] == ["equivalent", "not_equivalent", "equivalent"]


def test_labels_that_are_not_told_are_bad_rows(package: Any, tmp_path: Path) -> None:
    hidden = package.Features({"text": package.Value("string"), "label": package.ClassLabel(names=["a", "b"])})
    columns = {"text": ["x", "y"], "label": [0, -1]}
    package.Dataset.from_dict(columns, features=hidden).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"1 bad row: .*test\.parquet:2: empty label"):
        read(tmp_path / "test.parquet")
    assert read(tmp_path / "test.parquet", skip=True) == [("x", "a", 1)]


def test_tags_and_answers(package: Any, tmp_path: Path) -> None:
    names = package.Features(
        {
            "tokens": package.List(package.Value("string")),
            "ner_tags": package.List(package.ClassLabel(names=["O", "B-X"])),
        }
    )
    package.Dataset.from_dict({"tokens": [["a", "b"]], "ner_tags": [[0, 1]]}, features=names).to_parquet(
        tmp_path / "ner.parquet"
    )
    assert read_sentences(tmp_path / "ner.parquet", Columns(), skip_bad=False).rows[0].tags == ("O", "B-X")
    row = {"question": "who?", "context": "the baker", "answers": {"text": ["baker"], "answer_start": [4]}}
    package.Dataset.from_list([row]).to_parquet(tmp_path / "squad.parquet")
    assert read_questions(tmp_path / "squad.parquet", skip_bad=False).rows[0].start == 4


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "a.parquet").touch()
    for source in (DatasetSplit("glue", "train", "sst2"), tmp_path / "a.parquet"):
        with pytest.raises(DataError, match=r"needs the package datasets: pip install 'edge-albert\[datasets\]'"):
            read(source)


def test_damaged_and_missing_parquet(package: Any, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    for name in ("a.parquet", "none.parquet"):
        with pytest.raises(DataError, match=rf"{name}: (cannot be read|no such file)"):
            read(tmp_path / name)


def test_names(tmp_path: Path) -> None:
    assert DatasetSplit.parse("nyu/glue:sst2", "train") == DatasetSplit("nyu/glue", "train", "sst2")
    assert DatasetSplit.parse("imdb", "train") == DatasetSplit("imdb", "train")
    folder = tmp_path / "a:b"
    folder.mkdir()
    assert DatasetSplit.parse(str(folder), "train") == DatasetSplit(str(folder), "train")
    assert str(DatasetSplit("glue", "train", "sst2")) == "glue:sst2[train]"


def test_json_of_splits(tmp_path: Path) -> None:
    path = tmp_path / "intents.json"
    path.write_text(json.dumps({"train": [["hi", "greet"]], "oos": [["zz", "none"], {"text": "x", "label": "y"}, 3]}))
    assert read(DatasetSplit(str(path), "train+oos"), skip=True) == [
        ("hi", "greet", 1),
        ("zz", "none", 2),
        ("x", "y", 3),
    ]
    with pytest.raises(DataError, match=r"intents.json\[oos\]:3: neither an object nor \[text, label\]"):
        read(DatasetSplit(str(path), "oos"))
    with pytest.raises(DataError, match="no list under the split 'val': it has train, oos"):
        read(DatasetSplit(str(path), "val"))


def test_real_intents(shared_data: Path) -> None:
    snips = read(shared_data / "intents" / "snips" / "dev")
    labels = (shared_data / "intents" / "snips" / "dev" / "label").read_text().split()
    assert [label for _, label, _ in snips] == labels
    clinc = shared_data / "intents" / "clinc_oos" / "data_small.json"
    assert len({label for _, label, _ in read(DatasetSplit(str(clinc), "train+oos_train"))}) == 151
