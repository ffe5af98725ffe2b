"""The page's section on a benchmark: a document of `python -m edge_albert.bench` (docs/benchmark.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_albert.reports.device_state import throttling
from edge_albert.reports.html.charts import Bar, bars, legend
from edge_albert.reports.html.page import Markup, element, facts, joined, paragraph, section, table
from edge_albert.reports.tables import megabytes

Report = Mapping[str, Any]
_TIMES = ("p50", "p90", "p99", "max")


def bench_section(bench: Report, title: str) -> Markup:
    """title: what to call this run, such as the name of its file."""
    configurations = bench["configurations"]
    colours = {id(one): colour for colour, one in enumerate(configurations)}
    times, rows = [], []
    for one in configurations:
        for row in one["lengths"]:
            said = f"{row['ms']['p50']:.2f} ms"
            times.append(Bar(f"{row['length']} tokens", [(colours[id(one)], row["ms"]["p50"])], said, row["ms"]["p90"]))
            rows.append((f"{_name(one)}, {row['length']} tokens", *(f"{row['ms'][name]:.2f}" for name in _TIMES)))
        if texts := one.get("texts"):
            for part in ("tokenise", "infer", "end_to_end"):
                cells = (f"{texts[f'{part}_ms'][name]:.2f}" for name in _TIMES)
                rows.append((f"{_name(one)}, real texts: {part.replace('_', ' ')}", *cells))
    memory = [
        Bar(
            _name(one),
            [(5, one["memory"]["loaded_anon_bytes"] or 0), (0, _growth(one["memory"]))],
            megabytes(one["memory"]["peak_anon_bytes"]),
        )
        for one in configurations
    ]
    warnings = [] if bench["complete"] else [paragraph("Stopped early: this is what had been measured.", "bad")]
    if bench["machine"]["emulated"]:
        warnings.append(paragraph("Emulated: times and memory say nothing about the real device.", "bad"))
    warnings += [
        paragraph(f"{failed['engine']}, threads {failed['threads']}: failed: {failed['reason']}", "bad")
        for failed in bench["failed"]
    ]
    return section(
        f"Benchmark: {title}",
        *warnings,
        facts(_machine(bench)),
        element("h3", "Milliseconds of one inference, the median, with p90 marked"),
        bars(times),
        legend([(colours[id(one)], _name(one)) for one in configurations]),
        table(("ms", *_TIMES), rows),
        element("h3", "Anonymous memory of the whole process: after load, and at its peak"),
        bars(memory),
        joined(_check(one) for one in configurations),
    )


def _machine(bench: Report) -> list[tuple[str, object]]:
    machine = bench["machine"]
    board = f"{machine['board']}, " if machine.get("board") else ""
    held_back = ", ".join(throttling(bench["before"], bench["after"])) or "none known of"
    return [
        ("measured", f"{bench['date']}, edge_albert {bench['edge_albert']}"),
        ("on", f"{board}{machine['cpu']} ({machine['architecture']}), {machine['system']}, Python {machine['python']}"),
        ("throttling", held_back),
    ]


def _name(one: Report) -> str:
    threads = "1 thread" if one["threads"] == 1 else f"{one['threads']} threads"
    mapped = ", mapped" if one["mapped"] else ""
    return f"{one['engine_version']} ({one['precision']}), {threads}{mapped}"


def _growth(memory: Report) -> float:
    return max(0, (memory["peak_anon_bytes"] or 0) - (memory["loaded_anon_bytes"] or 0))


def _check(one: Report) -> Markup:
    check = one.get("self_check")
    if not check:
        return joined([])
    said = f"{_name(one)}: golden texts "
    if check["passed"]:
        return paragraph(joined([element("b", "✓ ", class_="good"), said, "answered as exported"]))
    return paragraph(f"{said}NOT answered as exported", "bad")
