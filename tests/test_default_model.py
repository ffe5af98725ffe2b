"""The model in the package is as good as its card says, in float and as the exported int8 file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import edge_albert
from calibration.agreement import run_reference
from calibration.reference import ReferenceModel
from edge_albert.checkpoint import read_checkpoint
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle
from edge_albert.runtime.engine import installed
from edge_albert.tasks import get_task
from edge_albert.tokenizer import load_tokenizer

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def messages(shared_data) -> tuple[list[str], np.ndarray]:
    """Texts and labels (1 for spam) of the test part, by the split of benchmarks/train_default.py."""
    pytest.importorskip("torch")  # which the training package imports
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from train_default import split_messages

    rows = split_messages(shared_data / "sms_spam" / "SMSSpamCollection")["test"]
    return [text for _, text in rows], np.array([label == "spam" for label, _ in rows])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("default") / "bundle"
    formats = tuple(name for name in ("onnx", "tflite") if installed(name))
    export_bundle(Request(source=str(DEFAULT_MODEL), output=folder, formats=formats, measure=False))
    return folder


def f1(gold: np.ndarray, found: np.ndarray) -> float:
    return 2 * int((gold & found).sum()) / int(gold.sum() + found.sum())


def float_f1(messages) -> float:
    texts, gold = messages
    checkpoint = read_checkpoint(DEFAULT_MODEL)
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    model = ReferenceModel(checkpoint.config, checkpoint.tensors, get_task("text-classification"))
    encodings = [tokenizer.encode(text, max_length=128) for text in texts]
    rows = run_reference(model, encodings, checkpoint.config.pad_token_id, per_token=False)
    return f1(gold, np.array([row.argmax() == 1 for row in rows]))


def test_it_takes_at_most_3_mb():
    assert sum(path.stat().st_size for path in DEFAULT_MODEL.iterdir()) <= 3_000_000


def test_f1_in_float(messages):
    found = float_f1(messages)
    assert found >= 0.95
    assert f"{found:.4f}" in (DEFAULT_MODEL / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("engine", ["onnx", "tflite"])
def test_f1_in_int8(messages, bundle, engine):
    if not installed(engine):
        pytest.skip(f"no {engine} engine is installed")
    texts, gold = messages
    model = edge_albert.load(bundle, engine=engine)
    found = np.array([model(text, truncate=True).label == "spam" for text in texts])
    assert abs(f1(gold, found) - float_f1(messages)) <= 0.003


def test_obvious_messages(bundle):
    model = edge_albert.load(bundle)
    assert model("Congratulations! You have won a holiday. Call now to claim your prize").label == "spam"
    assert model("Are we still on for lunch at noon?").label == "ham"


def test_split_keeps_repeated_messages_together(tmp_path: Path) -> None:
    """Every message is in one part, twins by case, digits and spelling of space count once; no corpus is needed."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import train_default

    words = ("call", "home", "win", "prize", "late", "bus", "ok", "lol", "free", "text")
    texts = [f"{a} {b} {c}" for a in words for b in words for c in words]
    twins = [f"{text.upper()}  07{i}" for i, text in enumerate(texts)]
    lines = [f"{('ham', 'spam')[i % 2]}\t{text}\n" for i, text in enumerate([*texts, *twins])]
    (tmp_path / "messages").write_text("".join(lines), encoding="utf-8")
    wanted = ["--messages", str(tmp_path / "messages"), "--work", str(tmp_path / "work")]
    assert train_default.main([*wanted, "--split-only"]) == 0
    parts = {
        name: [line.split("\t")[1] for line in (tmp_path / "work" / f"{name}.tsv").read_text().splitlines()[1:]]
        for name in ("train", "dev", "test")
    }
    assert sorted(text for part in parts.values() for text in part) == sorted(texts)
    assert [round(len(part) / 100) for part in parts.values()] == [7, 1, 2]
    with pytest.raises(EdgeAlbertError, match="name --corpus"):
        train_default.main(wanted)
