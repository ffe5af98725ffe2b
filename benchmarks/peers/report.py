"""The result as Markdown: figures, and in brackets how many times the expert peer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_albert.reports.tables import markdown_table

Figures = Mapping[str, Any]


def to_markdown(result: Figures) -> str:
    """Two tables, what is behind them, and what is missing from them. result: as written to JSON."""
    rows = result["rows"]
    base = next((index for index, row in enumerate(rows) if row["name"] == result["base"]), None)
    parts = [_machine(result)]
    if rows:
        parts += [_costs(rows, base), _times(rows, base)]
    parts.append(
        f"Batch 1, one thread, each row in {result['rounds']} fresh processes in turn, medians. Times of an inference "
        "are CPU times. anon: MB of anonymous memory over the interpreter with the engine imported, after loading and "
        "after the runs of each length; the peak is of the whole process. In brackets: times the expert peer's. "
        f"Δlogit: largest difference from the float model's logits on {result['agreement_sequences']} random tokens. "
        "MB are 10⁶ bytes."
    )
    if result.get("install_bytes") is not None:
        parts.append(f"`pip install` of the export extra: {result['install_bytes'] / 1e6:.0f} MB.")
    parts += [f"- {name} left out: {why}" for name, why in {**result["skipped"], **result["failed"]}.items()]
    return "\n\n".join(parts) + "\n"


def _machine(result: Figures) -> str:
    machine = result["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    instructions = ", ".join(machine["int8_instructions"]) or "none known of"
    commit = f", commit {result['commit']}" if result["commit"] else ""
    return (
        f"**{result['model']}** on {machine['cpu']} ({machine['cpus']} processors, int8 instructions: {instructions}), "
        f"{machine['system']}, Python {machine['python']}, {packages}; {result['date']}{commit}"
    )


def _costs(rows: Sequence[Figures], base: int | None) -> str:
    lengths = list(rows[0]["lengths"])
    header = ["", "file MB", "anon loaded", *(f"anon S={length}" for length in lengths), "peak RSS"]
    columns = [
        [row["file_bytes"] for row in rows],
        [row["load_anon_bytes"] for row in rows],
        *([row["lengths"][length]["anon_bytes"] for row in rows] for length in lengths),
        [row["peak_rss_bytes"] for row in rows],
    ]
    cells = [_cells(column, base, lambda count: f"{count / 1e6:.2f}") for column in columns]
    return markdown_table(header, zip([row["label"] for row in rows], *cells, strict=True))


def _times(rows: Sequence[Figures], base: int | None) -> str:
    lengths = list(rows[0]["lengths"])
    header = ["", "export s", "load ms", *(f"CPU ms S={length}" for length in lengths), "max Δlogit", "cosine"]
    columns = [
        [row["export_seconds"] for row in rows],
        [row["load_ms"] for row in rows],
        *([row["lengths"][length]["cpu_ms"] for row in rows] for length in lengths),
    ]
    cells = [_cells(column, base, lambda value: f"{value:.1f}") for column in columns]
    cells.append([f"{row['agreement']['max_difference']:.4f}" for row in rows])
    cells.append([f"{row['agreement']['cosine']:.5f}" for row in rows])
    return markdown_table(header, zip([row["label"] for row in rows], *cells, strict=True))


def _cells(values: Sequence[float | None], base: int | None, show: Callable[[float], str]) -> list[str]:
    """Each figure, and in brackets its ratio to the base row's; a dash where there is none."""
    unit = None if base is None else values[base]
    out = []
    for value in values:
        ratio = f" ({value / unit:.2f})" if value is not None and unit else ""
        out.append("–" if value is None else show(value) + ratio)
    return out
