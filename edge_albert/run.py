"""Answer texts with a bundle at the terminal: `python -m edge_albert.run BUNDLE "text" …`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from edge_albert.cli import run_command
from edge_albert.errors import DataError
from edge_albert.runtime.classify import MultipleChoice, SentenceEmbedder, TextClassifier, TextRegressor
from edge_albert.runtime.load import Runner, load
from edge_albert.runtime.selfcheck import self_check
from edge_albert.runtime.spans import QuestionAnswerer, TokenClassifier

_EPILOG = """\
examples:
  python -m edge_albert.run bundle "You have won a free phone, call now"
  python -m edge_albert.run bundle --top 3 --json < messages.txt
  python -m edge_albert.run qa-bundle --pair "The Amazon is a river in South America." "Where is the Amazon?"
  python -m edge_albert.run choice-bundle "It rained all day, so" "the street is wet." "the street is dry."

Without texts, each line of standard input is one. A line that cannot be answered is reported on stderr and the others
are answered all the same; the exit status is then 2.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.run",
        description="Answer texts with an exported bundle. Needs neither PyTorch nor ONNX, only an engine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("bundle", help="folder written by python -m edge_albert.export")
    out.add_argument("texts", nargs="*", help="texts to answer; for multiple choice the prompt, then the choices")
    out.add_argument("--pair", help="second part of a text pair; the context for question answering")
    out.add_argument("--top", type=int, default=1, metavar="K", help="the K most probable classes (default 1)")
    out.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")
    out.add_argument("--engine", choices=("onnx", "tflite"), help="default: the first that is installed")
    out.add_argument("--threads", type=int, help="default: one per processor, four at most")
    out.add_argument(
        "--cache", metavar="DIR", help="keep weights packed for this processor in DIR (smaller, faster start)"
    )
    out.add_argument(
        "--check", action="store_true", help="run the bundle's golden examples instead; status 1 if they fail"
    )
    out.add_argument("--json", action="store_true", help="one JSON object a line")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    model = load(options.bundle, engine=options.engine, threads=options.threads, cache_dir=options.cache)
    with model.session:
        if options.check:
            return _check(model, options.json)
        failed = False
        for line in _answers(model, options):
            if isinstance(line, DataError):
                failed = True
                sys.stdout.flush()
                print(f"edge_albert: error: {line}", file=sys.stderr)
            else:
                print(line, flush=sys.stdout.isatty())
    return 2 if failed else 0


def _check(model: Runner, as_json: bool) -> int:
    found = self_check(model.session)
    if as_json:
        print(json.dumps({**asdict(found), "passed": found.passed}, ensure_ascii=False))
    else:
        ids = f"{len(found.other_ids)} with other token ids" if found.other_ids else "the same token ids"
        verdict = "as exported" if found.passed else "NOT as exported"
        difference = f"largest difference {found.difference:.6f} (allowed {found.allowed})"
        print(f"{verdict}: {found.texts} texts, {ids}, {difference}")
    return 0 if found.passed else 1


def _answers(model: Runner, options: argparse.Namespace) -> Iterator[str | DataError]:
    """A line of output, or what was wrong, for each input in turn."""
    if isinstance(model, MultipleChoice):
        if len(options.texts) < 3:
            raise DataError("multiple choice: give the prompt and at least 2 choices as arguments")
        yield _line(
            model(options.texts[0], options.texts[1:], truncate=options.truncate), options.texts[0], options.json
        )
        return
    answer = _answer_of(model, options)
    for name, text in _inputs(options.texts):
        try:
            yield _line(answer(text), text, options.json)
        except DataError as error:
            yield DataError(f"{name}: {str(error).removeprefix('text: ')}")


def _answer_of(model: Runner, options: argparse.Namespace) -> Callable[[str], Any]:
    if isinstance(model, QuestionAnswerer):
        if options.pair is None:
            raise DataError("question answering: give the context with --pair")
        return lambda text: model(text, options.pair)
    if isinstance(model, TextClassifier):
        return lambda text: model.top(text, options.pair, k=options.top, truncate=options.truncate)
    if isinstance(model, SentenceEmbedder):
        return lambda text: model(text, truncate=options.truncate)
    if isinstance(model, TokenClassifier):
        return model
    assert isinstance(model, TextRegressor)
    return lambda text: model(text, options.pair, truncate=options.truncate)


def _inputs(texts: list[str]) -> Iterable[tuple[str, str]]:
    """(name for messages, text): the arguments, or the lines of standard input as UTF-8."""
    if texts:
        return ((f"text {number}", text) for number, text in enumerate(texts, 1))
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    return ((f"line {number}", line.rstrip("\n")) for number, line in enumerate(sys.stdin, 1))


def _line(answer: Any, text: str, as_json: bool) -> str:
    if as_json:
        return json.dumps({"text": text, "answer": _plain(answer)}, ensure_ascii=False)
    if isinstance(answer, np.ndarray):
        return " ".join(f"{value:.6f}" for value in answer)
    found = answer if isinstance(answer, list) else [answer]
    return "; ".join(_words(one) for one in found) or "(nothing found)"


def _plain(answer: Any) -> Any:
    if isinstance(answer, np.ndarray):
        return [round(float(value), 6) for value in answer]
    return [asdict(one) for one in answer] if isinstance(answer, list) else asdict(answer)


def _words(answer: Any) -> str:
    """spam 99.1 %, or 3.812 for a value without a label."""
    fields = asdict(answer)
    if set(fields) == {"score"}:
        return f"{fields['score']:.3f}"
    name = " ".join(str(fields[key]) for key in ("label", "text") if fields.get(key)) or "(no answer)"
    return f"{name} {100 * fields['score']:.1f} %"


if __name__ == "__main__":
    run_command(main)
