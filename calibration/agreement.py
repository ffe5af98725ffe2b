"""How far an exported file is from the float model, on real sentences.

Both see the same token ids. Reported per text and averaged: largest difference of an output, cosine of the output
vectors, and whether they say the same: the same class (for token tasks, the share of tokens; for question answering,
the same start and end), or for a sentence embedding and a regression no label at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from edge_albert.config import AlbertConfig, count_macs
from edge_albert.runtime.session import make_feeds
from edge_albert.tasks import Task
from edge_albert.tokenizer import Encoding, Tokenizer

Rows = list[np.ndarray]
Model = Callable[..., np.ndarray]  # input_ids, attention_mask, token_type_ids, each (B, S)

_BATCH = 8
_BUDGET = 20e9  # multiply-adds of the float reference: about a second on a laptop


@dataclass(frozen=True)
class Example:
    """One input of a model: the texts and what the tokenizer made of them."""

    text: str
    pair: str | None
    encoding: Encoding


@dataclass(frozen=True)
class Agreement:
    """texts: how many were compared. same_label: share in [0, 1], None for tasks without labels."""

    texts: int
    max_difference: float
    mean_cosine: float
    min_cosine: float
    same_label: float | None


def default_texts() -> list[str]:
    """320 English texts written for this project: messages, reviews, commands, news, facts."""
    lines = resources.files("calibration").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip()]


def agreement_examples(config: AlbertConfig, task: Task, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Example]:
    """The first texts as inputs of the task, as many as the float reference runs in about a second; 8 at least.

    Question answering and multiple choice get pairs; elsewhere every fourth input is one.
    """
    out: list[Example] = []
    spent = 0.0
    for text, pair in as_inputs(texts, task):
        encoding = tokenizer.encode(text, pair, max_length=config.max_position_embeddings)
        spent += count_macs(config, len(encoding.input_ids))
        if len(out) >= 8 and spent > _BUDGET:
            break
        out.append(Example(text, pair, encoding))
    return out


def as_inputs(texts: Sequence[str], task: Task) -> list[tuple[str, str | None]]:
    """Plain texts as (text, pair) of a task: each with the next one where it reads two, else every fourth."""
    always = task.name in ("question-answering", "multiple-choice")
    return [
        (text, texts[(index + 1) % len(texts)] if always or index % 4 == 3 else None)
        for index, text in enumerate(texts)
    ]


def run_reference(model: Model, encodings: Sequence[Encoding], pad_id: int, per_token: bool) -> Rows:
    """Outputs of the float model in the order of `encodings`, in batches of similar length, padding cut off again."""
    outputs: list[np.ndarray] = [np.empty(0)] * len(encodings)
    for batch, feeds in batches(encodings, pad_id):
        for index, row in zip(batch, model(**feeds), strict=True):
            outputs[index] = row[: len(encodings[index].input_ids)] if per_token else row
    return outputs


def batches(encodings: Sequence[Encoding], pad_id: int) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """(indices into `encodings`, the model's inputs) by batches of similar length, the shortest first."""
    order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].input_ids))
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        yield batch, make_feeds([encodings[i] for i in batch], pad_id)


def compare(reference: Rows, exported: Rows, task: Task) -> Agreement:
    """Compare outputs text by text. Both hold (num_labels,), (H,) or (S, num_labels) arrays in the same order."""
    differences = [float(np.abs(a - b).max()) for a, b in zip(reference, exported, strict=True)]
    cosines = [_cosine(a.ravel(), b.ravel()) for a, b in zip(reference, exported, strict=True)]
    same = [same_label(a, b, task) for a, b in zip(reference, exported, strict=True)]
    labelled = [share for share in same if share is not None]
    return Agreement(
        texts=len(reference),
        max_difference=max(differences),
        mean_cosine=float(np.mean(cosines)),
        min_cosine=min(cosines),
        same_label=float(np.mean(labelled)) if labelled else None,
    )


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else float(not (a.any() or b.any()))


def same_label(a: np.ndarray, b: np.ndarray, task: Task) -> float | None:
    """The share of labels on which two outputs of one text agree, in [0, 1]; None for tasks without labels."""
    if task.name == "question-answering":  # (S, 2): the likeliest start and end
        return float(np.mean(a.argmax(axis=0) == b.argmax(axis=0)))
    if task.head is None or a.shape[-1] == 1:
        return None
    return float(np.mean(a.argmax(axis=-1) == b.argmax(axis=-1)))
