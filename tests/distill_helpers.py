"""A tiny distillation for tests: teachers of ours and of transformers, rows of the tiny grammar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tiny_models import TINY, tiny_tensors
from tiny_spiece import tiny_corpus, train_tiny_spiece

from edge_albert.checkpoint import write_checkpoint

SUBJECTS = ("a small dog", "my neighbour", "nobody", "the baker")


def rows(count: int, *remainders: int) -> list[tuple[str, str]]:
    """Sentences of the tiny grammar, those whose number mod 7 is one of `remainders`: who is it about?"""
    found = [(line, subject) for line in tiny_corpus() for subject in SUBJECTS if line.startswith(subject)]
    return [row for i, row in enumerate(found) if i % 7 in (remainders or (0,))][:count]


def write_rows(path: Path, found: Sequence[tuple[str, str]]) -> Path:
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in found), encoding="utf-8")
    return path


def write_texts(path: Path, count: int) -> Path:
    path.write_text("".join(f"{text}\n" for text, _ in rows(count, 4, 5, 6)), encoding="utf-8")
    return path


def write_pairs(path: Path, count: int = 12) -> Path:
    """Pairs with scores, as STS-B has them."""
    texts = [text for text, _ in rows(2 * count, 1, 3)]
    lines = [f"{texts[2 * i]}\t{texts[2 * i + 1]}\t{i % 5}\n" for i in range(count)]
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(lines), encoding="utf-8")
    return path


def albert_teacher(folder: Path, labels: Sequence[str] = SUBJECTS, task: str = "text-classification") -> Path:
    """Random weights with a head that has clear opinions; the rows of the head belong to the labels' sorted order."""
    config = TINY.with_labels(list(labels))
    tensors = tiny_tensors(config, task)
    if "classifier.weight" in tensors:
        place = [sorted(labels).index(label) for label in labels]
        for name, scale in (("classifier.weight", 4), ("classifier.bias", 1)):
            tensors[name] = (scale * tensors[name])[place]
    spiece = train_tiny_spiece(folder.parent / f"{folder.name}-tokenizer")
    write_checkpoint(folder, config, tensors, task=task, tokenizer_folder=spiece.parent)
    return folder


def bert_teacher(folder: Path, labels: Sequence[str] = SUBJECTS, kind: str = "BertForSequenceClassification") -> Path:
    """A tiny BERT as transformers writes it, with a WordPiece vocabulary of the tiny grammar's words."""
    import torch
    import transformers

    folder.mkdir()
    words = sorted({word for line in tiny_corpus() for word in _words(line)})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=48, num_hidden_layers=4, num_attention_heads=3, intermediate_size=64,
        max_position_embeddings=64, id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)},
        initializer_range=0.3,
    )  # fmt: skip
    getattr(transformers, kind)(config).eval().save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def _words(line: str) -> list[str]:
    return "".join(char if char.isalnum() else f" {char} " for char in line).split()


def same_weights(first: Path, second: Path) -> bool:
    a, b = ((folder / "model.safetensors").read_bytes() for folder in (first, second))
    return a == b


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
