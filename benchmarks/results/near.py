"""Which unlabelled text a task's teacher labels: the corpus' sentences nearest to the task's rows, joins, exchanges.

Near is by the encoder's vectors, which are there already (`answers`): of every sentence the cosine to the nearest of
some training rows, the longest ones. A join is two training rows with a conjunction between: SST-2's are phrases, and
its dev set has whole sentences. An exchange is of phrases (exchange.py). Nothing here looks at a
label, or at a dev or test set.
"""

from __future__ import annotations

import random

import numpy as np

from edge_albert.training.data.examples import Columns, any_label, read_examples
from edge_albert.training.distillation.lessons import read_unlabelled
from edge_albert.training.distillation.teacher import Teacher
from edge_albert.training.distillation.teacher_cache import Answers, Wanted, cached_answers
from results.data import write_lines
from results.exchange import exchanges
from results.plan import Plan, TaskPlan

ANCHORS = 4000  # rows of a task that nearness is to
BETWEEN = (" , and ", " , but ", " ; ", " -- ", " , ")
_BLOCK = 20_000


def encoder_answers(plan: Plan, encoder: Teacher) -> tuple[list[str], np.ndarray]:
    """Every sentence of the corpus, STS-B's own, and every training row, with their vectors (N, H), float16.

    The lists are those that the bases are taught from, so that each is answered once.
    """
    texts: list[str] = []
    vectors: list[np.ndarray] = []
    for files in ([plan.unlabelled, plan.own_sentences], [plan.near]):
        rows = read_unlabelled(files)
        found = cached_answers(plan.cache, encoder, [(row.text, None) for row in rows], Wanted(False, "mean"))
        texts += [row.text for row in rows]
        vectors.append(_vectors(found))
    return texts, np.concatenate(vectors)


def _vectors(answers: Answers) -> np.ndarray:
    assert answers.vectors is not None
    return answers.vectors


def choose(plan: Plan, task: TaskPlan, texts: list[str], vectors: np.ndarray) -> None:
    """Write the task's unlabelled texts, if they are not there yet. texts, vectors: as `encoder_answers` gives them."""
    if plan.task_unlabelled(task).exists():
        return
    rows = [row.text for row in read_examples(plan.file(task.name, "train"), Columns(), any_label, skip_bad=False).rows]
    place = {text: i for i, text in enumerate(texts)}
    anchors = [place[text] for text in sorted(set(rows), key=lambda text: (-len(text), text))[:ANCHORS]]
    corpus = len(read_unlabelled([plan.unlabelled]))
    picked = nearest(vectors[:corpus], vectors[anchors], task.sentences)
    made = [*joins(rows, task.joins), *exchanges(rows, task.exchanges)]
    write_lines(plan.task_unlabelled(task), [*(texts[i] for i in picked), *made])


def nearest(vectors: np.ndarray, anchors: np.ndarray, count: int) -> np.ndarray:
    """The numbers, ascending, of the `count` unit vectors (N, H) with the largest cosine to any of the anchors."""
    wide = anchors.astype(np.float32).T
    blocks = range(0, len(vectors), _BLOCK)
    cosines = np.concatenate([(vectors[i : i + _BLOCK].astype(np.float32) @ wide).max(axis=1) for i in blocks])
    return np.sort(np.argsort(-cosines, kind="stable")[:count])


def joins(rows: list[str], count: int) -> list[str]:
    """`count` texts of two rows each, the same at every call."""
    chance = random.Random(1)
    return [chance.choice(BETWEEN).join(chance.sample(rows, 2)) for _ in range(count)]
