"""A tiny pre-training run for tests: corpus, tokenizer, shards, and the command's arguments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tiny_spiece import tiny_corpus, train_tiny_spiece

SHAPE = {
    "embedding_size": 16, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}  # fmt: skip

NO_DROPOUT = [
    f"--set={field}=0" for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
]


def write_corpus(path: Path, documents: int = 288) -> Path:
    """The tiny grammar's sentences, three to a document."""
    lines = tiny_corpus()
    text = "\n\n".join("\n".join(lines[3 * i : 3 * i + 3]) for i in range(documents))
    path.write_text(text + "\n", encoding="utf-8")
    return path


def make_shards(folder: Path) -> tuple[Path, Path]:
    """(tokenizer folder, shards folder), both below `folder`."""
    from edge_albert.training.pretraining.corpus import Corpus
    from edge_albert.training.pretraining.shards import write_shards

    tokenizer = train_tiny_spiece(folder / "tokenizer").parent
    write_shards(Corpus([write_corpus(folder / "corpus.txt")]), tokenizer, folder / "shards")
    return tokenizer, folder / "shards"


def arguments(made: tuple[Path, Path], output: Path, **options: Any) -> list[str]:
    """The command's arguments for a run of 12 steps, a bit less than two epochs; `options` change or add to them."""
    recipe = {
        "steps": 12, "batch-size": 32, "micro-batch": 8, "max-length": 48, "optimizer": "adamw", "learning-rate": 2e-3,
        "checkpoint-every": 5, "log-every": 1, "seed": 3,
    }  # fmt: skip
    recipe.update({name.replace("_", "-"): value for name, value in options.items()})
    out = ["--tokenizer", str(made[0]), "--shards", str(made[1]), "--preset", "tiny", "--output", str(output)]
    for field, value in SHAPE.items():
        out += ["--set", f"{field}={value}"]
    for name, value in recipe.items():
        out += [f"--{name}", str(value)]
    return out


def losses(run: Path) -> list[tuple[int, float, float, float]]:
    """(step, MLM loss, order loss, gradient norm) of every logged step, as written: JSON keeps every bit."""
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    keys = ("step", "mlm_loss", "order_loss", "gradient_norm")
    return [tuple(r[key] for key in keys) for r in records if r["event"] == "step"]  # type: ignore[misc]


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def rewind(run: Path, copy: Path, step: int) -> Path:
    """A copy of a finished run as a kill left it after the checkpoint of `step`."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "model", ignore_errors=True)
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(checkpoint)
    return copy
