"""Early exit as a person reads it: the rule, who left when, accuracy against iterations. Markdown; html/exit_page.py.

Made from `early_exit` of report.json: the rule (`criterion`, `threshold`, `iterations`, `heads`), and where there were
labelled rows `by_depth` (the metric in points after every iteration, nobody leaving early), `curve` (every rule that
was tried, on all rows, by the float model), `choice` (the halves of --early-exit auto), and in each format's facts
`early_exit` (the file's own run: `histogram`, `ms`, `first`, `last`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_albert.reports.tables import markdown_table

Report = Mapping[str, Any]


def exit_lines(report: Report) -> list[str]:
    """What the command prints at the end."""
    if "early_exit" not in report:
        return []
    runs = [(facts["file"], facts["early_exit"]) for facts in report["formats"].values() if "early_exit" in facts]
    lines = [
        f"exits    {file}: {run['mean_iterations']:.2f} of {report['early_exit']['iterations']} iterations in the mean "
        f"of {run['inputs']} inputs"
        for file, run in runs
    ]
    return lines or [f"exits    {rule(report['early_exit'])}; add --eval to see who leaves when"]


def rule(facts: Report) -> str:
    """confidence of at least 0.9, 6 iterations at most"""
    side = "at most" if facts["criterion"] in ("entropy", "change") else "at least"
    return f"{facts['criterion']} of {side} {facts['threshold']:g}, {facts['iterations']} iterations at most"


def exit_sections(report: Report) -> list[str]:
    """The sections of report.md; none without early exit."""
    if "early_exit" not in report:
        return []
    facts = report["early_exit"]
    heads = "one head for all iterations" if facts["heads"] == "shared" else "a head for each iteration"
    parts = [
        "## Early exit",
        f"Inputs leave by {rule(facts)}; {heads}. Threshold and depth can be changed at run time. The times by length "
        "below are of all iterations.",
    ]
    if facts.get("choice"):
        parts.append(choice_sentence(facts))
    runs = {entry["file"]: entry["early_exit"] for entry in report["formats"].values() if "early_exit" in entry}
    if runs:
        parts += _runs(runs)
    if "curve" in facts:
        parts += _curve(facts)
    return parts


def choice_sentence(facts: Report) -> str:
    """How --early-exit auto came to its rule."""
    chosen, confirmed = facts["choice"]["chosen"], facts["choice"]["confirmed"]
    first, second = facts["choice"]["rows"]
    return (
        f"Chosen on {first} rows of {facts['data']}: {chosen['mean_iterations']:.2f} iterations in the mean, "
        f"{chosen['drop']:.2f} points lost. On the other {second}, which chose nothing: "
        f"{confirmed['mean_iterations']:.2f} iterations, {confirmed['drop']:.2f} points (the float model)."
    )


def who(run: Report) -> str:
    """Which inputs the exits and times are of."""
    return (
        f"The file's own run over the {run['inputs']} inputs that the gate judges (all rows, or with --early-exit auto "
        "those that chose nothing), one at a time on one thread."
    )


def _runs(runs: Mapping[str, Report]) -> list[str]:
    depths = range(1, len(next(iter(runs.values()))["histogram"]) + 1)
    left = [(depth, *(run["histogram"][depth - 1] for run in runs.values())) for depth in depths]
    figures = [
        ("mean iterations", *(f"{run['mean_iterations']:.3f}" for run in runs.values())),
        ("left where the float model does", *(f"{100 * run['same_iteration']:.1f} %" for run in runs.values())),
        *(
            (f"{name} ms, one input at a time", *(f"{run['ms'][name]:.2f}" for run in runs.values()))
            for name in ("p50", "p90", "p99")
        ),
    ]
    run = next(iter(runs.values()))
    texts = [(one["iterations"], one["text"]) for one in (*run["first"], *reversed(run["last"]))]
    return [
        "### Who left when",
        who(run),
        markdown_table(("", *runs), figures),
        markdown_table(("left after iteration", *runs), left),
        *(["Some that left first, and some that left last:", _texts(texts)] if texts else []),
    ]


def _texts(texts: Sequence[tuple[int, str]]) -> str:
    rows = [(text.replace("\n", " "), used) for used, text in texts]
    return markdown_table(("text", "iterations"), rows)


def _curve(facts: Report) -> list[str]:
    fixed = [
        (f"depth {depth}", f"{depth:.2f}", f"{points:.2f}") for depth, points in enumerate(facts["by_depth"], start=1)
    ]
    rules = [
        (f"{one['criterion']} {one['threshold']:g}", f"{one['mean_iterations']:.2f}", f"{one['points']:.2f}")
        for one in facts["curve"]
    ]
    return [
        f"### {facts['metric']} against mean iterations",
        f"The float model on all {facts['rows']} rows of {facts['data']}: everybody leaving at one depth, then by each "
        "rule that was tried.",
        markdown_table(("rule", "mean iterations", f"{facts['metric']} × 100"), [*fixed, *rules]),
    ]
