"""The tasks an ALBERT is shipped for, as one table.

A task says which Hugging Face class its checkpoint comes from, which tensors its head adds, whether the pooler is used,
and what the exported graph puts out. Names follow Hugging Face's pipelines where they have one.

| task                | checkpoint class                | graph output                             |
|---------------------|---------------------------------|------------------------------------------|
| text-classification | AlbertForSequenceClassification | logits (B, num_labels)                   |
| text-regression     | AlbertForSequenceClassification | logits (B, 1)                            |
| token-classification| AlbertForTokenClassification    | logits (B, S, num_labels)                |
| question-answering  | AlbertForQuestionAnswering      | logits (B, S, 2): start, end             |
| multiple-choice     | AlbertForMultipleChoice         | logits (B, 1), one row per choice        |
| sentence-embedding  | AlbertModel, or any of the above| embedding (B, H), unit length            |
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_albert.errors import EdgeAlbertError


@dataclass(frozen=True)
class Task:
    """One row of the table above.

    head: prefix of the head's tensors in the checkpoint (`classifier` ► `classifier.weight`), None without a head.
    pooled: the head reads tanh(pooler(hidden of [CLS])) rather than the hidden states.
    per_token: the output has one row per token.
    """

    name: str
    architecture: str
    head: str | None
    pooled: bool
    per_token: bool
    output: str = "logits"


_ALL = (
    Task("text-classification", "AlbertForSequenceClassification", "classifier", pooled=True, per_token=False),
    Task("text-regression", "AlbertForSequenceClassification", "classifier", pooled=True, per_token=False),
    Task("token-classification", "AlbertForTokenClassification", "classifier", pooled=False, per_token=True),
    Task("question-answering", "AlbertForQuestionAnswering", "qa_outputs", pooled=False, per_token=True),
    Task("multiple-choice", "AlbertForMultipleChoice", "classifier", pooled=True, per_token=False),
    Task("sentence-embedding", "AlbertModel", None, pooled=False, per_token=False, output="embedding"),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}


def get_task(name: str) -> Task:
    """The task of that name; EdgeAlbertError lists the names when there is none."""
    try:
        return TASKS[name]
    except KeyError:
        raise EdgeAlbertError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}") from None
