"""What an export is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibration.texts import TextFile

AUTO = "auto"  # of `early_exit`: criterion and threshold are chosen on labelled rows
MIXED = "mixed"  # the precision of a request with `mixed_bytes` or `max_loss`
RANGES = "percentile"  # the usual method of calibration/ranges.py; docs/calibration.md says why


@dataclass(frozen=True)
class Request:
    """What to export. source: folder or hub name; task: None for the checkpoint's own; command: for the manifest.

    precision: one of converters.graph.PRECISIONS, or MIXED with `mixed_bytes` (of the model file) or `max_loss`
    (points) to choose by. block_size: of int4. per_iteration, ranges: of static int8, the method one of
    calibration.ranges.METHODS. calibration: a calibration.json to reuse; calibration_data: texts instead of the
    project's own sentences. evaluation: labelled rows; metric: None for the task's usual one; max_drop: points that may
    be lost on them, None to refuse nothing; fallback: raise the precision until that holds.
    early_exit: a criterion of edge_albert.early_exit with its exit_threshold, or AUTO.
    android: also write the table of the tokenizer's rules that the Android library reads.
    """

    source: str
    output: Path
    task: str | None = None
    precision: str = "int8"
    formats: tuple[str, ...] = ("onnx",)
    unroll: bool = False
    compat: bool = False
    block_size: int = 64
    per_iteration: bool = True
    ranges: str = RANGES
    calibration: Path | None = None
    calibration_data: TextFile | None = None
    mixed_bytes: int | None = None
    max_loss: float | None = None
    evaluation: TextFile | None = None
    metric: str | None = None
    max_drop: float | None = None
    fallback: bool = False
    early_exit: str | None = None
    exit_threshold: float | None = None
    force: bool = False
    measure: bool = True
    android: bool = False
    command: str = ""
