"""Bars and dots drawn with CSS: they follow the page's width and colours, and a screen reader reads bars as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_albert.reports.html.page import COLOURS, Markup, element, joined


@dataclass(frozen=True)
class Bar:
    """One row: what it is called, the lengths of its coloured parts, what is written behind it, a mark on the scale.

    parts: (colour 0 … 5, value) from left to right, in the unit of the chart's scale.
    """

    name: str
    parts: Sequence[tuple[int, float]]
    said: str
    mark: float | None = None


def bars(rows: Sequence[Bar], scale: float | None = None) -> Markup:
    """Rows of bars on one linear scale from 0 to `scale`, by default the largest value or mark."""
    top = scale or max((max(sum(value for _, value in row.parts), row.mark or 0.0) for row in rows), default=0.0)
    cells = []
    for row in rows:
        inner = [
            element("i", style=f"width:{_share(value, top)}%;background:var(--c{c % COLOURS})")
            for c, value in row.parts
        ]
        if row.mark is not None:
            inner.append(element("u", style=f"left:{_share(row.mark, top)}%"))
        track = element("div", joined(inner), class_="track", role="img", aria_label=f"{row.name}: {row.said}")
        spans = [element("span", row.name), track, element("span", row.said)]
        cells.append(element("div", joined(spans), class_="row"))
    return element("div", joined(cells), class_="bars")


@dataclass(frozen=True)
class Dot:
    """A point of a plot: what it is called, its colour 0 … 5, where it lies. ring: drawn around it, to be found."""

    name: str
    colour: int
    x: float
    y: float
    ring: bool = False


def plot(dots: Sequence[Dot], across: int) -> Markup:
    """Dots in a plane: x from 0 to `across`, a tick at some whole numbers; y over what there is, with six ticks."""
    low, high = min(dot.y for dot in dots), max(dot.y for dot in dots)
    low, high = (low, high) if high > low else (low - 1, high + 1)
    step, digits = max(1, round(across / 6)), 1 if high - low > 2 else 2
    inner = [
        element("span", str(tick), class_="x", style=f"left:{_share(tick, across)}%")
        for tick in range(0, across + 1, step)
    ]
    for fifth in range(6):
        value = low + fifth * (high - low) / 5
        inner.append(element("span", f"{value:.{digits}f}", class_="y", style=f"bottom:{20 * fifth}%"))
    for dot in sorted(dots, key=lambda one: one.ring):
        place = f"left:{_share(dot.x, across)}%;bottom:{_share(dot.y - low, high - low)}%"
        said = f"{dot.name}: {dot.x:.2f}, {dot.y:.2f}"
        inner.append(element("i", title=said, style=f"{place};background:var(--c{dot.colour % COLOURS})"))
        if dot.ring:
            inner.append(element("i", title=said, class_="ring", style=place))
    return element("div", joined(inner), class_="plot", aria_hidden="true")


def legend(names: Sequence[tuple[int, str]]) -> Markup:
    """(colour, name) pairs under a chart."""
    items = (
        element("span", joined([element("i", style=f"background:var(--c{colour % COLOURS})"), name]))
        for colour, name in names
    )
    return element("div", joined(items), class_="legend")


def heat(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]], digits: int = 4) -> Markup:
    """A table whose cells are tinted by value, from 0 to the largest. rows: (name, one value per column)."""
    top = max((value for _, values in rows for value in values), default=0.0)
    head = element("tr", joined(element("th", name) for name in ("", *columns)))
    body = []
    for name, values in rows:
        cells = [element("td", name)]
        for value in values:
            share = max(0.0, value) / top if top > 0 else 0.0
            tint = f"background:color-mix(in srgb, var(--c4) {100 * share:.0f}%, transparent)"
            cells.append(element("td", f"{value:.{digits}f}", style=tint))
        body.append(element("tr", joined(cells)))
    whole = element("table", joined([element("thead", head), element("tbody", joined(body))]), class_="heat")
    return element("div", whole, class_="wide")


def _share(value: float, top: float) -> str:
    return f"{100 * max(0.0, value) / top:.3f}" if top > 0 else "0"
