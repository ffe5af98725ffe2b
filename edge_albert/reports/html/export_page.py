"""An export's report as a page: size by tensor against the floor, the proof of one copy, agreement, latency, memory.

Made from the dictionary of report.json (schema edge_albert.export_report, version 1). What a report lacks, such as
measurements after --no-measure, has no section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_albert.reports.export_report import held
from edge_albert.reports.html.charts import Bar, bars, legend
from edge_albert.reports.html.exit_page import exit_section
from edge_albert.reports.html.page import Markup, element, facts, figures, joined, page, paragraph, section, table
from edge_albert.reports.html.quality_page import quality_sections
from edge_albert.reports.tables import megabytes

Report = Mapping[str, Any]

# Where a tensor's bytes are counted: the first part whose pattern its name begins with.
_PARTS = {
    "word embedding": r"embeddings\.word",
    "other embeddings and projection": r"embeddings\.|encoder\.embedding_hidden_mapping_in",
    "attention": r"layer\.(\d+\.\d+\.)?attention",
    "feed-forward": r"layer\.",
    "pooler and head": r"pooler|classifier|qa_outputs|exits?\.",
}
_REST = "graph, names, constants"


def to_html(report: Report, *more: Markup) -> str:
    """report.html. more: sections that other measurements add (a benchmark, an APK)."""
    model = report["model"]
    title = f"{Path(model['source']).name}: {report['precision']} {'bundle' if held(report) else 'export, refused'}"
    return page(
        title,
        element("h1", title),
        paragraph(
            joined(["Made by ", element("code", report["command"]), f" with edge_albert {report['edge_albert']}."]),
            "dim",
        ),
        _figures(report),
        _model(report),
        _size(report),
        _copies(report),
        _agreement(report),
        *quality_sections(report),
        *exit_section(report),
        *_weights(report),
        *_measured(report),
        *more,
        machine_section(report["machine"]),
    )


def _figures(report: Report) -> Markup:
    pairs: list[tuple[object, str]] = [(f"{report['model']['parameters']:,}", "unique parameters")]
    for entry in report["formats"].values():
        pairs.append((megabytes(entry["file_bytes"]), entry["file"]))
    best = [entry["runtime"] for entry in report["formats"].values() if "runtime" in entry]
    if best:
        lean = min(best, key=lambda runtime: runtime["anon_bytes"] or float("inf"))
        pairs.append((megabytes(lean["anon_bytes"]), f"memory it needs, {_engine(lean)}"))
        row = best[0]["runs"][len(best[0]["runs"]) // 2]
        fast = min(best, key=lambda runtime: _run(runtime, row["length"])["wall_ms"]["p50"])
        pairs.append(
            (f"{_run(fast, row['length'])['wall_ms']['p50']:.1f} ms", f"{row['length']} tokens, {_engine(fast)}")
        )
    return figures(pairs)


def _model(report: Report) -> Markup:
    model = report["model"]
    rows = [
        ("task", model["task"]),
        ("labels", ", ".join(model["labels"]) or "none"),
        ("layers stored / applied", f"{model['shared_layers']} / {model['iterations']}"),
        ("multiply-adds at 128 tokens", f"{model['macs_at_128'] / 1e6:,.0f} M"),
    ]
    return section("Model", facts(rows))


# -- size --------------------------------------------------------------------------------------------------------------


def size_parts(entry: Report) -> dict[str, int]:
    """Bytes of a model file by part of the model; they add up to the file's size."""
    out = dict.fromkeys(_PARTS, 0)
    for tensor, stored in entry["tensors"].items():
        part = next((name for name, pattern in _PARTS.items() if re.match(pattern, tensor)), None)
        if part is not None:
            out[part] += stored["bytes"]
    out[_REST] = entry["file_bytes"] - sum(out.values())
    return out


def _size(report: Report) -> Markup:
    formats = list(report["formats"].values())
    parts = [size_parts(entry) for entry in formats]
    rows = [
        Bar(entry["file"], list(enumerate(sizes.values())), megabytes(entry["file_bytes"]), entry["floor_bytes"])
        for entry, sizes in zip(formats, parts, strict=True)
    ]
    names = list(parts[0])
    counts = [(name, *(f"{sizes[name]:,}" for sizes in parts)) for name in names]
    counts.append(("file", *(f"{entry['file_bytes']:,}" for entry in formats)))
    said = "; ".join(
        f"{entry['file']} is {entry['file_bytes'] / entry['floor_bytes']:.3f} × its floor of "
        f"{megabytes(entry['floor_bytes'])}"
        for entry in formats
    )
    return section(
        "Size",
        paragraph(f"{said}. The floor, marked in the bar, is every unique parameter once and nothing else."),
        bars(rows),
        legend(list(enumerate(names))),
        element("h3", "Bytes"),
        table(("", *(entry["file"] for entry in formats)), counts),
    )


def _copies(report: Report) -> Markup:
    lines = []
    for entry in report["formats"].values():
        odd = {name: count for name, count in entry["copies"].items() if count != 1}
        if odd:
            said = ", ".join(f"{name}: {count}" for name, count in sorted(odd.items()))
            lines.append(paragraph(f"{entry['file']}: not once: {said}", "bad"))
        else:
            lines.append(
                paragraph(
                    joined(
                        [
                            element("b", "✓ ", class_="good"),
                            f"{entry['file']}: each of the {len(entry['copies'])} weight matrices stands exactly once "
                            f"(read back from the finished file; form: {entry['form']}).",
                        ]
                    )
                )
            )
    return section("One copy", *lines)


# -- quality -----------------------------------------------------------------------------------------------------------


def _agreement(report: Report) -> Markup:
    rows = []
    for entry in report["formats"].values():
        a = entry["agreement"]
        same = "–" if a["same_label"] is None else f"{100 * a['same_label']:.1f} %"
        rows.append(
            (
                entry["file"],
                a["texts"],
                same,
                f"{a['mean_cosine']:.5f}",
                f"{a['min_cosine']:.5f}",
                f"{a['max_difference']:.4f}",
            )
        )
    return section(
        "Agreement with the float model",
        paragraph(
            "The exported files, through their engines, against a float32 reference written apart from the exporter."
        ),
        table(("", "texts", "same label", "cosine", "lowest", "largest difference"), rows),
    )


def _weights(report: Report) -> Sequence[Markup]:
    rows = []
    for entry in report["formats"].values():
        for name, record in entry["weights"].items():
            if record["relative_error"] > 0:
                rows.append((entry["file"], name, record["scheme"], record["relative_error"]))
    if not rows:
        return []
    rows.sort(key=lambda row: -row[3])
    shown = [
        Bar(f"{name}", [(4, error)], f"{error:.5f} {scheme}")
        for file, name, scheme, error in rows
        if file == rows[0][0]
    ]
    return [
        section(
            "Error of each weight",
            paragraph(f"‖w − ŵ‖ / ‖w‖ of what stands in {rows[0][0]}."),
            bars(shown),
        )
    ]


# -- what was measured -------------------------------------------------------------------------------------------------


def _measured(report: Report) -> Sequence[Markup]:
    runtimes = [entry["runtime"] for entry in report["formats"].values() if "runtime" in entry]
    if not runtimes:
        return []
    return [_latency(runtimes), _memory(runtimes)]


def _latency(runtimes: Sequence[Report]) -> Markup:
    rows, table_rows = [], []
    for length in [run["length"] for run in runtimes[0]["runs"]]:
        for colour, runtime in enumerate(runtimes):
            wall, cpu = _run(runtime, length)["wall_ms"], _run(runtime, length)["cpu_ms"]
            rows.append(Bar(f"{length} tokens", [(colour, wall["p50"])], f"{wall['p50']:.2f} ms", wall["p90"]))
            table_rows.append(
                (
                    f"{length} tokens, {_engine(runtime)}",
                    *(f"{wall[name]:.2f}" for name in ("p50", "p90", "p99")),
                    f"{cpu['p50']:.2f}",
                )
            )
    return section(
        "Latency by length",
        paragraph(
            f"Milliseconds of one inference on {_threads(runtimes)}, batch 1: the median, with p90 marked.", "dim"
        ),
        bars(rows),
        legend([(colour, runtime["engine"]) for colour, runtime in enumerate(runtimes)]),
        element("h3", "Percentiles"),
        table(("ms", "p50", "p90", "p99", "CPU p50"), table_rows),
    )


def _memory(runtimes: Sequence[Report]) -> Markup:
    rows = []
    for runtime in runtimes:
        base = runtime["baseline_anon_bytes"] or 0
        phases = [("after load", runtime["load_anon_bytes"])]
        phases += [(f"after {run['length']} tokens", run["anon_bytes"]) for run in runtime["runs"]]
        rows += [
            Bar(f"{_engine(runtime)}, {name}", [(5, base), (0, grown or 0)], f"+{megabytes(grown)}")
            for name, grown in phases
        ]
    peaks = "; ".join(f"{_engine(runtime)} {megabytes(runtime['peak_rss_bytes'])}" for runtime in runtimes)
    return section(
        "Memory by phase",
        paragraph(
            "Anonymous memory, which a system cannot drop: first the interpreter with the engine imported, then what "
            "the model adds."
        ),
        bars(rows),
        legend([(5, "interpreter and engine"), (0, "this model")]),
        paragraph(f"Whole process at most, mapped files included: {peaks}.", "dim"),
    )


def _run(runtime: Report, length: int) -> Report:
    return next(run for run in runtime["runs"] if run["length"] == length)


def _engine(runtime: Report) -> str:
    """The engine's name without its version."""
    package: str = runtime["engine"].split()[0]
    return {"onnxruntime": "ONNX Runtime", "ai-edge-litert": "LiteRT"}.get(package, package)


def _threads(runtimes: Sequence[Report]) -> str:
    count = runtimes[0]["threads"]
    return "one thread" if count == 1 else f"{count} threads"


# -- machine -----------------------------------------------------------------------------------------------------------


def machine_section(machine: Report) -> Markup:
    """On what it was measured."""
    instructions = ", ".join(machine["int8_instructions"]) or "none known of"
    rows = [
        ("processor", f"{machine['cpu']} ({machine['architecture']})"),
        ("int8 instructions", instructions),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in machine["packages"].items())),
    ]
    return section("Machine", facts(rows))
