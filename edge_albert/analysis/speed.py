"""Parameters are not speed: one shape with nothing shared and E = H, as ALBERT, and as an ALBERT that does less.

Less is: fewer iterations, half the width, or a loop that may be left early. What inputs leave when depends on the texts
(benchmarks/early_exit.py); here all leave after the same iteration, which says what that costs.

Random weights, since no engine's time depends on them. Every row is converted by the same writers, and measured by the
same runtime on the same engine in a fresh process (edge_albert/runtime/probe.py), one thread. All rows are measured
once in every round, so that whatever else the machine does falls on all of them: a ratio is taken within its round, and
the median over the rounds is reported with the lowest and the highest.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.convert import FORMATS, convert
from edge_albert.analysis.picture import bars, draw_svg
from edge_albert.analysis.record import Part, Record, begin
from edge_albert.atomic import write_file_atomic
from edge_albert.checkpoint import expected_shapes
from edge_albert.config import AlbertConfig, count_macs, count_parameters, preset
from edge_albert.early_exit import Exits
from edge_albert.errors import ConfigError, EngineError
from edge_albert.progress import Progress
from edge_albert.reports.tables import markdown_table, megabytes
from edge_albert.runtime.engine import installed
from edge_albert.runtime.probe import probe_in_fresh_process
from edge_albert.tasks import get_task

TASK = get_task("text-classification")
ALBERT = "ALBERT as it is"  # the row that the others are compared with
_SHOWN_LENGTH = 128


@dataclass(frozen=True)
class Plan:
    """What to measure. rounds: times that every file is measured; runs: timed inferences of each length a time."""

    base: str = "albert-base-v2"
    precisions: tuple[str, ...] = ("int8", "fp32")
    lengths: tuple[int, ...] = (16, 128, 512)
    rounds: int = 5
    runs: int = 5
    seed: int = 0


QUICK = Plan(base="tiny", precisions=("int8",), lengths=(128,), rounds=2, runs=5)


def _unshared(config: AlbertConfig) -> AlbertConfig:
    return replace(config.with_sharing("none"), embedding_size=config.hidden_size)


def _shallower(config: AlbertConfig, share: int) -> AlbertConfig:
    return replace(config, num_hidden_layers=max(1, config.num_hidden_layers // share))


def _narrower(config: AlbertConfig) -> AlbertConfig:
    heads = config.num_attention_heads
    heads = heads // 2 if heads % 2 == 0 else heads
    half = replace(config, hidden_size=config.hidden_size // 2, intermediate_size=config.intermediate_size // 2,
                   num_attention_heads=heads)  # fmt: skip
    return replace(half, embedding_size=min(half.embedding_size, half.hidden_size))


@dataclass(frozen=True)
class Row:
    """One model. shape: made of the plan's; one with exit heads is written with early exit. share: the inputs leave
    after 1/share of the iterations."""

    shape: Callable[[AlbertConfig], AlbertConfig]
    share: int = 1

    def max_depth(self, config: AlbertConfig) -> int | None:
        """After how many iterations every input leaves; None when none leaves early."""
        return _shallower(config, self.share).num_hidden_layers if self.share > 1 else None


ROWS: Mapping[str, Row] = {
    "nothing shared, E = H": Row(_unshared),
    ALBERT: Row(lambda config: config),
    "half the iterations": Row(lambda config: _shallower(config, 2)),
    "a quarter of the iterations": Row(lambda config: _shallower(config, 4)),
    "half the width": Row(_narrower),
    "may leave early, none does": Row(lambda config: config.with_exits("shared")),
    "leaves after a quarter": Row(lambda config: config.with_exits("shared"), share=4),
}

# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(plan: Plan, command: str) -> Record:
    """Convert every row in every format whose engine is installed and in every precision; measure all of them
    `plan.rounds` times.

    Raises EngineError without an engine, ConfigError for a shape that cannot be halved.
    """
    config = preset(plan.base)
    formats = [name for name in FORMATS if installed(name)]
    if not formats:
        raise EngineError("no inference engine is installed: pip install onnxruntime, or ai-edge-litert")
    if config.num_hidden_groups > 1:
        raise ConfigError(f"{plan.base}: shares nothing: name an ALBERT, which is compared with itself unshared")
    shapes = {name: row.shape(config) for name, row in ROWS.items()}
    _refuse_giants(shapes, plan)
    with tempfile.TemporaryDirectory() as folder:
        files = _write_files(shapes, formats, plan, Path(folder))
        rounds = _measure_rounds(files, plan, config)
    rows = [
        {**_facts(ROWS[key[0]], shapes[key[0]]), **dict(zip(("row", "format", "precision"), key, strict=True)), **found}
        for key, found in _summaries(rounds, plan.lengths).items()
    ]
    head = begin("speed", command, plan.seed)
    said = {"base": plan.base, "lengths": list(plan.lengths), "rounds": plan.rounds, "runs": plan.runs, "threads": 1}
    return {**head, **said, "rows": rows}


def _refuse_giants(shapes: Mapping[str, AlbertConfig], plan: Plan) -> None:
    """ConfigError, before the first is written, when a file would be larger than its format can hold."""
    for name, shape in shapes.items():
        for precision in plan.precisions:
            size = count_parameters(shape, head_outputs=shape.num_labels).total * _BYTES[precision]
            if size >= 2**31:
                raise ConfigError(
                    f"{plan.base}: with {name} it is {size / 1e9:.1f} GB in {precision}, and an .onnx or .tflite file "
                    "holds 2: name a smaller preset"
                )


_BYTES = {"int8": 1, "fp32": 4}
Key = tuple[str, str, str]  # row, format, precision


def _facts(row: Row, config: AlbertConfig) -> dict[str, int]:
    done = replace(config, num_hidden_layers=row.max_depth(config) or config.num_hidden_layers)
    return {
        "parameters": count_parameters(config, head_outputs=config.num_labels).total,
        "iterations": done.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "macs_at_128": count_macs(done, _SHOWN_LENGTH),
    }


def _write_files(
    shapes: Mapping[str, AlbertConfig], formats: Sequence[str], plan: Plan, folder: Path
) -> dict[Key, Path]:
    files: dict[Key, Path] = {}
    with Progress(len(shapes) * len(formats) * len(plan.precisions), "converting") as bar:
        for number, (name, config) in enumerate(shapes.items()):
            tensors = random_tensors(config, plan.seed)
            for precision in plan.precisions:
                for format in formats:
                    path = folder / f"{number}-{precision}.{format}"
                    made = convert(config, tensors, TASK, format=format, precision=precision, exits=_exits(config))
                    write_file_atomic(path, made.content)
                    files[name, format, precision] = path
                    bar.update()
    return files


def _exits(config: AlbertConfig) -> Exits | None:
    """Early exit at a confidence of 1, which no input has."""
    return Exits("confidence", 1.0, config.num_hidden_layers, config.num_labels) if config.exit_heads else None


def random_tensors(config: AlbertConfig, seed: int) -> dict[str, np.ndarray]:
    """A checkpoint's tensors as a new model has them: matrices from a normal of σ = initializer_range, biases 0."""
    random = np.random.default_rng(seed)
    out = {}
    for name, shape in expected_shapes(config, TASK.name).items():
        if len(shape) > 1:
            out[name] = random.standard_normal(shape, dtype=np.float32) * np.float32(config.initializer_range)
        else:
            out[name] = np.full(shape, name.lower().endswith("norm.weight"), dtype=np.float32)
    return out


def _measure_rounds(files: Mapping[Key, Path], plan: Plan, config: AlbertConfig) -> list[dict[Key, dict[str, Any]]]:
    rounds = []
    with Progress(len(files) * plan.rounds, "measuring") as bar:
        for _ in range(plan.rounds):
            found = {}
            for key, path in files.items():
                found[key] = probe_in_fresh_process(
                    path,
                    lengths=plan.lengths,
                    runs=plan.runs,
                    vocab_size=config.vocab_size,
                    max_depth=ROWS[key[0]].max_depth(config),
                )
                bar.update()
            rounds.append(found)
    return rounds


def _summaries(rounds: Sequence[Mapping[Key, dict[str, Any]]], lengths: Sequence[int]) -> dict[Key, dict[str, Any]]:
    """Per file: its size, its memory, and per length the median CPU time and what it is of the ALBERT's, in ratios."""
    out = {}
    for key in rounds[0]:
        albert = (ALBERT, *key[1:])
        times = {}
        for place, length in enumerate(lengths):
            own = [_cpu(found[key], place) for found in rounds]
            ratios = [_cpu(found[key], place) / _cpu(found[albert], place) for found in rounds]
            times[str(length)] = {"cpu_ms": statistics.median(own), "ratio": statistics.median(ratios),
                                  "lowest_ratio": min(ratios), "highest_ratio": max(ratios)}  # fmt: skip
        memory = [found[key]["anon_bytes"] for found in rounds if found[key]["anon_bytes"] is not None]
        out[key] = {
            "file_bytes": rounds[0][key]["file_bytes"],
            "anon_bytes": statistics.median(memory) if memory else None,
            "engine": rounds[0][key]["engine"],
            "times": times,
            "measured": [found[key]["runs"] for found in rounds],
        }
    return out


def _cpu(probed: Mapping[str, Any], place: int) -> float:
    return probed["runs"][place]["cpu_ms"]["p50"]


# -- tables and picture ------------------------------------------------------------------------------------------------


def to_markdown(record: Record) -> str:
    """A sentence with the answer, then a table for each format and precision."""
    out = [_answer(record)]
    for format, precision in _kinds(record):
        rows = _rows(record, format, precision)
        out.append(f"{precision}, {rows[0]['engine']}:\n\n{_table(rows, record['lengths'])}")
    return "\n\n".join(out)


def _table(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> str:
    header = ["shape", "parameters", "file", "memory"]
    header += [f"{what}, S = {length}" for what in ("CPU", "ratio") for length in lengths]
    cells = []
    for row in rows:
        times = [row["times"][str(length)] for length in lengths]
        sizes = (f"{row['parameters'] / 1e6:.1f} M", megabytes(row["file_bytes"]), megabytes(row["anon_bytes"]))
        cells.append((row["row"], *sizes, *(f"{t['cpu_ms']:.1f} ms" for t in times), *map(_ratio, times)))
    return markdown_table(header, cells)


def _ratio(times: Mapping[str, float]) -> str:
    return f"{times['ratio']:.2f} ({times['lowest_ratio']:.2f}–{times['highest_ratio']:.2f})"


def _kinds(record: Record) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["format"], row["precision"]) for row in record["rows"]))


def _rows(record: Record, format: str, precision: str) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if (row["format"], row["precision"]) == (format, precision)]


def _answer(record: Record) -> str:
    length = _shown(record)
    said = []
    for format, precision in _kinds(record):
        unshared, albert = _rows(record, format, precision)[:2]
        ratio = unshared["times"][length]["ratio"]
        size = unshared["file_bytes"] / albert["file_bytes"]
        said.append(f"{ratio:.2f} times the CPU time and {size:.1f} times the file in {format} {precision}")
    return (
        f"Of *{record['base']}*, the same shape with nothing shared and E = H takes, at {length} tokens, "
        f"{'; '.join(said)}. Ratios are to the ALBERT as it is: the median of {record['rounds']} rounds, in brackets "
        "the lowest and the highest; one thread, batch 1, random weights. Memory is what cannot be dropped."
    )


def _shown(record: Record) -> str:
    return str(_SHOWN_LENGTH if _SHOWN_LENGTH in record["lengths"] else record["lengths"][0])


_SHOWN = "CPU time, file size and memory: with nothing shared, as ALBERT, and as ALBERTs that do less"


def draw(record: Record) -> dict[str, str]:
    """CPU time, file and memory of every row, in the first format and precision that was measured."""
    format, precision = _kinds(record)[0]
    rows, length = _rows(record, format, precision), _shown(record)
    names = [row["row"] for row in rows]
    times = [row["times"][length]["cpu_ms"] for row in rows]
    panels = [
        bars(
            f"CPU time of {length} tokens ({format}, {precision})", names, times, [f"{time:.1f} ms" for time in times]
        ),
        bars("file", names, [row["file_bytes"] for row in rows], [megabytes(row["file_bytes"]) for row in rows]),
        bars(
            "memory that cannot be dropped",
            names,
            [row["anon_bytes"] or 0 for row in rows],
            [megabytes(row["anon_bytes"]) for row in rows],
        ),
    ]
    return {"speed": draw_svg(panels, _SHOWN, panel_inches=1.8)}


PART = Part("speed", to_markdown, lambda record: {"speed": _SHOWN}, draw)
