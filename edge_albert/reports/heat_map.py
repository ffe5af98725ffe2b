"""A table of numbers as a picture: an SVG of coloured cells, each with its number, on a logarithmic scale.

Written by hand, without a plotting library: a table is rectangles and text. The background stays transparent and the
text around the cells follows the reader's light or dark scheme; the cells bring their own background, and their text is
black or white, whichever stands out more (WCAG 2.1's contrast).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

_CELL_WIDTH, _CELL_HEIGHT, _GAP = 84, 26, 2
_HEAD, _LEFT, _FOOT = 52, 110, 30
_PALE, _DEEP = (253, 231, 200), (140, 20, 40)  # of the least and the largest value
_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#1a1a1a}"
    "@media(prefers-color-scheme:dark){text{fill:#e8e8e8}}"
    "text.black{fill:#000}text.white{fill:#fff}"
)


def heat_map(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]], note: str = ""
) -> str:
    """An SVG document. rows: (name, one number of at least 0 per column, None for an empty cell)."""
    values = [value for _, cells in rows for value in cells if value is not None and value > 0]
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    width = _LEFT + len(columns) * (_CELL_WIDTH + _GAP)
    height = _HEAD + len(rows) * (_CELL_HEIGHT + _GAP) + _FOOT
    parts = [_text(0, 14, title, weight="bold")]
    for place, column in enumerate(columns):
        parts.append(_text(_x(place) + _CELL_WIDTH / 2, _HEAD - 8, column, anchor="middle"))
    for number, (name, cells) in enumerate(rows):
        y = _HEAD + number * (_CELL_HEIGHT + _GAP)
        parts.append(_text(_LEFT - 8, y + _CELL_HEIGHT / 2 + 4, name, anchor="end"))
        for place, value in enumerate(cells):
            if value is not None:
                parts += _cell(_x(place), y, value, low, high)
    parts.append(_text(0, height - 8, note))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n<style>{_STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _x(place: int) -> int:
    return _LEFT + place * (_CELL_WIDTH + _GAP)


def _cell(x: float, y: float, value: float, low: float, high: float) -> list[str]:
    share = 0.0 if value <= 0 or high <= low else math.log(max(value, low) / low) / math.log(high / low)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(_PALE, _DEEP, strict=True))
    ink = "black" if _luminance(red, green, blue) > 0.179 else "white"  # where both contrasts are equal
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{_CELL_WIDTH}" height="{_CELL_HEIGHT}" fill="rgb({red},{green},{blue})"/>',
        _text(x + _CELL_WIDTH / 2, y + _CELL_HEIGHT / 2 + 4, f"{value:.1e}", anchor="middle", ink=ink),
    ]


def _luminance(*colour: int) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2.1)."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _text(x: float, y: float, content: str, anchor: str = "start", weight: str = "normal", ink: str = "") -> str:
    kind = f' class="{ink}"' if ink else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}"{kind}>{escape(content)}</text>'
