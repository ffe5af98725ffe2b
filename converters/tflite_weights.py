"""Weights in a TFLite file: one matrix product, or one look-up in a table, in each precision.

int8: FULLY_CONNECTED with float input and int8 weights, one scale per output channel, activations quantised on the fly
per row ("dynamic range"). int4: the same with a float16 scale for every block of a row. int8-static: QUANTIZE, a
FULLY_CONNECTED of int8 throughout with int32 bias, DEQUANTIZE; scales are numbers in the file, so that inside a loop
one range has to hold for all iterations. fp16: stored so, with a DEQUANTIZE, as TensorFlow's converter does.
Tables: int8 rows with a scale each, or two int4 values a byte (`converters.quantize.pack_halves`), undone by arithmetic
that every engine has.

Operator versions are the lowest that the operands need (op_version.cc in the LiteRT repository), but for one: int4 by
block says 14, which LiteRT knows from 2.1 on. 1.4 and 2.0 would run version 13, and answer wrongly without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from converters.graph import Linear, Shape, Tensor
from converters.quantize import BlockQuantized, activation_parameters, pack_halves
from converters.scheme import Scheme, WeightRecorder
from converters.tflite_graph import TfliteGraph
from edge_albert.errors import EdgeAlbertError
from edge_albert.sites import input_site, output_site

_BLOCKWISE, _STATIC = 14, 5  # versions of FULLY_CONNECTED
_LARGEST_BIAS = 2**30  # of an int32, leaving room for the sum that it is added to


class TfliteWeights:
    """Writes products and look-ups into `graph` as `scheme` says; `stored.records` tells how each weight went.

    compat: as in converters/tflite_writer.py.
    """

    def __init__(self, graph: TfliteGraph, scheme: Scheme, *, compat: bool) -> None:
        self.stored = WeightRecorder(scheme)
        self._graph = graph
        self._scheme = scheme
        self._compat = compat

    # -- products ------------------------------------------------------------------------------------------------------

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        quantized: list[Tensor] = []  # x as int8, once for all that want it

        def static(layer: Linear) -> Tensor:
            if not quantized:
                quantized.append(self._quantize(x, input_site(layer.name)))
            return self._static(quantized[0], layer)

        return [
            static(layer)
            if self._scheme.of(layer.weight_name, layer.weight) == "int8-static"
            else self._linear(x, layer)
            for layer in layers
        ]

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """A float32 product whatever the scheme."""
        stored = self.stored.fp32(layer.weight_name, layer.weight)
        return self._fully_connected(layer.name, x, self._graph.builder.constant(layer.weight_name, stored), layer.bias)

    def _linear(self, x: Tensor, layer: Linear) -> Tensor:
        name, graph = layer.weight_name, self._graph
        precision = self._scheme.of(name, layer.weight)
        if precision == "int4":
            shifted = self.stored.int4_bias(layer)
            weight = graph.builder.int4_constant(f"{name}.int4", self.stored.int4(name, layer.weight), shifted)
            return self._fully_connected(layer.name, x, weight, shifted, version=_BLOCKWISE)
        if precision != "int8":
            return self._fully_connected(layer.name, x, self._float(name, layer.weight), layer.bias)
        quantized = self.stored.int8(name, layer.weight)
        if not self._compat:
            weight = graph.builder.constant(f"{name}.int8", quantized.values, quantized.scale, bias=layer.bias)
            return self._fully_connected(layer.name, x, weight, layer.bias, version=12)
        weight = graph.builder.constant(f"{name}.int8", quantized.values, np.ones(1, np.float32))
        product = self._fully_connected(f"{layer.name}.product", x, weight, np.zeros_like(layer.bias))
        scale = graph.builder.constant(f"{name}.scale", quantized.scale)
        scaled = graph.op("MUL", f"{layer.name}.scaled", [product, scale], product.shape)
        bias = graph.builder.constant(f"{layer.name}.bias", layer.bias)
        return graph.op("ADD", layer.name, [scaled, bias], scaled.shape)

    def _float(self, name: str, weight: np.ndarray) -> int:
        """A weight as float32: stored so, or as fp16."""
        if self._scheme.of(name, weight) == "fp16":
            return self._graph.half_constant(name, self.stored.fp16(name, weight))
        return self._graph.builder.constant(name, self.stored.fp32(name, weight))

    def _fully_connected(self, name: str, x: Tensor, weight: int, bias: np.ndarray, version: int = 5) -> Tensor:
        constant = self._graph.builder.constant(f"{name}.bias", bias)
        shape = (*x.shape[:-1], len(bias))
        return self._graph.op(
            "FULLY_CONNECTED", name, [x, weight, constant], shape, version=version, keep_num_dims=True
        )

    # -- static int8 ---------------------------------------------------------------------------------------------------

    def _activation(self, site: str) -> tuple[float, int]:
        """Scale and zero point of a site: of this iteration, or inside a loop of all."""
        assert self._scheme.ranges is not None
        scale, zero = activation_parameters(self._scheme.ranges.of_iteration(site, self._graph.iteration)[None])
        return float(scale[0]), int(zero[0])

    def _quantize(self, x: Tensor, site: str) -> Tensor:
        return self._graph.op("QUANTIZE", f"{site}.int8", [x], x.shape, "int8", self._activation(site))

    def _static(self, x: Tensor, layer: Linear) -> Tensor:
        graph, quantized = self._graph, self.stored.int8(layer.weight_name, layer.weight, static=True)
        scale = np.float32(self._activation(input_site(layer.name))[0]) * quantized.scale
        bias = np.rint(layer.bias / scale.astype(np.float64))
        if np.abs(bias).max() > _LARGEST_BIAS:
            raise EdgeAlbertError(
                f"{layer.weight_name}: a row is too small beside its bias for static int8: give it another precision"
            )
        shape = (*x.shape[:-1], len(layer.bias))
        weight = graph.builder.constant(f"{layer.weight_name}.int8", quantized.values, quantized.scale, bias=layer.bias)
        constant = graph.builder.constant(f"{graph.prefix}{layer.name}.bias.int32", bias.astype(np.int32), scale)
        site = output_site(layer.name)
        result = graph.op(
            "FULLY_CONNECTED",
            f"{site}.int8",
            [x, weight, constant],
            shape,
            "int8",
            self._activation(site),
            version=_STATIC,
            keep_num_dims=True,
        )
        return graph.op("DEQUANTIZE", layer.name, [result], shape, version=2)

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def rows(self, name: str, table: np.ndarray, ids: Tensor) -> Tensor:
        """Rows of a table at `ids` (1, S), as float32 (1, S, E)."""
        weight, graph = f"{name}.weight", self._graph
        shape = (*ids.shape, table.shape[1])
        precision = self._scheme.of(weight, table)
        if precision == "int4":
            return self._int4_rows(name, self.stored.int4(weight, table), ids, shape)
        if precision == "fp16" and not self._compat:
            stored = graph.builder.constant(weight, self.stored.fp16(weight, table))
            rows = self._gather(f"{name}.rows", stored, ids, shape, "float16")
            return graph.op("DEQUANTIZE", name, [rows], shape, version=3)
        if precision != "int8":
            return self._gather(name, self._float(weight, table), ids, shape)
        quantized = self.stored.int8(weight, table)
        values = graph.builder.constant(f"{weight}.int8", quantized.values)
        scales = graph.builder.constant(f"{weight}.scale", quantized.scale[:, None])
        rows = self._gather(f"{name}.rows", values, ids, shape, "int8", version=2)
        scale = self._gather(f"{name}.scale", scales, ids, (*ids.shape, 1))
        return graph.op("MUL", name, [graph.cast(f"{name}.float", rows, version=3), scale], shape)

    def _gather(
        self, name: str, table: int, ids: Tensor, shape: Shape, dtype: str = "float", version: int = 1
    ) -> Tensor:
        return self._graph.op("GATHER", name, [table, ids], shape, dtype, version=version, axis=0)

    def _int4_rows(self, name: str, table: BlockQuantized, ids: Tensor, shape: Shape) -> Tensor:
        """byte = 16 · right + left + 8, so right = floor(byte / 16). Each block of a row has its scale."""
        graph, weight = self._graph, f"{name}.weight"
        width, blocks = table.values.shape[1], table.scales.shape[1]
        half = (*ids.shape, width // 2)
        packed = graph.builder.constant(f"{weight}.int4", pack_halves(table.values))
        scales = graph.builder.constant(f"{weight}.scale", table.scales.astype(np.float16))
        halves = self._gather(f"{name}.scale.half", scales, ids, (*ids.shape, blocks), "float16")
        scale = graph.op("DEQUANTIZE", f"{name}.scale", [halves], halves.shape, version=3)
        rows = self._gather(f"{name}.rows", packed, ids, half, "int8", version=2)
        both = graph.cast(f"{name}.float", rows, version=3)
        sixteenth = graph.op("MUL", f"{name}.sixteenth", [both, graph.scalar(1 / 16)], half)
        right = graph.op("FLOOR", f"{name}.right", [sixteenth], half)
        high = graph.op("MUL", f"{name}.high", [right, graph.scalar(16)], half)
        low = graph.op("SUB", f"{name}.low", [both, high], half)
        left = graph.op("SUB", f"{name}.left", [low, graph.scalar(8)], half)
        values = graph.op("CONCATENATION", f"{name}.values", [left, right], shape, axis=2)
        split = graph.reshape(f"{name}.split", values, (ids.shape[1], blocks, table.block_size))
        column = graph.reshape(f"{name}.scale.column", scale, (ids.shape[1], blocks, 1))
        return graph.reshape(name, graph.op("MUL", f"{name}.scaled", [split, column], split.shape), shape)
