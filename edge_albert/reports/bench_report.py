"""The benchmark's document as a person reads it: Markdown, a line to grep, and two documents as ratios.

All are made from the dictionary that the JSON file holds (schema edge_albert.bench, docs/benchmark.md).
MB are 10^6 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge_albert.reports.device_state import throttling
from edge_albert.reports.tables import markdown_table, megabytes

Report = Mapping[str, Any]
_TIMES = ("min", "mean", "p50", "p90", "p95", "p99", "max", "std")


def to_markdown(report: Report) -> str:
    """The whole document."""
    parts = [f"# Benchmark of {report['bundle']['name']} ({report['bundle']['task']})", _machine(report)]
    if not report["complete"]:
        parts.append("**Stopped early: what follows is what had been measured.**")
    for configuration in report["configurations"]:
        parts += _configuration(configuration)
    for failed in report["failed"]:
        parts.append(f"**{failed['engine']}, threads {failed['threads']}: failed.** {failed['reason']}")
    return "\n\n".join(parts) + "\n"


def _machine(report: Report) -> str:
    machine, before, after = report["machine"], report["before"], report["after"]
    cpu = f"{machine['cpu']}, {machine['cpus']} processors ({machine['architecture']})"
    board = f"{machine['board']}, " if machine["board"] else ""
    memory, held_back = megabytes(machine["memory_bytes"]), ", ".join(throttling(before, after)) or "none known of"
    facts = [
        f"{board}{cpu}, {memory} of memory, {machine['system']}, Python {machine['python']}.",
        f"Governor {', '.join(before['governors']) or 'not known'}; {_change('frequency', before, after)}; "
        f"{_change('temperature', before, after)}; throttling: {held_back}.",
        f"edge_albert {report['edge_albert']}, {report['date']}.",
    ]
    if machine["emulated"]:
        facts.insert(0, "**Emulated: times and memory say nothing about the real device.**")
    return "\n".join(facts)


def _change(what: str, before: Report, after: Report) -> str:
    name, unit = ("frequency_mhz", "MHz") if what == "frequency" else ("temperature_c", "°C")

    def largest(state: Report) -> float | None:
        values = state[name]
        return max(values.values() if isinstance(values, Mapping) else values, default=None)

    first, last = largest(before), largest(after)
    if first is None or last is None:
        return f"{what} not known"
    return f"{what} {first:.0f} {unit} before, {last:.0f} {unit} after"


def _configuration(one: Report) -> list[str]:
    init, memory, check = one["init"], one["memory"], one.get("self_check")
    lines = [
        f"## {_title(one)}",
        f"Init {init['total_ms']:.0f} ms (imports {init['import_ms']:.0f}, load {init['load_ms']:.0f}), first "
        f"inference {one['first_ms']:.1f} ms. Memory of the whole process after load "
        f"{megabytes(memory['loaded_rss_bytes'])} resident, {megabytes(memory['loaded_anon_bytes'])} anonymous; at "
        f"the peak {megabytes(memory['peak_rss_bytes'])} and {megabytes(memory['peak_anon_bytes'])}. "
        f"Model {one['model_sha256'][:12]}, {megabytes(one['model_bytes'])}.",
    ]
    rows: list[tuple[Any, ...]] = []
    for row in one["lengths"]:
        rows.append((f"{row['length']} tokens", row["runs"], *_cells(row["ms"]), megabytes(row["peak_anon_bytes"])))
    if texts := one.get("texts"):
        said = f"{texts['count']} texts, {texts['mean_tokens']:.0f} tokens on average"
        for name in ("tokenise", "infer", "end_to_end"):
            rows.append((f"{said}: {name.replace('_', ' ')}", texts["runs"], *_cells(texts[f"{name}_ms"]), ""))
    lines.append(markdown_table(("ms", "runs", *_TIMES, "peak anon"), rows))
    if check:
        verdict = "as exported" if check["passed"] else "**NOT as exported**"
        lines.append(
            f"Golden texts: {verdict}, largest difference {check['difference']:.6f}, digest {check['digest'][:16]}."
        )
    return lines


def _title(one: Report) -> str:
    mapped = ", weights mapped" if one["mapped"] else ""
    return f"{one['engine_version']}, {one['precision']}, threads {one['threads']}{mapped}"


def _cells(times: Report) -> list[str]:
    return [f"{times[name]:.2f}" for name in _TIMES]


def to_lines(report: Report) -> list[str]:
    """One line per configuration, `edge_albert.bench key=value …`, without spaces in a value."""
    out = []
    for one in report["configurations"]:
        memory, check = one["memory"], one.get("self_check")
        fields = {
            "bundle": report["bundle"]["name"],
            "model": one["model_sha256"][:12],
            "engine": one["engine_version"].replace(" ", "-"),
            "precision": one["precision"],
            "threads": one["threads"],
            "mapped": int(one["mapped"]),
            "init_ms": f"{one['init']['total_ms']:.1f}",
            "first_ms": f"{one['first_ms']:.2f}",
            **{f"p50_ms@{row['length']}": f"{row['ms']['p50']:.3f}" for row in one["lengths"]},
            **{f"p90_ms@{row['length']}": f"{row['ms']['p90']:.3f}" for row in one["lengths"]},
            "peak_rss": memory["peak_rss_bytes"],
            "peak_anon": memory["peak_anon_bytes"],
            "golden": "none" if not check else "ok" if check["passed"] else "different",
            "emulated": int(report["machine"]["emulated"]),
            "complete": int(one["complete"]),
        }
        out.append(
            " ".join(["edge_albert.bench", *("=".join((k, "_".join(str(v).split()))) for k, v in fields.items())])
        )
    return out


# -- two documents -----------------------------------------------------------------------------------------------------


def compare(first: Report, second: Report) -> list[dict[str, Any]]:
    """What both documents measured: rows of {"engine", "threads", "figure", "first", "second", "ratio"}.

    ratio: second / first, None where that cannot be had. Configurations are matched by engine and threads.
    """
    others = {(one["engine"], one["threads"]): one for one in second["configurations"]}
    rows = []
    for one in first["configurations"]:
        other = others.get((one["engine"], one["threads"]))
        if other is None:
            continue
        others_figures = dict(_figures(other))
        for name, a in _figures(one):
            if name in others_figures:
                b = others_figures[name]
                row = {"engine": one["engine"], "threads": one["threads"], "figure": name, "first": a, "second": b}
                rows.append({**row, "ratio": b / a if a and b is not None else None})
    return rows


def _figures(one: Report) -> Iterator[tuple[str, float | None]]:
    yield "init ms", one["init"]["total_ms"]
    yield "first inference ms", one["first_ms"]
    for row in one["lengths"]:
        for name in ("p50", "p90"):
            yield f"{row['length']} tokens, {name} ms", row["ms"][name]
        yield f"{row['length']} tokens, CPU p50 ms", row["cpu_ms"]["p50"]
    if texts := one.get("texts"):
        yield "texts, end to end p50 ms", texts["end_to_end_ms"]["p50"]
    for name in ("loaded_anon", "peak_anon", "peak_rss"):
        value = one["memory"][f"{name}_bytes"]
        yield f"{name.replace('_', ' ')} MB", None if value is None else value / 1e6
    yield "model MB", one["model_bytes"] / 1e6


def compare_to_markdown(first: Report, second: Report, names: tuple[str, str]) -> str:
    """A table of ratios, and what differs between the two besides."""
    rows = [
        (
            f"{row['engine']}, threads {row['threads']}: {row['figure']}",
            *("–" if row[key] is None else f"{row[key]:.2f}" for key in ("first", "second")),
            "–" if row["ratio"] is None else f"{row['ratio']:.3f}",
        )
        for row in compare(first, second)
    ]
    notes = [f"{label}: {a} / {b}" for label, a, b in _differences(first, second) if a != b]
    parts = [markdown_table(("", *names, "ratio"), rows)]
    if notes:
        parts.append("Not the same in both:\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _differences(first: Report, second: Report) -> Iterator[tuple[str, str, str]]:
    yield "processor", first["machine"]["cpu"], second["machine"]["cpu"]
    yield "emulated", str(first["machine"]["emulated"]), str(second["machine"]["emulated"])
    yield "complete", str(first["complete"]), str(second["complete"])
    for label, key in (("models", "model_sha256"), ("engines", "engine_version"), ("golden digests", "self_check")):
        yield label, _all(first, key), _all(second, key)


def _all(report: Report, key: str) -> str:
    values = (one.get(key) for one in report["configurations"])
    words = (value["digest"][:12] if isinstance(value, Mapping) else str(value)[:24] for value in values)
    return ", ".join(dict.fromkeys(words))
