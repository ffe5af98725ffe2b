"""Which precision each weight of a file gets, and the weights in it, with a note of how each was stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from converters.graph import PRECISIONS, Linear
from converters.quantize import (
    BLOCK_SIZES,
    ActivationRanges,
    BlockQuantized,
    Quantized,
    WeightRecord,
    fitting_block,
    quantize_blocks,
    quantize_rows,
    relative_error,
)
from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError
from edge_albert.sites import activation_sites, quantizable_weights
from edge_albert.tasks import Task

_SMALL_TABLES = ("embeddings.position.weight", "embeddings.token_type.weight")  # not worth losing anything on


@dataclass(frozen=True)
class Scheme:
    """What `converters.convert.convert` was asked for; see there."""

    precision: str = "int8"
    overrides: Mapping[str, str] = field(default_factory=dict)
    block_size: int = 64
    rounded: Mapping[str, BlockQuantized] = field(default_factory=dict)
    ranges: ActivationRanges | None = None

    def of(self, name: str, weight: np.ndarray) -> str:
        """The precision of the weight (rows, columns) of this name."""
        wanted = self.overrides.get(name, self.precision)
        if name.startswith("embeddings.") and wanted == "int8-static":
            return "int8"
        if wanted == "int4":
            small = name in _SMALL_TABLES and name not in self.overrides
            return "int8" if small or fitting_block(weight.shape[1], self.block_size) is None else "int4"
        return wanted


class WeightRecorder:
    """Turns weights into what a file stores and notes how, under the name each has in the file: `records`.

    An unrolled body asks for a weight once per iteration, so quantising is done once.
    """

    def __init__(self, scheme: Scheme) -> None:
        self.records: dict[str, WeightRecord] = {}
        self._scheme = scheme
        self._rows: dict[str, Quantized] = {}
        self._blocks: dict[str, BlockQuantized] = {}

    def int8(self, name: str, weight: np.ndarray, *, static: bool = False) -> Quantized:
        """int8 per row. static: for a product whose input has its scale in the file."""
        if name not in self._rows:
            self._rows[name] = quantized = quantize_rows(weight)
            how = "int8 per row, static inputs" if static else "int8 per row"
            self.records[name] = WeightRecord(how, relative_error(weight, quantized.dequantize()))
        return self._rows[name]

    def int4(self, name: str, weight: np.ndarray) -> BlockQuantized:
        """int4 by block, as it was rounded beforehand, or rounded plainly. EdgeAlbertError where that has no place."""
        if name not in self._blocks:
            size = fitting_block(weight.shape[1], self._scheme.block_size)
            assert size is not None  # Scheme.of has said int4
            quantized = self._scheme.rounded.get(name) or quantize_blocks(weight, size)
            if quantized.values.shape != weight.shape or quantized.block_size != size:
                raise EdgeAlbertError(
                    f"{name}: the rounded values are {quantized.values.shape} in blocks of {quantized.block_size}, the "
                    f"weight is {weight.shape} and takes blocks of {size}: round this model's weights again"
                )
            how = f"int4 by block of {size}" + (", error compensated" if name in self._scheme.rounded else "")
            self._blocks[name] = quantized
            self.records[name] = WeightRecord(how, relative_error(weight, quantized.dequantize()))
        return self._blocks[name]

    def int4_bias(self, layer: Linear) -> np.ndarray:
        """(out,) the bias of a product whose weight is stored by `int4`."""
        shift = self.int4(layer.weight_name, layer.weight).shift
        return layer.bias if shift is None else layer.bias + shift.astype(np.float32)

    def fp16(self, name: str, weight: np.ndarray) -> np.ndarray:
        half = weight.astype(np.float16)
        self.records[name] = WeightRecord("fp16", relative_error(weight, half.astype(np.float32)))
        return half

    def fp32(self, name: str, weight: np.ndarray) -> np.ndarray:
        self.records[name] = WeightRecord("fp32", 0.0)
        return weight


def check_scheme(scheme: Scheme, config: AlbertConfig, task: Task, *, compat: bool) -> None:
    """EdgeAlbertError when the scheme does not fit this model, or `compat`, that is: engines of old."""
    weights = quantizable_weights(config, pooled=task.pooled)
    used = {scheme.precision, *scheme.overrides.values()}
    if unknown := used.difference(PRECISIONS):
        raise EdgeAlbertError(f"precision {min(unknown)!r} is not one of {', '.join(PRECISIONS)}")
    if unknown := set(scheme.overrides).union(scheme.rounded).difference(weights):
        raise EdgeAlbertError(
            f"{min(unknown)!r} is not a weight of this model whose precision can be chosen: it has {', '.join(weights)}"
        )
    if scheme.block_size not in BLOCK_SIZES:
        raise EdgeAlbertError(f"block size {scheme.block_size} is not one of {', '.join(map(str, BLOCK_SIZES))}")
    if compat and "int4" in used:
        raise EdgeAlbertError(
            "int4 does not go with --tflite-compat: engines up to TensorFlow Lite 2.16 cannot run it, and "
            "tflite-runtime 2.14 ends the process: leave one of the two out"
        )
    if "int8-static" in used:
        _check_ranges(scheme.ranges, activation_sites(config, pooled=task.pooled))


def _check_ranges(ranges: ActivationRanges | None, sites: Mapping[str, int]) -> None:
    if ranges is None:
        raise EdgeAlbertError("int8-static needs the ranges of the activations: calibrate the model first")
    for site, times in sites.items():
        if site not in ranges.spans:
            raise EdgeAlbertError(f"the ranges have no {site}: they were collected from another model")
        spans = np.asarray(ranges.spans[site], np.float32)
        if spans.shape not in {(2,), (1, 2), (max(times, 1), 2)}:
            raise EdgeAlbertError(
                f"the ranges of {site} are of shape {spans.shape}, not ({max(times, 1)}, 2) or (1, 2)"
            )
        if not np.isfinite(spans).all() or (spans[..., 0] > spans[..., 1]).any():
            raise EdgeAlbertError(f"the ranges of {site} are not a minimum and a maximum each")
