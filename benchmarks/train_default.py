"""Make the model in the package, `edge_albert/default_model`: a small ALBERT that tells spam from ordinary SMS.

    python benchmarks/train_default.py --messages SMSSpamCollection --corpus CORPUS --work runs/default

Three of this project's own commands, one after the other: `train_vocab` and `pretrain` on a corpus of English prose,
then `finetune` on the messages. About half an hour on one core; a run that was stopped goes on where it was. The
result lies in WORK/model; `--install` puts it into the package with its model card.

The split. The collection repeats itself: the same message under other numbers, spellings of case and space. Messages
whose letters alone are equal are one group, of which the first is used. The sha256 of the letters says where it goes:
of ten parts two are the test set, one is the dev set. So no test message has a twin elsewhere, and no file is needed.
The seeds and settings were chosen on the dev set; the test set chose nothing.

The vocabulary and the pre-training see the corpus alone, never the messages: no word of theirs can become a piece.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

from edge_albert.atomic import atomic_folder
from edge_albert.checkpoint import read_checkpoint
from edge_albert.cli import run_command
from edge_albert.config import count_macs, count_parameters
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporter import DEFAULT_MODEL
from edge_albert.training.data.examples import Columns, any_label, read_examples

PARTS = {"test": (0, 1), "dev": (2,), "train": (3, 4, 5, 6, 7, 8, 9)}
SHIPPED = ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json")
VOCABULARY = ("--vocab-size", "8000")
PRETRAINING = (
    "--preset", "tiny", "--set", "embedding_size=64", "--set", "hidden_size=128", "--set", "num_attention_heads=2",
    "--set", "intermediate_size=512", "--set", "hidden_dropout_prob=0", "--set", "attention_probs_dropout_prob=0",
    "--max-length", "64", "--batch-size", "128", "--micro-batch", "64", "--steps", "1000", "--optimizer", "adamw",
    "--learning-rate", "2e-3", "--warmup", "0.05", "--seed", "1", "--checkpoint-every", "200",
)  # fmt: skip
FINE_TUNING = (
    "--task", "text-classification", "--text-column", "text", "--label-column", "label", "--epochs", "8",
    "--lr", "4e-4", "--batch-size", "32", "--patience", "8", "--max-length", "128", "--metric", "f1", "--dtype", "fp16",
    "--seed", "1",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/train_default.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--messages", type=Path, required=True, help="the UCI SMS Spam Collection, one file")
    out.add_argument("--corpus", type=Path, help="folder of .txt or .txt.xz files")
    out.add_argument("--work", type=Path, required=True, help="folder for everything on the way")
    out.add_argument("--split-only", action="store_true", help="write train.tsv, dev.tsv and test.tsv, and stop")
    out.add_argument("--install", action="store_true", help="replace the model in the package")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the three commands, those already done left out; returns the exit status."""
    options = parser().parse_args(argv)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    parts = split_messages(options.messages)
    for name, rows in parts.items():
        lines = [f"{label}\t{text}\n" for label, text in rows]
        (work / f"{name}.tsv").write_text("label\ttext\n" + "".join(lines), encoding="utf-8")
    if options.split_only:
        return 0
    if options.corpus is None:
        raise EdgeAlbertError("name --corpus, the text to pre-train on, or give --split-only")
    vocabulary, run, model = work / "vocab", work / "pretrained", work / "model"
    if not vocabulary.exists():
        _command("train_vocab", options.corpus, *VOCABULARY, "--output", vocabulary)
    if (run / "run.json").exists():
        _command("pretrain", "--resume", run)
    else:
        _command("pretrain", options.corpus, "--tokenizer", vocabulary, *PRETRAINING, "--output", run)
    files = [word for name in ("train", "dev", "test") for word in (f"--{name}", work / f"{name}.tsv")]
    _command("finetune", "--model", run / "model", *files, *FINE_TUNING, "--output", model, "--force")
    figures = json.loads((model / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    print(json.dumps({name: figures[name] for name in ("dev", "test")}))
    if options.install:
        install(model, parts, figures)
    return 0


def split_messages(path: Path) -> dict[str, list[tuple[str, str]]]:
    """The collection's messages (label, text) by part, duplicates left out, in the order of the file."""
    parts: dict[str, list[tuple[str, str]]] = {name: [] for name in PARTS}
    seen: set[str] = set()
    for row in read_examples(path, Columns(text="2", label="1", header=False), any_label, skip_bad=False).rows:
        letters = re.sub(r"[\W\d_]+", "", row.text.casefold())
        if letters in seen:
            continue
        seen.add(letters)
        tenth = int(hashlib.sha256(letters.encode()).hexdigest()[:8], 16) % 10
        part = next(name for name, tenths in PARTS.items() if tenth in tenths)
        parts[part].append((row.label, row.text))
    return parts


def _command(name: str, *words: object) -> None:
    done = subprocess.run([sys.executable, "-m", f"edge_albert.{name}", *map(str, words)], check=False)
    if done.returncode:
        raise EdgeAlbertError(f"python -m edge_albert.{name} ended with status {done.returncode}")


# -- the package's copy -----------------------------------------------------------------------------------------------


def install(model: Path, parts: dict[str, list[tuple[str, str]]], figures: dict) -> None:
    """Put the model into the package, with a card that says what was just measured."""
    card = Path(__file__).with_name("default_model_card.md").read_text(encoding="utf-8")
    with atomic_folder(DEFAULT_MODEL, force=True) as folder:
        for name in SHIPPED:
            (folder / name).write_bytes((model / name).read_bytes())
        (folder / "README.md").write_text(card.format_map(facts(model, parts, figures)), encoding="utf-8")


def facts(model: Path, parts: dict[str, list[tuple[str, str]]], figures: dict) -> dict[str, str]:
    """What the card's template asks for."""
    config = read_checkpoint(model).config
    rows = {name: len(part) for name, part in parts.items()}
    spam = {name: sum(label == "spam" for label, _ in part) for name, part in parts.items()}
    out = {f"{name}_rows": str(rows[name]) for name in rows} | {f"{name}_spam": str(spam[name]) for name in rows}
    for part in ("dev", "test"):
        out |= {f"{part}_{name}": f"{figures[part][name]:.4f}" for name in ("f1", "accuracy", "matthews")}
    f1 = figures["test"]["f1"]
    out["test_f1_error"] = f"{math.sqrt(f1 * (1 - f1) / spam['test']):.3f}"
    out["parameters"] = f"{count_parameters(config, head_outputs=2).total:,}"
    out["macs"] = f"{count_macs(config, 32, head_outputs=2) / 1e6:.0f}"
    out["bytes"] = f"{sum((model / name).stat().st_size for name in SHIPPED) / 1e6:.2f}"
    return out


if __name__ == "__main__":
    run_command(main)
