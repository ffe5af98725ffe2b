"""Does the exported file still do its task? The metric of the float model beside that of the file, on labelled rows.

Both see the same token ids; the file runs in the engine that will run it on the device. The drop is float - exported in
points (100 × the metric). Its 95 % interval is a paired bootstrap: rows are drawn with replacement, the same ones for
both, and the drop computed again, 1,000 times (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter
13; Koehn, "Statistical Significance Tests for Machine Translation Evaluation", EMNLP 2004). Pairing matters: two files
that err on the same rows differ far less than two samples do. McNemar's test would do for accuracy alone; the bootstrap
serves F1 and correlations too.

The gate holds when the measured drop is at most the allowed one. It does not ask for significance: a test would let any
export pass on a small set, where nothing is significant. Nor does it ask that the whole interval lie below: on a small
set nothing would ever pass. The interval says how sure the figure is, and `uncertain` that more rows are needed to be.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibration.agreement import Rows
from calibration.gate_tasks import Judged, Metric, read_judged, task_metrics
from calibration.texts import TextFile
from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError
from edge_albert.tasks import Task
from edge_albert.tokenizer import Tokenizer

RESAMPLES = 1000
CONFIDENCE = 95.0
_SEED = 6


@dataclass(frozen=True)
class Evaluation:
    """Labelled rows of a file, what they are judged by, and its name. measure: (gold, predicted) ► higher is better."""

    source: str
    judged: Judged
    metric: str
    measure: Metric


@dataclass(frozen=True)
class Verdict:
    """Metric of the float model and of the file, and the drop with its interval, all in points.

    allowed: None where nothing was to be refused. holds: whether the drop is allowed. uncertain: what is allowed lies
    inside the interval, so other rows might have decided otherwise.
    """

    metric: str
    rows: int
    float_points: float
    exported_points: float
    drop: float
    interval: tuple[float, float]
    allowed: float | None

    @property
    def holds(self) -> bool:
        return self.allowed is None or self.drop <= self.allowed + 1e-9  # points are multiples of 100 / N, in floats

    @property
    def uncertain(self) -> bool:
        return self.allowed is not None and self.interval[0] <= self.allowed < self.interval[1]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": list(self.interval), "holds": self.holds, "uncertain": self.uncertain}


def read_evaluation(
    file: TextFile, metric: str | None, config: AlbertConfig, task: Task, tokenizer: Tokenizer
) -> Evaluation:
    """The rows of a file that `finetune` would read for the task, for its usual metric or the one named.

    Raises DataError for rows that do not fit the model, EdgeAlbertError for a metric that does not fit the task.
    """
    known = task_metrics(task, config)
    name = metric or next(iter(known))
    if name not in known:
        raise EdgeAlbertError(f"--metric {name}: does not fit {task.name}: choose one of {', '.join(known)}")
    return Evaluation(file.path.name, read_judged(file, name, config, task, tokenizer), name, known[name])


def judge(evaluation: Evaluation, reference: Rows, exported: Rows, allowed: float | None) -> Verdict:
    """Compare outputs for the evaluation's encodings. allowed: points that may be lost, None to refuse nothing."""
    gold = evaluation.judged.gold
    before, after = evaluation.judged.predict(reference), evaluation.judged.predict(exported)
    float_points, exported_points = (100 * evaluation.measure(gold, predicted) for predicted in (before, after))
    rng = np.random.default_rng(_SEED)
    drops = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        rows = rng.integers(0, len(gold), len(gold))
        drops[i] = 100 * (evaluation.measure(gold[rows], before[rows]) - evaluation.measure(gold[rows], after[rows]))
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(drops, (tail, 100 - tail)).tolist()
    drop = float_points - exported_points
    return Verdict(evaluation.metric, len(gold), float_points, exported_points, drop, (low, high), allowed)
