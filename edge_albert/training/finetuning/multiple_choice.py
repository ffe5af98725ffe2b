"""Multiple choice: a context, a question and its options, one of which is right (RACE, SWAG, COPA).

Each option is read with the context as a pair, [CLS] context [SEP] question option [SEP], as ALBERT does for RACE (Lan
et al. 2020, appendix A.3); where the question has a gap, "_", the option stands in it. On the device the same is
`model(context, [option_text(question, option) …])`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edge_albert.errors import DataError
from edge_albert.model import AlbertForTask
from edge_albert.tokenizer import Tokenizer
from edge_albert.training.data.batches import Inputs, on_device, padded
from edge_albert.training.data.examples import Examples, collect, text_of
from edge_albert.training.data.rows import Place, Row, Rows, Source, read_text, structured_rows
from edge_albert.training.finetuning.objectives import Objective
from edge_albert.training.metrics import glue

_GAP = re.compile(r"(?<!\w)_+(?!\w)")  # not one within a word
# The names of a row's fields, the first that is there: RACE's, then those usual elsewhere.
_CONTEXT, _OPTIONS, _ANSWER = ("article", "context"), ("options", "choices"), ("answer", "label")


@dataclass(frozen=True)
class ChoiceQuestion:
    """A context, what is asked about it ("" where the options go on from the context), and which option is right."""

    context: str
    question: str
    options: tuple[str, ...]
    answer: int
    line: Place


def option_text(question: str, option: str) -> str:
    """The second text of the pair: the question with the option in its gap (a run of underscores), or behind it."""
    if _GAP.search(question):
        return _GAP.sub(lambda gap: option, question)
    return f"{question} {option}" if question else option


def read_choices(source: Source, *, skip_bad: bool) -> Examples[ChoiceQuestion]:
    """RACE's folder of .txt files, or rows with article or context, question, options or choices, and answer or label:
    .jsonl, .parquet, a data set's split.

    The answer is a letter, A for the first option, or a number from 0. A question is bad when its context or an option
    is empty, when it has fewer than two options, and when the answer names none. Raises DataError as `collect` does.
    """
    return collect(source, structured_rows(source, _race_rows), _parse, skip_bad=skip_bad)


def _race_rows(folder: Path) -> Rows:
    """Files with {"article", "questions": […], "options": [[…]], "answers": […]} ► a row for each question."""
    files = sorted(folder.rglob("*.txt")) if folder.is_dir() else []
    if not files:
        raise DataError(f"{folder}: not a folder with RACE's .txt files: name one, or a .jsonl or .parquet file")
    for path in files:
        place = path.relative_to(folder).as_posix()
        try:
            passage = json.loads(read_text(path))
            columns = [passage[name] for name in ("questions", "options", "answers")]
            for number, (question, options, answer) in enumerate(zip(*columns, strict=True), start=1):
                row = {"article": passage["article"], "question": question, "options": options, "answer": answer}
                yield f"{place} question {number}", row
        except (ValueError, KeyError, TypeError) as error:
            yield place, f"not RACE's JSON ({type(error).__name__}: {error})"


def _parse(row: Row, place: Place) -> ChoiceQuestion | str:
    context, said, answer = (_first(row, names) for names in (_CONTEXT, _OPTIONS, _ANSWER))
    options = tuple(map(text_of, said)) if isinstance(said, list) else ()
    if not text_of(context).strip():
        return f"empty {' or '.join(_CONTEXT)}"
    if len(options) < 2:
        return f"{len(options)} options: at least 2 are needed"
    if not all(option.strip() for option in options):
        return "empty option"
    number = _answer_number(answer)
    if number is None or number not in range(len(options)):
        return f"answer {answer!r} names none of {len(options)} options"
    return ChoiceQuestion(text_of(context), text_of(row.get("question")), options, number, place)


def _first(row: Row, names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if name in row), None)


def _answer_number(answer: Any) -> int | None:
    """ "B", 1 or "1" ► 1"""
    said = text_of(answer).strip()
    if re.fullmatch("[A-Za-z]", said):
        return ord(said.upper()) - ord("A")
    return int(said) if re.fullmatch("[0-9]{1,3}", said) else None


# -- what the model gets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedChoices:
    """N questions; input_ids and token_type_ids hold an array for each option. labels: (N,) the right option."""

    input_ids: list[list[np.ndarray]]
    token_type_ids: list[list[np.ndarray]]
    labels: np.ndarray
    lines: np.ndarray
    pad_id: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([max(map(len, options)) for options in self.input_ids])

    def collate(self, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
        """Inputs (B, C, S) for the most options C, `is_option` (B, C) true where there is one, and labels (B,).

        A missing option is a lone [CLS]: attention needs a token to look at.
        """
        most = max(len(self.input_ids[row]) for row in rows)
        ids, types, is_option = [], [], np.zeros((len(rows), most), dtype=bool)
        for i, row in enumerate(rows):
            count = len(self.input_ids[row])
            missing = most - count
            ids += [*self.input_ids[row], *[self.input_ids[row][0][:1]] * missing]
            types += [*self.token_type_ids[row], *[self.token_type_ids[row][0][:1]] * missing]
            is_option[i, :count] = True
        flat = padded(ids, types, self.pad_id, device)  # (B·C, S)
        inputs = {name: tensor.view(len(rows), most, -1) for name, tensor in flat.items()}
        return inputs | {"is_option": on_device(is_option, device)}, on_device(self.labels[rows], device)

    def assemble(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        return np.array(outputs)


def encode_choices(tokenizer: Tokenizer, questions: Sequence[ChoiceQuestion], max_length: int) -> EncodedChoices:
    """Tokenise every option with its context, cut to `max_length` tokens at the end of the longer of the two."""
    encodings = [
        [tokenizer.encode(q.context, option_text(q.question, option), max_length=max_length) for option in q.options]
        for q in questions
    ]
    return EncodedChoices(
        input_ids=[[np.array(e.input_ids, dtype=np.int32) for e in options] for options in encodings],
        token_type_ids=[[np.array(e.token_type_ids, dtype=np.int32) for e in options] for options in encodings],
        labels=np.array([q.answer for q in questions], dtype=np.int64),
        lines=np.array([q.line for q in questions]),
        pad_id=tokenizer.pad_id,
    )


def multiple_choice(num_labels: int = 1) -> Objective:
    """One option of several: logits (B, C), labels (B,) int64."""
    return Objective(
        loss=F.cross_entropy,
        predict=lambda logits: logits.argmax(dim=-1),
        metrics={"accuracy": glue.accuracy},
        forward=_forward,
    )


def _forward(model: AlbertForTask, inputs: Inputs) -> Tensor:
    """Logits (B, C), those of missing options -inf."""
    texts = {name: tensor for name, tensor in inputs.items() if name != "is_option"}
    return model(**texts).float().masked_fill(~inputs["is_option"], float("-inf"))
