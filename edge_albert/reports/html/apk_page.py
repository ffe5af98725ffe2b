"""The page's section on an APK: what it weighs, part by part, and the model in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_albert.reports.html.charts import Bar, bars
from edge_albert.reports.html.page import Markup, element, joined, paragraph, section
from edge_albert.reports.tables import megabytes


def apk_section(apk: Mapping[str, Any]) -> Markup:
    """apk: what edge_albert.reports.apk.read_apk returns."""
    order = sorted(apk["parts"].items(), key=lambda item: -item[1])
    rows = [Bar(name, [(2 if name == "model" else 5, count)], f"{count:,} bytes") for name, count in order]
    return section(
        f"APK: {apk['file']}, {megabytes(apk['apk_bytes'])}",
        paragraph("Compressed bytes. An APK that is split by ABI carries one of the native libraries.", "dim"),
        bars(rows),
        *(_verdict(model, len(apk["models"])) for model in apk["models"]),
    )


def _verdict(model: Mapping[str, Any], count: int) -> Markup:
    faults = [] if count == 1 else [f"one of {count} models in the APK"]
    faults += [] if model["stored"] else ["compressed: add its ending to noCompress, or Android cannot map it"]
    faults += [] if model["is_the_bundles"] else ["not the model of this bundle"]
    said = f"{model['file']}, {model['bytes']:,} bytes: "
    if faults:
        return paragraph(said + "; ".join(faults), "bad")
    return paragraph(joined([element("b", "✓ ", class_="good"), said, "stands once, stored, as in this bundle."]))
