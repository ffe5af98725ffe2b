"""What calibration found, for a person: activations with small pictures in text, sensitivities as table and picture.

Made from what calibration/collect.py and calibration/sensitivity.py put into JSON, so that a stored file can be shown
again. The pictures in text are rows of block characters: they stand in a Markdown table and need no image file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_albert.reports.heat_map import heat_map
from edge_albert.reports.tables import markdown_table

Facts = Mapping[str, Any]
HEAT_MAP = "sensitivity.svg"
_BLOCKS = " ▁▂▃▄▅▆▇█"
_SHAPE_BINS = 16  # characters of a distribution's picture


def spark(values: Sequence[float]) -> str:
    """One block character per value, the largest the tallest: [1, 4, 2] ► "▂█▄"; anything above zero is seen."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(steps, max(value > 0, round(value / top * steps)))] for value in values)


def calibration_page(content: Facts) -> str:
    """report.md of `python -m edge_albert.calibrate`, from the content of its calibration.json."""
    texts = content["texts"]
    parts = [
        "# Calibration",
        f"{texts['count']} texts, {texts['tokens']:,} tokens, of {texts['source']}; made with edge_albert "
        f"{content['edge_albert']} for the {content['model']['task']} model with weights "
        f"{content['model']['sha256'][:12]}….",
        "## Activations",
        ranges_table(content["sites"]),
    ]
    if "sensitivity" in content:
        parts += ["## Sensitivity", sensitivity_table(content["sensitivity"])]
        if content["sensitivity"]["iterations"]:
            parts.append(f"![Loss of each matrix in int4, in each iteration alone]({HEAT_MAP})")
    return "\n\n".join(parts) + "\n"


def ranges_table(sites: Facts, method: str | None = None) -> str:
    """One row per site: extremes, the method's range over all iterations, pictures, outlier channels."""
    rows = []
    for site, entry in sites.items():
        shared = entry["shared"]
        spans = [max(-part["min"], part["max"]) for part in entry["iterations"]]
        chosen = shared["ranges"][method] if method else (shared["percentiles"]["0.1"], shared["percentiles"]["99.9"])
        rows.append(
            (
                site,
                _span(shared["min"], shared["max"]),
                _span(*chosen),
                f"`{spark(spans)}`" if len(spans) > 1 else "once",
                f"`{_shape(shared)}`",
                ", ".join(f"{channel}" for channel, _ in shared["outlier_channels"]) or "–",
            )
        )
    inner = f"{method} range" if method else "0.1 % … 99.9 %"
    header = ("activation", "min … max", inner, "largest, by iteration", "distribution", "outlier channels")
    return markdown_table(header, rows)


def sensitivity_table(sensitivity: Facts) -> str:
    """One row per matrix: the loss and the changed labels in int8 and in int4, the most sensitive first."""
    rows = [
        (name, *(_cost(costs[precision]) for precision in ("int8", "int4")))
        for name, costs in sorted(sensitivity["matrices"].items(), key=lambda item: -item[1]["int4"]["loss"])
    ]
    table = markdown_table(("matrix", "int8: loss (changed)", "int4: loss (changed)"), rows)
    return f"One matrix rounded at a time, in all iterations, on {sensitivity['texts']} texts.\n\n{table}"


def sensitivity_picture(sensitivity: Facts) -> str:
    """The heat map as SVG: a row per iteration and one for all of them, a column per matrix of the layer."""
    names = list(sensitivity["iterations"])
    count = len(next(iter(sensitivity["iterations"].values())))
    rows: list[tuple[str, list[float | None]]] = []
    for iteration in range(count):
        costs = [sensitivity["iterations"][name][iteration] for name in names]
        rows.append((f"iteration {iteration + 1}", [None if cost is None else cost["loss"] for cost in costs]))
    rows.append(("all", [sensitivity["matrices"][name]["int4"]["loss"] for name in names]))
    columns = [name.removeprefix("layer.").removesuffix(".weight").replace("attention.", "") for name in names]
    note = f"Loss on {sensitivity['texts']} texts; darker costs more, logarithmic."
    return heat_map("One matrix in int4, in one iteration alone", columns, rows, note)


def _span(low: float, high: float) -> str:
    return f"{low:.3g} … {high:.3g}"


def _cost(cost: Facts) -> str:
    changed = "" if cost["changed"] is None else f" ({100 * cost['changed']:.1f} %)"
    return f"{cost['loss']:.2e}{changed}"


def _shape(facts: Facts) -> str:
    """The histogram between the extremes as _SHAPE_BINS characters, roots of counts so that tails are seen."""
    limit, counts = facts["histogram"]["limit"], facts["histogram"]["counts"]
    width = 2 * limit / len(counts)
    first = int((facts["min"] + limit) // width)
    last = min(len(counts) - 1, int((facts["max"] + limit) // width))
    inside = counts[max(0, first) : last + 1]
    group = -(-len(inside) // _SHAPE_BINS)
    sums = [sum(inside[i : i + group]) for i in range(0, len(inside), group)]
    return spark([count**0.5 for count in sums])
