"""The export's report as a person reads it: a few lines at the terminal, a page in Markdown.

Both are made from the same dictionary that report.json holds (schema edge_albert.export_report, version 1). Where the
export needed them it has `calibration` (calibration/collect.py's content with `method` and `per_iteration`),
`sensitivity` (calibration/sensitivity.py), `choice` (what --mixed or --max-loss chose: `asked`, `precisions`,
`points_lost`, `texts`, `steps`), `overrides` (matrices whose precision is not the export's) and `gate` (`holds`,
`formats`: a calibration.gate.Verdict for each, `overrides`, `refused`: the same for every attempt before). With early
exit it has `early_exit` (edge_albert/reports/exit_report.py).
MB are 10^6 bytes; a time is of one inference on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_albert.reports.calibration_report import ranges_table, sensitivity_table
from edge_albert.reports.exit_report import exit_lines, exit_sections
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
    lines += exit_lines(report)
    if not held(report):
        return "\n".join([refusal(report), f"report   {output / 'report.md'}; no bundle was written"])
    return "\n".join([*lines, f"bundle   {output} (report: {output / 'report.md'})"])


def held(report: Report) -> bool:
    """Whether nothing was to be refused, or the gate held."""
    return report.get("gate", {"holds": True})["holds"]


def refusal(report: Report) -> str:
    """Why the gate refused the export, in one line."""
    gate = report["gate"]
    lost = "; ".join(
        f"{report['formats'][format]['file']} {verdict_line(verdict)}"
        for format, verdict in gate["formats"].items()
        if not verdict["holds"]
    )
    tried = len(gate["refused"])
    remedy = "; --fallback retries with more bits for the most sensitive matrices"
    if gate["fallback"]:
        remedy = f"; {tried} retries with more bits did not help" if tried else "; there are no more bits to give"
    return f"refused  {lost}{remedy}"


def verdict_line(verdict: Report) -> str:
    """accuracy 97.31 ► 97.20 on 872 rows, 0.11 points lost (95 %: -0.23 … 0.46), 0.50 allowed"""
    low, high = verdict["interval"]
    allowed = "" if verdict["allowed"] is None else f", {verdict['allowed']:.2f} allowed"
    unsure = "; what is allowed lies inside the interval: more rows would say more" if verdict["uncertain"] else ""
    return (
        f"{verdict['metric']} {verdict['float_points']:.2f} ► {verdict['exported_points']:.2f} on {verdict['rows']} "
        f"rows, {verdict['drop']:.2f} points lost (95 %: {low:.2f} … {high:.2f}){allowed}{unsure}"
    )


def to_markdown(report: Report) -> str:
    """report.md"""
    model = report["model"]
    parts = [
        f"# {Path(model['source']).name}: {report['precision']} {'bundle' if held(report) else 'export, refused'}",
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
    if "gate" in report:
        parts += _gate_section(report)
    parts += exit_sections(report)
    for facts in report["formats"].values():
        parts += _format_section(report, facts)
    parts += _precision_sections(report)
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


def _gate_section(report: Report) -> list[str]:
    """The verdict on every file, and on those before it that were refused."""
    gate = report["gate"]
    rows = []
    for number, attempt in enumerate([*gate["refused"], gate], start=1):
        for format, verdict in attempt["formats"].items():
            low, high = verdict["interval"]
            figures = (verdict["float_points"], verdict["exported_points"], verdict["drop"])
            rows.append(
                (
                    f"{number}: {format}",
                    *(f"{figure:.2f}" for figure in figures),
                    f"{low:.2f} … {high:.2f}",
                    "–" if verdict["allowed"] is None else f"{verdict['allowed']:.2f}",
                    "holds" if verdict["holds"] else "refused",
                )
            )
    verdict = next(iter(gate["formats"].values()))
    header = ("attempt", f"float {verdict['metric']}", "exported", "lost", "95 % interval", "allowed", "verdict")
    said = "**The gate holds.**" if gate["holds"] else "**The gate refused this export: there is no bundle.**"
    return [
        "## Gate",
        f"{said} {verdict['rows']} rows of {gate['data']}; the file runs in its engine, the float model in NumPy. "
        "Points are 100 × the metric; the interval is a paired bootstrap.",
        markdown_table(header, rows),
    ]


def _precision_sections(report: Report) -> list[str]:
    """What calibration found and chose, where the export needed it."""
    parts = []
    if "choice" in report:
        choice = report["choice"]
        rows = [(name, precision) for name, precision in choice["precisions"].items()]
        parts += [
            "## Precision of each matrix",
            f"Chosen for {_asked(choice['asked'])}; {choice['points_lost']:.2f} points lost on {choice['texts']} "
            "calibration texts by the weights alone.",
            markdown_table(("matrix", "precision"), rows),
        ]
    if "sensitivity" in report:
        parts += ["## Sensitivity", sensitivity_table(report["sensitivity"])]
    if "calibration" in report:
        calibration = report["calibration"]
        kind = "a range for each iteration" if calibration["per_iteration"] else "one range for all iterations"
        texts = calibration["texts"]
        parts += [
            "## Activation ranges",
            f"{calibration['method']}, {kind}, from {texts['count']} texts of {texts['source']}.",
            ranges_table(calibration["sites"], calibration["method"]),
        ]
    return parts


def _asked(asked: Report) -> str:
    if asked["bytes"] is not None:
        return f"at most {asked['bytes']:,} bytes"
    return f"at most {asked['points']:g} points lost on the calibration texts"


# -- sentences both share ---------------------------------------------------------------------------------------------


def _over_floor(report: Report, facts: Report) -> str:
    sizes = {"fp32": "4 bytes", "fp16": "2 bytes", "int8": "1 byte", "int8-static": "1 byte", "int4": "half a byte"}
    ratio = facts["file_bytes"] / facts["floor_bytes"]
    each = sizes.get(report["precision"], "what each takes")
    if report.get("overrides"):
        each = "what each takes"
    floor = f"{report['model']['parameters']:,} parameters × {each}"
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
