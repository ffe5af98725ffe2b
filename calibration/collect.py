"""One pass of the float model over a calibration set: what every activation spans, in every iteration.

ALBERT's one layer sees another distribution in each of its iterations, so each has a histogram of its own, and one over
all iterations is their sum. Bounded memory: a histogram is 32 KB however many texts there are. What comes out is a
`Calibration`: the ranges that each method of calibration/ranges.py chooses, percentiles, outlier channels and a coarse
histogram to look at. It is written as a small JSON file that later exports reuse.

calibration.json (schema version 1) holds `model` (its task and the sha256 of its weights), `texts` (source, count,
tokens, sha256) and `sites`: {site of edge_albert/sites.py: {"shared": …, "iterations": […]}}, both made of

    min, max           exact
    percentiles        {"0.1": …, "99.9": …}
    ranges             {method: [low, high]}, zero inside
    outlier_channels   [[channel, largest absolute value], …], those beyond OUTLIER × the median channel's
    histogram          {"limit": …, "counts": 64 bins over [-limit, limit]}

and, where they were measured, `sensitivity` (calibration/sensitivity.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.agreement import batches
from calibration.histogram import HALF, Histogram
from calibration.ranges import METHODS
from calibration.reference import ReferenceModel
from calibration.sensitivity import PRECISIONS, Sensitivity
from calibration.texts import TextSet
from converters.quantize import ActivationRanges
from edge_albert import __version__
from edge_albert.checkpoint import Checkpoint
from edge_albert.documents import read_document
from edge_albert.errors import CheckpointError, DataError
from edge_albert.progress import Progress
from edge_albert.sites import activation_sites, quantizable_weights
from edge_albert.tasks import Task

SCHEMA = "edge_albert.calibration"
SCHEMA_VERSION = 1
FILE = "calibration.json"
PERCENTILES = (0.01, 0.1, 1, 50, 99, 99.9, 99.99)
OUTLIER = 6.0  # a channel whose peak is this many times the median channel's (magnitude 6 in LLM.int8(), 2208.07339)
_LISTED = 8  # outlier channels named per site and iteration
_BINS = 64  # of the histogram that is kept to look at
_DIGITS = 6

Facts = dict[str, Any]


@dataclass(frozen=True)
class Calibration:
    """The content of a calibration.json; see this module's docstring."""

    content: Mapping[str, Any]

    @property
    def sites(self) -> Mapping[str, Any]:
        return self.content["sites"]

    @property
    def sensitivity(self) -> Sensitivity | None:
        stored = self.content.get("sensitivity")
        return None if stored is None else Sensitivity.from_json(stored)

    def with_sensitivity(self, sensitivity: Sensitivity) -> Calibration:
        return Calibration({**self.content, "sensitivity": sensitivity.to_json()})

    def ranges(self, method: str, *, per_iteration: bool) -> ActivationRanges:
        """One of calibration/ranges.py's answers for every site: a row per iteration, or one for all."""
        return ActivationRanges(
            {
                site: np.array(
                    [part["ranges"][method] for part in (entry["iterations"] if per_iteration else [entry["shared"]])],
                    np.float32,
                )
                for site, entry in self.sites.items()
            }
        )


def collect(checkpoint: Checkpoint, task: Task, texts: TextSet) -> Calibration:
    """Run the float model over the set, with a progress bar, and sum up what every activation was."""
    parts: dict[str, dict[int, Histogram]] = {}

    def observe(site: str, iteration: int, rows: np.ndarray) -> None:
        try:
            parts.setdefault(site, {}).setdefault(iteration, Histogram()).add(rows)
        except ValueError:
            raise CheckpointError(
                f"{checkpoint.source}: {site} is not finite on ordinary text: the weights are damaged; train it again"
            ) from None

    model = ReferenceModel(checkpoint.config, checkpoint.tensors, task, observe=observe)
    encodings = texts.encodings
    with Progress(len(encodings), "calibrate") as bar:
        for indices, feeds in batches(encodings, checkpoint.config.pad_token_id):
            model(**feeds)
            bar.update(len(indices))
    sites = {site: _summary([parts[site][i] for i in sorted(parts[site])]) for site in parts}
    return Calibration(
        {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "edge_albert": __version__,
            "model": {"task": task.name, "sha256": weights_hash(checkpoint)},
            "texts": {
                "source": texts.source,
                "count": len(encodings),
                "tokens": sum(len(encoding.input_ids) for encoding in encodings),
                "sha256": texts.sha256,
            },
            "sites": sites,
        }
    )


def weights_hash(checkpoint: Checkpoint) -> str:
    """sha256 of what decides a model's activations: its tensors, as float32, and its shape."""
    config = checkpoint.config
    digest = hashlib.sha256(f"{config.num_hidden_layers} {config.num_attention_heads} {config.hidden_act}".encode())
    for name in sorted(checkpoint.tensors):
        array = checkpoint.float32(name)
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


# -- the file ----------------------------------------------------------------------------------------------------------


def read_calibration(path: Path, checkpoint: Checkpoint, task: Task) -> Calibration:
    """A calibration.json of this model. Raises DataError when it is damaged, newer, or another model's."""
    remedy = f"name the {FILE} that this version's python -m edge_albert.calibrate wrote, or calibrate again"
    content = read_document(path, SCHEMA, SCHEMA_VERSION, remedy)
    if _model_of(content) != {"task": task.name, "sha256": weights_hash(checkpoint)}:
        raise DataError(
            f"{path}: was collected from another model (other weights or another task) than {checkpoint.source}: "
            "calibrate this one"
        )
    found = Calibration(content)
    try:
        _check_sites(content, activation_sites(checkpoint.config, pooled=task.pooled))
        _check_sensitivity(found.sensitivity, quantizable_weights(checkpoint.config, pooled=task.pooled))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error}): calibrate again") from None
    return found


def _model_of(content: Mapping[str, Any]) -> Any:
    model = content.get("model")
    return {key: model.get(key) for key in ("task", "sha256")} if isinstance(model, dict) else None


def _check_sites(content: Mapping[str, Any], wanted: Mapping[str, int]) -> None:
    """Every site with all its iterations, every method with two finite numbers in order; else some ordinary error."""
    for site, times in wanted.items():
        entry = content["sites"][site]
        if len(entry["iterations"]) != max(1, times):
            raise ValueError(f"{site} has {len(entry['iterations'])} iterations, not {max(1, times)}")
        for part in (entry["shared"], *entry["iterations"]):
            for method in METHODS:
                low, high = (float(value) for value in part["ranges"][method])
                if not (np.isfinite([low, high]).all() and low <= 0 <= high):
                    raise ValueError(f"{site} has the range {low} to {high}")


def _check_sensitivity(sensitivity: Sensitivity | None, wanted: Mapping[str, str]) -> None:
    """A finite loss for every weight and precision, if there are any."""
    if sensitivity is None:
        return
    for name in wanted:
        for precision in PRECISIONS:
            if not np.isfinite(sensitivity.matrices[name][precision].loss):
                raise ValueError(f"the loss of {name} is not finite")


# -- what is kept of a histogram ---------------------------------------------------------------------------------------


def _summary(iterations: list[Histogram]) -> Facts:
    facts = [_facts(histogram) for histogram in iterations]
    return {"shared": facts[0] if len(facts) == 1 else _facts(Histogram.sum(iterations)), "iterations": facts}


def _facts(histogram: Histogram) -> Facts:
    return {
        "min": _short(histogram.low),
        "max": _short(histogram.high),
        "percentiles": {f"{p:g}": _short(histogram.percentile(p)) for p in PERCENTILES},
        "ranges": {name: [_short(edge) for edge in method(histogram)] for name, method in METHODS.items()},
        "outlier_channels": _outliers(histogram.peaks),
        "histogram": {
            "limit": histogram.limit,
            "counts": histogram.counts.reshape(_BINS, 2 * HALF // _BINS).sum(axis=1).tolist(),
        },
    }


def _outliers(peaks: np.ndarray) -> list[list[float]]:
    """The channels beyond OUTLIER × the median one, the largest first, at most _LISTED."""
    order = np.argsort(-peaks, kind="stable")[:_LISTED]
    return [[int(i), _short(peaks[i])] for i in order if peaks[i] > OUTLIER * np.median(peaks)]


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
