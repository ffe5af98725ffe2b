"""Pictures as SVG that is readable on a phone, in light and in dark mode: matplotlib draws, one function adapts.

Panels stand below each other, never side by side, so that a picture as wide as a phone keeps its letters legible. Text
stays text, in the reader's own font. Ink takes `currentColor`, which a style block sets for light and for dark together
with the ground, so that the picture is legible too where the page around it has the other scheme.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

WIDTH_INCHES, PANEL_INCHES = 5.0, 2.3  # 5 inches are 360 units: a phone's width
# distinguishable for the colour-blind (Okabe and Ito), each with a contrast of 3 or more to both grounds
COLOURS = ("#0080c0", "#d55e00", "#009468", "#b66a95", "#8a7a00", "#7a7a7a")
MARKERS = "osD^vX"
LIGHT, DARK = ("#1f2328", "#ffffff"), ("#e6edf3", "#0d1117")  # ink, ground
_INK = "#010203"  # stands for ink until `_adapt`; no other colour is the same
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "edge_albert", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],  # the first comes with matplotlib, the second is the reader's
    "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 10, "legend.fontsize": 9, "xtick.labelsize": 9,
    "ytick.labelsize": 9, "axes.titlelocation": "left", "text.color": _INK, "axes.edgecolor": _INK,
    "axes.labelcolor": _INK, "axes.titlecolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "grid.color": _INK,
    "grid.alpha": 0.15, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "lines.linewidth": 1.6, "lines.markersize": 4,
}  # fmt: skip

Panel = Callable[[Any], None]  # draws on a matplotlib Axes


def find_drawing_library() -> None:
    """Raises ModuleNotFoundError, which the commands turn into one line with the extra to install."""
    import matplotlib  # noqa: F401


def draw_svg(panels: Sequence[Panel], title: str, *, panel_inches: float = PANEL_INCHES) -> str:
    """The panels below each other as the text of an SVG file; the same panels give the same text.

    title: what the picture shows, in words. Raises ModuleNotFoundError without matplotlib (the extra "report").
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, panel_inches * len(panels)), layout="constrained")
        for panel, axes in zip(panels, figure.subplots(len(panels), squeeze=False)[:, 0], strict=True):
            panel(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _adapt(out.getvalue(), title)


def _adapt(svg: str, title: str) -> str:
    """Ink ► currentColor, and a style block with ink and ground for light and dark."""
    rules = f"svg{{color:{LIGHT[0]};background:{LIGHT[1]}}}"
    rules += f"@media(prefers-color-scheme:dark){{svg{{color:{DARK[0]};background:{DARK[1]}}}}}"
    head, opened, body = svg.partition("<svg ")
    attributes, _, rest = body.partition(">")
    begun = f'{head}{opened}role="img" {attributes}>\n <title>{escape(title)}</title>\n <style>{rules}</style>'
    return "\n".join(line.rstrip() for line in (begun + rest.replace(_INK, "currentColor")).splitlines()) + "\n"


# -- kinds of panel ----------------------------------------------------------------------------------------------------


def bars(title: str, names: Sequence[str], values: Sequence[float], said: Sequence[str]) -> Panel:
    """Horizontal bars from the top down; `said` is written behind each."""

    def panel(axes: Any) -> None:
        places = range(len(names))
        drawn = axes.barh(places, values, color=COLOURS[0], height=0.7)
        axes.bar_label(drawn, said, padding=3, fontsize=9)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.margins(x=0.22)
        axes.set_xlim(left=0)
        axes.set_xticks([])
        axes.set_title(title)

    return panel


def curves(
    title: str,
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    label: str = "",
    *,
    marks: Sequence[float] = (),
    legend: bool = False,
    from_zero: bool = False,
) -> Panel:
    """Lines of (name, x, y), x whole numbers, all in one panel. marks: places on x with a dotted line."""

    def panel(axes: Any) -> None:
        for number, (name, x, y) in enumerate(lines):
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
            axes.plot(x, y, label=name, **style)
        for mark in marks:
            axes.axvline(mark, linestyle=":", linewidth=1, color=_INK, alpha=0.6)
        axes.set_title(title)
        axes.set_xlabel(label)
        axes.grid(True)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if from_zero:
            axes.set_ylim(bottom=0)
        if legend:
            axes.legend(loc="best")

    return panel


def dots(title: str, names: Sequence[str], values: Sequence[Sequence[float]], said: Sequence[str]) -> Panel:
    """A row for each name from the top down: a dot for each of its values; `said` is written at the right end.

    The values are per cent; the axis spans two of them at least, so that a small difference looks small.
    """
    low, high = min(map(min, values)), max(map(max, values))
    room = max(0.05 * (high - low), (2 - (high - low)) / 2)

    def panel(axes: Any) -> None:
        axes.set_xlim(low - room, high + room)
        for place, row in enumerate(values):
            axes.plot(row, [place] * len(row), color=COLOURS[0], marker="o", linewidth=1)
        for place, text in enumerate(said):
            axes.annotate(
                text, (1, place), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=9, annotation_clip=False,
            )  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(title)
        axes.grid(True)

    return panel
