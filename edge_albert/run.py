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
from edge_albert.early_exit import NEVER
from edge_albert.errors import DataError
from edge_albert.runtime.classify import MultipleChoice, SentenceEmbedder, TextClassifier, TextRegressor
from edge_albert.runtime.load import Runner, load
from edge_albert.runtime.selfcheck import self_check
from edge_albert.runtime.spans import QuestionAnswerer, TokenClassifier

_EPILOG = """\
examples:
  python -m edge_albert.run bundle "You have won a holiday. Call now to claim your prize"
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
    long = out.add_mutually_exclusive_group()
    long.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")
    long.add_argument("--windows", action="store_true", help="read such texts in overlapping windows and average them")
    out.add_argument("--engine", choices=("onnx", "tflite"), help="default: the first that is installed")
    out.add_argument("--threads", type=int, help="default: one per processor, four at most")
    out.add_argument(
        "--memory-mb", type=float, metavar="MB", help="what the whole process may take: plans engine and longest text"
    )
    out.add_argument(
        "--depth", type=int, metavar="N", help="of a bundle with early exit: at most N iterations for a text"
    )
    out.add_argument(
        "--exit-threshold",
        type=_threshold,
        metavar="X",
        help="of a bundle with early exit: leave by X instead of the exported value; never: run every iteration",
    )
    out.add_argument(
        "--latency-ms",
        type=float,
        metavar="MS",
        help="of a bundle with early exit: as many iterations as fit into MS by the times of --benchmark",
    )
    out.add_argument("--benchmark", metavar="JSON", help="what python -m edge_albert.bench --output wrote here")
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
    options = parser().parse_intermixed_args(argv)  # texts may come after options
    model = load(
        options.bundle,
        engine=options.engine,
        threads=options.threads,
        cache_dir=options.cache,
        memory_mb=options.memory_mb,
        depth=options.depth,
        exit_threshold=options.exit_threshold,
        latency_ms=options.latency_ms,
        benchmark=options.benchmark,
    )
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


def _threshold(text: str) -> float | str:
    try:
        return text if text == NEVER else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor {NEVER!r}") from None


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
        prompt, choices = options.texts[0], options.texts[1:]
        yield _line(model(prompt, choices, **_long(options)), prompt, options.json)
        return
    answer = _answer_of(model, options)
    for name, text in _inputs(options.texts):
        try:
            yield _line(answer(text), text, options.json)
        except DataError as error:
            yield DataError(f"{name}: {str(error).removeprefix('text: ')}")


def _long(options: argparse.Namespace) -> dict[str, bool]:
    """What to do with texts that are too long, as the tasks take it."""
    return {"truncate": options.truncate, "windows": options.windows}


def _answer_of(model: Runner, options: argparse.Namespace) -> Callable[[str], Any]:
    if isinstance(model, QuestionAnswerer):
        if options.pair is None:
            raise DataError("question answering: give the context with --pair")
        return lambda text: model(text, options.pair)
    if isinstance(model, TextClassifier):
        return lambda text: model.top(text, options.pair, k=options.top, **_long(options))
    if isinstance(model, SentenceEmbedder):
        return lambda text: model(text, **_long(options))
    if isinstance(model, TokenClassifier):
        return model
    assert isinstance(model, TextRegressor)
    return lambda text: model(text, options.pair, **_long(options))


def _inputs(texts: list[str]) -> Iterable[tuple[str, str]]:
    """(name for messages, text): the arguments, or the lines of standard input as UTF-8."""
    if texts:
        return ((f"text {number}", text) for number, text in enumerate(texts, 1))
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    return ((f"line {number}", line.rstrip("\n")) for number, line in enumerate(sys.stdin, 1))


def _line(answer: Any, text: str, as_json: bool) -> str:
    if as_json:
        return json.dumps({"text": text, "answer": plain_answer(answer)}, ensure_ascii=False)
    if isinstance(answer, np.ndarray):
        return " ".join(f"{value:.6f}" for value in answer)
    found = answer if isinstance(answer, list) else [answer]
    return "; ".join(_words(one) for one in found) or "(nothing found)"


def plain_answer(answer: Any) -> Any:
    """An answer as JSON holds it: fields by name, a vector as numbers with six decimals; lists of these for lists."""
    if isinstance(answer, np.ndarray):
        return [round(float(value), 6) for value in answer]
    return [_fields(one) for one in answer] if isinstance(answer, list) else _fields(answer)


def _fields(answer: Any) -> dict[str, Any]:
    """Without iterations where the model has no early exit."""
    return {name: value for name, value in asdict(answer).items() if name != "iterations" or value is not None}


def _words(answer: Any) -> str:
    """spam 99.1 %, or 3.812 for a value without a label; behind it (3 windows) for a text read in several, and
    (2 iterations) with early exit."""
    fields = asdict(answer)
    count = fields.pop("windows", 1)
    used = fields.pop("iterations", None)
    windows = f" ({count} windows)" if count > 1 else ""
    windows += f" ({used} iteration{'s' * (used > 1)})" if used is not None else ""
    if set(fields) == {"score"}:
        return f"{fields['score']:.3f}{windows}"
    name = " ".join(str(fields[key]) for key in ("label", "text") if fields.get(key)) or "(no answer)"
    return f"{name} {100 * fields['score']:.1f} %{windows}"


if __name__ == "__main__":
    run_command(main)
