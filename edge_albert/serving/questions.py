"""What a request asks: its JSON read strictly, within limits, and put to the model.

    {"text": "…"}            ► one answer
    {"texts": ["…", "…"]}    ► one answer for each

with `pair` (or `pairs`), `top`, `truncate`, `windows`, `choices`, `depth`, `exit_threshold` where the task takes them,
as the run command does. A field that is unknown, of the wrong type or beyond a limit is refused by name: nothing is
cut, guessed or ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_albert.early_exit import NEVER
from edge_albert.errors import DataError, EdgeAlbertError, EngineError
from edge_albert.run import plain_answer
from edge_albert.runtime.classify import MultipleChoice, SentenceEmbedder, TextClassifier, TextRegressor
from edge_albert.runtime.load import Runner
from edge_albert.runtime.spans import QuestionAnswerer, TokenClassifier

_PAIRS = ("text", "texts", "pair", "pairs")
_LONG = ("truncate", "windows")  # what to do with a text that is too long
_EARLY = ("depth", "exit_threshold")  # where a model with early exit is left
FIELDS: dict[str, tuple[str, ...]] = {
    "text-classification": (*_PAIRS, "top", *_LONG, *_EARLY),
    "text-regression": (*_PAIRS, *_LONG, *_EARLY),
    "token-classification": ("text", "texts", *_EARLY),
    "question-answering": _PAIRS,
    "multiple-choice": ("text", "choices", *_LONG),
    "sentence-embedding": ("text", "texts", *_LONG),
}


class MalformedError(DataError):
    """A body that is no JSON object at all (status 400); what is merely wrong in it is a DataError (422)."""


@dataclass(frozen=True)
class Limits:
    """max_texts: texts (or choices) of one request. max_chars: characters of any one text."""

    max_texts: int = 64
    max_chars: int = 20_000


@dataclass(frozen=True)
class Question:
    """A checked request. long: the arguments truncate and windows. early: depth and exit_threshold, those that were
    given. single: "text" was given and not "texts", so that one answer is wanted and not a list."""

    texts: tuple[str, ...]
    pairs: tuple[str | None, ...]
    choices: tuple[str, ...]
    top: int
    long: Mapping[str, bool]
    early: Mapping[str, Any]
    single: bool


def read_question(body: bytes, task: str, limits: Limits) -> Question:
    """Check the body of a request for a bundle of that task. Raises MalformedError or DataError, in one line."""
    fields = _json_object(body)
    unknown = sorted(fields.keys() - set(FIELDS[task]))
    if unknown:
        raise DataError(f"field {unknown[0]!r} is not one of {', '.join(FIELDS[task])}, which {task} takes")
    single = "text" in fields
    if single == ("texts" in fields):
        raise DataError("give either text or texts" if "texts" in FIELDS[task] else "field 'text' is missing")
    texts = (_text(fields["text"], "text", limits),) if single else _texts(fields, "texts", limits)
    return Question(
        texts,
        _pairs(fields, task, single, len(texts), limits),
        _choices(fields, limits) if task == "multiple-choice" else (),
        _top(fields.get("top", 1)),
        {name: _flag(fields.get(name, False), name) for name in _LONG},
        {name: _early(fields[name], name) for name in _EARLY if name in fields},
        single,
    )


def answer(model: Runner, question: Question) -> dict[str, Any]:
    """Run the model: {"answer": …} or {"answers": […]}, each as `python -m edge_albert.run --json` gives it.

    Raises DataError, naming the text that cannot be answered, such as one with more tokens than the model takes, or for
    a depth or threshold that the model does not have.
    """
    if question.early and model.session.bundle.exits is None:
        raise DataError(f"{next(iter(question.early))}: this model always runs every iteration, and none is left early")
    answers = []
    for index, (text, pair) in enumerate(zip(question.texts, question.pairs, strict=True)):
        try:
            answers.append(plain_answer(_ask(model, text, pair, question)))
        except DataError as error:
            raise DataError(_named(str(error), question, index)) from None
        except EngineError:
            raise
        except EdgeAlbertError as error:
            raise DataError(str(error)) from None
    return {"answer": answers[0]} if question.single else {"answers": answers}


def _named(reason: str, question: Question, index: int) -> str:
    """The runtime's message with the request's names for what it is about."""
    for name in _LONG:
        reason = reason.replace(f"--{name}", f'"{name}": true')
    if question.choices:
        return reason.replace("text ", "choice ", 1)
    return reason if question.single else f"texts[{index}]: {reason.removeprefix('text: ')}"


def _ask(model: Runner, text: str, pair: str | None, question: Question) -> Any:
    if isinstance(model, TextClassifier):
        return model.top(text, pair, k=question.top, **question.long, **question.early)
    if isinstance(model, TextRegressor):
        return model(text, pair, **question.long, **question.early)
    if isinstance(model, SentenceEmbedder):
        return model(text, **question.long)
    if isinstance(model, MultipleChoice):
        return model(text, list(question.choices), **question.long)
    if isinstance(model, QuestionAnswerer):
        assert pair is not None
        return model(text, pair)
    assert isinstance(model, TokenClassifier)
    return model(text, **question.early)


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the body is not valid JSON: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise MalformedError('the body is not a JSON object such as {"text": "…"}')
    return fields


def _text(value: Any, name: str, limits: Limits) -> str:
    if not isinstance(value, str):
        raise DataError(f"{name}: expected a text, found {type(value).__name__}")
    if len(value) > limits.max_chars:
        raise DataError(f"{name}: {len(value)} characters, at most {limits.max_chars} are taken: send it in parts")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{name}: half of a surrogate pair, which is no Unicode text: send whole characters") from None
    return value


def _texts(fields: Mapping[str, Any], name: str, limits: Limits, least: int = 1) -> tuple[str, ...]:
    values = fields[name]
    if not isinstance(values, list) or len(values) < least:
        raise DataError(f"{name}: expected a list of at least {least} texts")
    if len(values) > limits.max_texts:
        raise DataError(f"{name}: {len(values)} of them, at most {limits.max_texts} are taken: send several requests")
    return tuple(_text(value, f"{name}[{index}]", limits) for index, value in enumerate(values))


def _pairs(fields: Mapping[str, Any], task: str, single: bool, count: int, limits: Limits) -> tuple[str | None, ...]:
    name, other = ("pair", "pairs") if single else ("pairs", "pair")
    if other in fields:
        raise DataError(f"field {other!r} does not go with {'text' if single else 'texts'}: give {name}")
    if name not in fields:
        if task == "question-answering":
            raise DataError(f"field {name!r} is missing: the context to answer from")
        return (None,) * count
    pairs = (_text(fields["pair"], "pair", limits),) if single else _texts(fields, "pairs", limits)
    if len(pairs) != count:
        raise DataError(f"{count} texts and {len(pairs)} pairs: each text needs its second part")
    return pairs


def _choices(fields: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    if "choices" not in fields:
        raise DataError("field 'choices' is missing: a list of at least 2 texts")
    return _texts(fields, "choices", limits, least=2)


def _top(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise DataError(f"top: expected a whole number of at least 1, found {json.dumps(value)[:40]}")
    return value


def _early(value: Any, name: str) -> Any:
    if type(value) in ((int,) if name == "depth" else (int, float)) or (name != "depth" and value == NEVER):
        return value
    wanted = "a whole number of iterations" if name == "depth" else f'a number or "{NEVER}"'
    raise DataError(f"{name}: expected {wanted}, found {json.dumps(value)[:40]}")


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"{name}: expected true or false, found {json.dumps(value)[:40]}")
    return value
