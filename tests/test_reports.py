"""Reports say what the numbers say, the bad ones too."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from edge_albert.reports.export_report import to_markdown, to_text
from edge_albert.reports.machine import describe_machine
from edge_albert.reports.tables import markdown_table, megabytes

RUNTIME = {
    "load_ms": 12.4,
    "load_anon_bytes": 3_000_000,
    "anon_bytes": 4_200_000,
    "peak_rss_bytes": 61_000_000,
    "runs": [
        {
            "length": 16,
            "wall_ms": {"p50": 1.5, "p90": 1.75, "p99": 2.0},
            "cpu_ms": {"p50": 1.4},
            "anon_bytes": 4_200_000,
        }
    ],
}
REPORT = {
    "command": "python -m edge_albert.export --int8",
    "edge_albert": "0.1.0",
    "precision": "int8",
    "machine": describe_machine(),
    "model": {
        "source": "models/spam",
        "task": "text-classification",
        "labels": ["ham", "spam"],
        "parameters": 1_000_000,
        "iterations": 4,
        "shared_layers": 1,
        "macs_at_128": 250_000_000,
    },
    "formats": {
        "onnx": {
            "file": "model.onnx",
            "engine": "onnxruntime 1.32.0",
            "form": "loop",
            "file_bytes": 1_050_000,
            "floor_bytes": 1_000_000,
            "tensors": {"layer.ffn.weight.int8": {"dtype": "INT8", "bytes": 147_456}},
            "copies": {"layer.ffn": 1, "layer.query": 1},
            "quantized_products": 6,
            "float_products": ["classifier.product"],
            "weights": {"layer.ffn.weight": {"scheme": "int8 per row", "relative_error": 0.00768}},
            "agreement": {
                "texts": 320,
                "same_label": 0.996875,
                "mean_cosine": 0.99991,
                "min_cosine": 0.9987,
                "max_difference": 0.0421,
            },
            "runtime": RUNTIME,
        }
    },
}


def changed(**changes) -> dict:
    report = copy.deepcopy(REPORT)
    report["formats"]["onnx"].update(changes)
    return report


def test_the_terminal_says_the_key_figures():
    text = to_text(REPORT, Path("bundle"))
    for words in (
        "model.onnx 1.05 MB, 1.050 × the floor of 1.00 MB (1,000,000 parameters × 1 byte)",
        "each of the 2 weight matrices stands exactly once",
        "1 of 7 products with a weight: classifier.product",
        "320 texts: same label 99.7 %, cosine 0.99991 (lowest 0.99870), largest difference 0.0421",
        "4.20 MB beyond the engine itself; whole process at most 61.0 MB",
        "load 12 ms; one thread, p50 / p90 / p99 in ms: 16 tokens 1.5 / 1.8 / 2.0",
        "bundle/report.md",
    ):
        assert words in text


def test_a_weight_that_stands_twice_is_named():
    text = to_text(changed(copies={"layer.ffn": 2, "layer.query": 1, "pooler": 0}), Path("bundle"))
    assert "of 3 weight matrices these do not stand once: layer.ffn (2), pooler (0)" in text


def test_what_was_not_measured_is_not_claimed():
    report = changed()
    del report["formats"]["onnx"]["runtime"]
    report["formats"]["onnx"]["agreement"]["same_label"] = None
    text = to_text(report, Path("bundle"))
    assert "ms" not in text
    assert "label" not in text.split("agrees")[1]
    assert "Runtime" not in to_markdown(report)


def test_a_system_that_tells_no_memory():
    report = changed(runtime={**RUNTIME, "anon_bytes": None, "load_anon_bytes": None})
    assert "not known beyond the engine" in to_text(report, Path("bundle"))
    assert "memory after load not known" in to_markdown(report)


def test_markdown_has_every_section():
    page = to_markdown(REPORT)
    for heading in ("# spam: int8 bundle", "## Model", "## model.onnx", "### Runtime, one thread", "## Machine"):
        assert f"\n{heading}\n" in f"\n{page}"
    assert "| 16 | 1.50 | 1.75 | 2.00 | 1.40 | 4.20 MB |" in page
    assert "| layer.ffn.weight | int8 per row | 0.00768 |" in page


VERDICT = {
    "metric": "accuracy",
    "rows": 872,
    "float_points": 91.5,
    "exported_points": 90.25,
    "drop": 1.25,
    "interval": [0.4, 2.1],
    "allowed": 0.5,
    "holds": False,
    "uncertain": True,
}


def judged(**changes) -> dict:
    """The report of an export that the gate refused."""
    gate = {"data": "dev.tsv", "sha256": "0" * 64, "holds": False, "fallback": False, "overrides": {}, "refused": []}
    return {**REPORT, "gate": {**gate, "formats": {"onnx": VERDICT}, **changes}}


def test_a_refusal_says_what_was_lost_and_no_bundle():
    text = to_text(judged(), Path("bundle"))
    assert text.splitlines() == [
        "refused  model.onnx accuracy 91.50 ► 90.25 on 872 rows, 1.25 points lost (95 %: 0.40 … 2.10), 0.50 allowed; "
        "what is allowed lies inside the interval: more rows would say more; "
        "--fallback retries with more bits for the most sensitive matrices",
        "report   bundle/report.md; no bundle was written",
    ]
    page = to_markdown(judged())
    assert page.startswith("# spam: int8 export, refused\n")
    assert "| 1: onnx | 91.50 | 90.25 | 1.25 | 0.40 … 2.10 | 0.50 | refused |" in page


def test_a_fallback_that_helped_shows_what_was_refused_before():
    held_now = {**VERDICT, "drop": 0.2, "exported_points": 91.3, "holds": True, "uncertain": False}
    before = {"formats": {"onnx": VERDICT}, "holds": False, "overrides": {}}
    report = judged(holds=True, fallback=True, formats={"onnx": held_now}, refused=[before])
    page = to_markdown(report)
    assert "**The gate holds.** 872 rows of dev.tsv" in page
    assert [line.split("|")[-2].strip() for line in page.splitlines() if line.startswith(("| 1:", "| 2:"))] == [
        "refused",
        "holds",
    ]
    assert "bundle   bundle" in to_text(report, Path("bundle"))


def test_a_fallback_that_cannot_help_says_so():
    assert "there are no more bits to give" in to_text(judged(fallback=True), Path("bundle"))
    before = {"formats": {"onnx": VERDICT}, "holds": False, "overrides": {}}
    assert "2 retries with more bits did not help" in to_text(
        judged(fallback=True, refused=[before, before]), Path("bundle")
    )


def test_mixed_precision_is_told_matrix_by_matrix():
    choice = {
        "asked": {"bytes": 7_000_000, "points": None},
        "precisions": {"layer.ffn.weight": "int8", "pooler.weight": "int4"},
        "points_lost": 0.625,
        "texts": 320,
    }
    page = to_markdown({**REPORT, "precision": "mixed", "overrides": choice["precisions"], "choice": choice})
    assert "at most 7,000,000 bytes; 0.62 points lost on 320 calibration texts" in page
    assert "| pooler.weight | int4 |" in page
    assert "parameters × what each takes" in page


@pytest.mark.parametrize(
    ("count", "text"), [(1_234_567, "1.23 MB"), (9_999_999, "10.00 MB"), (46_700_000, "46.7 MB"), (None, "not known")]
)
def test_megabytes(count, text):
    assert megabytes(count) == text


def test_tables_survive_a_bar_in_a_label():
    assert markdown_table(("a", "b"), [("x|y", 1)]).splitlines() == ["| a | b |", "|:---|---:|", "| x\\|y | 1 |"]


def test_the_machine_is_described():
    machine = describe_machine()
    assert machine["cpu"]
    assert machine["cpus"] >= 1
    assert machine["packages"]["numpy"]
