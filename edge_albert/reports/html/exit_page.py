"""Early exit as a section of the page: accuracy against mean iterations, who left when, first and last texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_albert.reports.exit_report import choice_sentence, rule, who
from edge_albert.reports.html.charts import Bar, Dot, bars, legend, plot
from edge_albert.reports.html.page import Markup, element, joined, paragraph, section, table

Report = Mapping[str, Any]
_COLOURS = {"depth": 5, "confidence": 0, "entropy": 1, "patience": 2, "change": 3}


def exit_section(report: Report) -> Sequence[Markup]:
    """Nothing for a report without early exit."""
    if "early_exit" not in report:
        return []
    facts = report["early_exit"]
    parts = [
        paragraph(
            f"Inputs leave by {rule(facts)}. Threshold and depth can be changed at run time. "
            "The times by length are of all iterations."
        )
    ]
    if facts.get("choice"):
        parts.append(paragraph(choice_sentence(facts)))
    runs = {entry["file"]: entry["early_exit"] for entry in report["formats"].values() if "early_exit" in entry}
    if "curve" in facts:
        parts += _curve(facts)
    if runs:
        parts += _runs(runs)
    return [section("Early exit", *parts)]


def _curve(facts: Report) -> list[Markup]:
    """The metric against mean iterations, as dots; and every one of them as a row, the fewest iterations first."""
    rules = [("depth", depth, float(depth), points) for depth, points in enumerate(facts["by_depth"], start=1)]
    rules += [(one["criterion"], one["threshold"], one["mean_iterations"], one["points"]) for one in facts["curve"]]
    rules.sort(key=lambda one: (one[2], -one[3]))
    rows = [
        Bar(f"{name} {value:g}", [(_COLOURS[name], used)], f"{used:.2f} iterations, {points:.2f}")
        for name, value, used, points in rules
    ]
    names = list(dict.fromkeys(name for name, *_ in rules))
    taken = facts["criterion"], facts["threshold"]
    dots = [
        Dot(f"{name} {value:g}", _COLOURS[name], used, points, (name, value) == taken)
        for name, value, used, points in rules
    ]
    return [
        element("h3", f"{facts['metric']} against mean iterations"),
        paragraph(
            f"The float model on all {facts['rows']} rows of {facts['data']}, {facts['metric']} × 100: everybody "
            "leaving at one depth, and by each rule that was tried. The exported rule has a ring, if it is among them.",
            "dim",
        ),
        plot(dots, facts["iterations"]),
        legend([(_COLOURS[name], name) for name in names]),
        element("details", joined([element("summary", "As a list"), bars(rows, float(facts["iterations"]))])),
    ]


def _runs(runs: Mapping[str, Report]) -> list[Markup]:
    rows = [
        Bar(f"{file}, iteration {depth}", [(colour, count)], str(count))
        for colour, (file, run) in enumerate(runs.items())
        for depth, count in enumerate(run["histogram"], start=1)
    ]
    figures = [
        (
            file,
            f"{run['mean_iterations']:.3f}",
            f"{100 * run['same_iteration']:.1f} %",
            *(f"{run['ms'][name]:.2f}" for name in ("p50", "p90", "p99")),
        )
        for file, run in runs.items()
    ]
    run = next(iter(runs.values()))
    texts = [(one["text"], one["iterations"]) for one in (*run["first"], *reversed(run["last"]))]
    shown = [element("h3", "Some that left first, and last"), table(("text", "iterations"), texts)] if texts else []
    return [
        element("h3", "Inputs that left after each iteration"),
        paragraph(who(run), "dim"),
        bars(rows),
        table(("", "mean iterations", "as the float model", "p50 ms", "p90 ms", "p99 ms"), figures),
        *shown,
    ]
