"""The export's report as a person reads it: a few lines at the terminal, a page in Markdown.

Both are made from the same dictionary that report.json holds (schema edge_albert.export_report, version 1).
MB are 10^6 bytes; a time is of one inference on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_albert.reports.tables import markdown_table, megabytes

Report = Mapping[str, Any]
_LARGEST = 12  # tensors listed in the Markdown report


def to_text(report: Report, output: Path) -> str:
    """What the command prints at the end."""
    lines = []
    for facts in report["formats"].values():
        lines += [
            f"size     {facts['file']} {megabytes(facts['file_bytes'])}, {_over_floor(report, facts)}",
            f"copies   {_copies(facts)}",
            f"float    {_left_in_float(facts)}",
            f"agrees   {_agreement(facts['agreement'])}",
            *_runtime_lines(facts),
        ]
    return "\n".join([*lines, f"bundle   {output} (report: {output / 'report.md'})"])


def to_markdown(report: Report) -> str:
    """report.md"""
    model = report["model"]
    parts = [
        f"# {Path(model['source']).name}: {report['precision']} bundle",
        f"Made by `{report['command']}` with edge_albert {report['edge_albert']}.",
        "## Model",
        markdown_table(
            ("", ""),
            [
                ("task", model["task"]),
                ("labels", ", ".join(model["labels"])),
                ("parameters", f"{model['parameters']:,}"),
                ("layers stored / applied", f"{model['shared_layers']} / {model['iterations']}"),
                ("multiply-adds at 128 tokens", f"{model['macs_at_128'] / 1e6:,.0f} M"),
            ],
        ),
    ]
    for facts in report["formats"].values():
        parts += _format_section(report, facts)
    parts += ["## Machine", _machine(report["machine"])]
    return "\n\n".join(parts) + "\n"


def _format_section(report: Report, facts: Report) -> list[str]:
    tensors = sorted(facts["tensors"].items(), key=lambda item: -item[1]["bytes"])[:_LARGEST]
    weights = sorted(facts["weights"].items(), key=lambda item: -item[1]["relative_error"])
    parts = [
        f"## {facts['file']}",
        f"{megabytes(facts['file_bytes'])}, {_over_floor(report, facts)}. Form: {facts['form']}. "
        f"Checked on {facts['engine']}.",
        f"**Copies.** {_copies(facts)}",
        f"**Left in float.** {_left_in_float(facts)}",
        f"**Agreement with the fp32 reference.** {_agreement(facts['agreement'])}",
    ]
    if "runtime" in facts:
        parts += ["### Runtime, one thread", _runtime_table(facts["runtime"])]
    parts += [
        "### Largest tensors",
        markdown_table(("tensor", "type", "bytes"), [(n, t["dtype"], f"{t['bytes']:,}") for n, t in tensors]),
        "### Error of each weight",
        markdown_table(
            ("weight", "stored as", "‖w − ŵ‖ / ‖w‖"),
            [(name, record["scheme"], f"{record['relative_error']:.5f}") for name, record in weights],
        ),
    ]
    return parts


# -- sentences both share ---------------------------------------------------------------------------------------------


def _over_floor(report: Report, facts: Report) -> str:
    size = {"fp32": 4, "fp16": 2, "int8": 1}[report["precision"]]
    ratio = facts["file_bytes"] / facts["floor_bytes"]
    unit = "byte" if size == 1 else "bytes"
    floor = f"{report['model']['parameters']:,} parameters × {size} {unit}"
    return f"{ratio:.3f} × the floor of {megabytes(facts['floor_bytes'])} ({floor})"


def _copies(facts: Report) -> str:
    copies = facts["copies"]
    odd = {name: count for name, count in copies.items() if count != 1}
    if not odd:
        return f"each of the {len(copies)} weight matrices stands exactly once"
    return f"of {len(copies)} weight matrices these do not stand once: " + ", ".join(
        f"{name} ({count})" for name, count in sorted(odd.items())
    )


def _left_in_float(facts: Report) -> str:
    total = facts["quantized_products"] + len(facts["float_products"])
    if not facts["float_products"]:
        return f"none of the {total} products with a weight"
    return f"{len(facts['float_products'])} of {total} products with a weight: {', '.join(facts['float_products'])}"


def _agreement(agreement: Report) -> str:
    label = "" if agreement["same_label"] is None else f"same label {100 * agreement['same_label']:.1f} %, "
    return (
        f"{agreement['texts']} texts: {label}cosine {agreement['mean_cosine']:.5f} "
        f"(lowest {agreement['min_cosine']:.5f}), largest difference {agreement['max_difference']:.4f}"
    )


# -- what was measured ------------------------------------------------------------------------------------------------


def _runtime_lines(facts: Report) -> Sequence[str]:
    if "runtime" not in facts:
        return []
    runtime = facts["runtime"]
    times = "; ".join(
        f"{row['length']} tokens " + " / ".join(f"{row['wall_ms'][name]:.1f}" for name in ("p50", "p90", "p99"))
        for row in runtime["runs"]
    )
    return [
        f"memory   {megabytes(runtime['anon_bytes'])} beyond the engine itself; whole process at most "
        f"{megabytes(runtime['peak_rss_bytes'])}",
        f"speed    load {runtime['load_ms']:.0f} ms; one thread, p50 / p90 / p99 in ms: {times}",
    ]


def _runtime_table(runtime: Report) -> str:
    rows = [
        (
            row["length"],
            *(f"{row['wall_ms'][name]:.2f}" for name in ("p50", "p90", "p99")),
            f"{row['cpu_ms']['p50']:.2f}",
            megabytes(row["anon_bytes"]),
        )
        for row in runtime["runs"]
    ]
    table = markdown_table(("tokens", "p50 ms", "p90 ms", "p99 ms", "CPU ms", "memory"), rows)
    return (
        f"Load {runtime['load_ms']:.0f} ms, memory after load {megabytes(runtime['load_anon_bytes'])}, "
        f"whole process at most {megabytes(runtime['peak_rss_bytes'])}. Memory is anonymous memory beyond the "
        f"interpreter with the engine imported: what cannot be dropped.\n\n{table}"
    )


def _machine(machine: Report) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    instructions = ", ".join(machine["int8_instructions"]) or "no int8 instructions known of"
    cpu = f"{machine['cpu']} ({machine['architecture']}: {instructions})"
    return f"{cpu}, {machine['system']}, Python {machine['python']}, {packages}."
