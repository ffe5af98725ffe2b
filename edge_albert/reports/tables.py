"""Small pieces that every report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def megabytes(count: int | float | None) -> str:
    """1234567 ► "1.23 MB" (10^6 bytes); below 10 MB two decimals, above one; None, what a system does not tell."""
    if count is None:
        return "not known"
    size = count / 1e6
    return f"{size:.2f} MB" if size < 10 else f"{size:.1f} MB"


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join([":---"] + ["---:"] * (len(header) - 1)) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
