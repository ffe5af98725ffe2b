"""The page's sections on quality: the gate's verdict, what was chosen for each matrix, sensitivity, activation ranges.

They are in report.json only where the export asked for them; edge_albert/reports/export_report.py says what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_albert.reports.calibration_report import spark
from edge_albert.reports.html.charts import Bar, bars, legend
from edge_albert.reports.html.page import Markup, element, facts, paragraph, section, table

Report = Mapping[str, Any]
_PRECISIONS = {"fp32": 1, "fp16": 3, "int8": 0, "int8-static": 0, "int4": 2}  # a colour each


def quality_sections(report: Report) -> Sequence[Markup]:
    """Those that this report has something for."""
    makers = {"gate": _gate, "choice": _choice, "sensitivity": _sensitivity, "calibration": _ranges}
    return [make(report[name]) for name, make in makers.items() if name in report]


def _gate(gate: Report) -> Markup:
    rows = []
    for number, attempt in enumerate([*gate["refused"], gate], start=1):
        for format, verdict in attempt["formats"].items():
            low, high = verdict["interval"]
            figures = (verdict["float_points"], verdict["exported_points"], verdict["drop"])
            allowed = "–" if verdict["allowed"] is None else f"{verdict['allowed']:.2f}"
            holds = element("b", "holds", class_="good") if verdict["holds"] else element("b", "refused", class_="bad")
            cells = (f"{number}: {format}", *(f"{figure:.2f}" for figure in figures), f"{low:.2f} … {high:.2f}")
            rows.append((*cells, allowed, holds))
    verdict = next(iter(gate["formats"].values()))
    said = "The gate holds. " if gate["holds"] else "The gate refused this export: there is no bundle. "
    return section(
        "Gate",
        paragraph(
            f"{said}{verdict['rows']} rows of {gate['data']}; the file runs in its engine, the float model in NumPy. "
            "Points are 100 × the metric; the interval is a paired bootstrap.",
            "good" if gate["holds"] else "bad",
        ),
        table(("attempt", f"float {verdict['metric']}", "exported", "lost", "95 %", "allowed", "verdict"), rows),
    )


def _choice(choice: Report) -> Markup:
    asked = choice["asked"]
    limit = f"at most {asked['bytes']:,} bytes" if asked["bytes"] is not None else f"at most {asked['points']:g} points"
    kinds = sorted(set(choice["precisions"].values()))
    groups = [(kind, ", ".join(n for n, p in choice["precisions"].items() if p == kind)) for kind in kinds]
    return section(
        "Precision of each matrix",
        paragraph(
            f"Chosen for {limit}; {choice['points_lost']:.2f} points lost on {choice['texts']} calibration texts by "
            "the weights alone."
        ),
        facts(groups),
    )


def _sensitivity(sensitivity: Report) -> Markup:
    order = sorted(sensitivity["matrices"].items(), key=lambda item: -item[1]["int4"]["loss"])
    rows = []
    for name, costs in order:
        for precision in ("int4", "int8"):
            changed = costs[precision]["changed"]
            labels = "" if changed is None else f", {100 * changed:.1f} % changed"
            loss = costs[precision]["loss"]
            said = f"{loss:.1e}{labels}"
            rows.append(Bar(f"{name}, {precision}", [(_PRECISIONS[precision], loss)], said))
    return section(
        "Sensitivity",
        paragraph(f"Loss when one matrix is rounded, in all iterations, on {sensitivity['texts']} texts.", "dim"),
        bars(rows),
        legend([(_PRECISIONS[name], name) for name in ("int4", "int8")]),
    )


def _ranges(calibration: Report) -> Markup:
    rows = []
    for site, entry in calibration["sites"].items():
        spans = [max(-part["min"], part["max"]) for part in entry["iterations"]]
        low, high = entry["shared"]["ranges"][calibration["method"]]
        picture = element("code", spark(spans)) if len(spans) > 1 else "once"
        outliers = ", ".join(str(channel) for channel, _ in entry["shared"]["outlier_channels"]) or "–"
        rows.append((site, f"{low:.3g} … {high:.3g}", picture, outliers))
    kind = "a range for each iteration" if calibration["per_iteration"] else "one range for all iterations"
    texts = calibration["texts"]
    return section(
        "Activation ranges",
        paragraph(f"{calibration['method']}, {kind}, from {texts['count']} texts of {texts['source']}.", "dim"),
        table(("activation", "range", "largest, by iteration", "outlier channels"), rows),
    )
