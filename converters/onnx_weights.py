"""Weights in an ONNX file: one matrix product, or one look-up in a table, in each precision.

int8: com.microsoft `DynamicQuantizeMatMul`, activations quantised on the fly, weights per output channel. int8-static:
QuantizeLinear and DequantizeLinear on the input, DequantizeLinear on the weights, MatMul; ONNX Runtime fuses them into
one integer product from its "extended" level of optimisation on, and an accelerator's provider into its own. In a loop
the input's scale and zero point are picked by the iteration. int4: com.microsoft `MatMulNBits`. fp16: stored so, cast
once at load. Tables: int8 rows with a scale each, or two int4 values a byte (`converters.quantize.pack_halves`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from converters.graph import Linear, Shape, Tensor
from converters.onnx_graph import CONTRIB, OnnxGraph
from converters.quantize import BlockQuantized, activation_parameters, pack_halves, pack_nibbles
from converters.scheme import Scheme, WeightRecorder
from edge_albert.sites import input_site

_INT4_ZERO = 8  # what MatMulNBits takes for zero when it is given no zero points

Pick = Callable[[str, str, Shape, str], Tensor]  # (node name, table, shape of the result, its type) ► rows of a table


class OnnxWeights:
    """Writes products and look-ups into `graph` as `scheme` says; `stored.records` tells how each weight went."""

    def __init__(self, graph: OnnxGraph, scheme: Scheme) -> None:
        self.stored = WeightRecorder(scheme)
        self._graph = graph
        self._scheme = scheme
        self._sites: dict[str, tuple[Tensor, str, str]] = {}  # inputs that are quantised already

    # -- products ------------------------------------------------------------------------------------------------------

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        """Projections of one input are one product of the joined weights, so that x is quantised and read once.

        Neighbours of different precision are products of their own.
        """
        results = []
        for precision, run in groupby(layers, key=lambda layer: self._scheme.of(layer.weight_name, layer.weight)):
            results += self._joined(x, list(run), precision)
        return results

    def _joined(self, x: Tensor, layers: Sequence[Linear], precision: str) -> list[Tensor]:
        name = _joined_name([layer.name for layer in layers])
        biases = [self.stored.int4_bias(layer) if precision == "int4" else layer.bias for layer in layers]
        bias = self._graph.constant(f"{name}.bias", np.concatenate(biases))
        sizes = [len(layer.bias) for layer in layers]
        shape = (*x.shape[:-1], sum(sizes))
        product = self._product(x, name, layers, bias, shape, precision)
        if len(layers) == 1:
            return [product]
        parts = [Tensor(layer.name, (*x.shape[:-1], size)) for layer, size in zip(layers, sizes, strict=True)]
        split = self._graph.constant(f"{name}.sizes", np.array(sizes, np.int64))
        return self._graph.ops("Split", f"{name}.split", [product.name, split], parts, axis=-1)

    def _product(
        self, x: Tensor, name: str, layers: Sequence[Linear], bias: str, shape: Shape, precision: str
    ) -> Tensor:
        if precision == "int4":
            return self._int4(x, name, layers, bias, shape)
        if precision == "int8":
            values, scale = self._int8_constants(layers)
            inputs = [x.name, values, scale, "", bias]  # no zero point: the weights are symmetric
            return self._graph.op("DynamicQuantizeMatMul", name, inputs, shape, domain=CONTRIB)
        if precision == "int8-static":
            return self._static(x, name, layers, bias, shape)
        if precision == "fp16":
            joined = np.concatenate([self.stored.fp16(layer.weight_name, layer.weight) for layer in layers])
            weight = self._graph.half_constant(f"{name}.weight", joined.T)
        else:
            joined = np.concatenate([self.stored.fp32(layer.weight_name, layer.weight) for layer in layers])
            weight = self._graph.constant(f"{name}.weight", joined.T)
        return self._biased(x, name, weight, bias, shape)

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """A float32 product whatever the scheme."""
        weight = self._graph.constant(layer.weight_name, self.stored.fp32(layer.weight_name, layer.weight).T)
        bias = self._graph.constant(f"{layer.name}.bias", layer.bias)
        return self._biased(x, layer.name, weight, bias, (*x.shape[:-1], len(layer.bias)))

    def _biased(self, x: Tensor, name: str, weight: str, bias: str, shape: Shape) -> Tensor:
        product = self._graph.op("MatMul", f"{name}.product", [x.name, weight], shape)
        return self._graph.op("Add", name, [product.name, bias], shape)

    def _int8_constants(self, layers: Sequence[Linear], *, static: bool = False) -> tuple[str, str]:
        """The joined weights as int8 (in, out) and their scales (out,)."""
        name = _joined_name([layer.name for layer in layers])
        parts = [self.stored.int8(layer.weight_name, layer.weight, static=static) for layer in layers]
        values = self._graph.constant(f"{name}.weight.int8", np.concatenate([part.values for part in parts]).T)
        return values, self._graph.constant(f"{name}.weight.scale", np.concatenate([part.scale for part in parts]))

    def _int4(self, x: Tensor, name: str, layers: Sequence[Linear], bias: str, shape: Shape) -> Tensor:
        parts = [self.stored.int4(layer.weight_name, layer.weight) for layer in layers]
        joined = BlockQuantized(
            np.concatenate([part.values for part in parts]), np.concatenate([part.scales for part in parts])
        )
        (rows, columns), size = joined.values.shape, joined.block_size
        packed = pack_nibbles(joined.values + np.int8(_INT4_ZERO)).reshape(rows, columns // size, size // 2)
        product = self._graph.op(
            "MatMulNBits",
            f"{name}.product",
            [
                x.name,
                self._graph.constant(f"{name}.weight.int4", packed),
                self._graph.half_constant(f"{name}.weight.scale", joined.scales.reshape(-1)),
            ],
            shape,
            domain=CONTRIB,
            K=columns,
            N=rows,
            bits=4,
            block_size=size,
            accuracy_level=4,
        )
        return self._graph.op("Add", name, [product.name, bias], shape)

    def _static(self, x: Tensor, name: str, layers: Sequence[Linear], bias: str, shape: Shape) -> Tensor:
        graph = self._graph
        if len(x.shape) == 2:  # as a product of three axes: of two, the engine makes a Gemm, which stays float
            x = graph.op("Unsqueeze", f"{name}.row", [x.name, graph.axes(1)], (x.shape[0], 1, x.shape[1]))
            rows = self._static(x, f"{name}.rows", layers, bias, (shape[0], 1, shape[1]))
            return graph.op("Squeeze", name, [rows.name, graph.axes(1)], shape)
        quantized, scale, zero = self._quantized(x, input_site(layers[0].name))
        values, weight_scale = self._int8_constants(layers, static=True)
        entry = graph.op("DequantizeLinear", f"{name}.entry", [quantized.name, scale, zero], x.shape)
        wide = (x.shape[-1], shape[-1])
        weight = graph.op("DequantizeLinear", f"{name}.weight", [values, weight_scale], wide, axis=1)
        return self._biased(entry, name, weight.name, bias, shape)

    def _quantized(self, x: Tensor, site: str) -> tuple[Tensor, str, str]:
        """x as uint8, its scale and its zero point, for the iteration that is being written; once for all products."""
        name = self._graph.prefix + site
        if name not in self._sites:
            scale, zero = self._activation(site)
            inputs = [x.name, scale, zero]
            quantized = self._graph.op("QuantizeLinear", f"{site}.quantized", inputs, x.shape, "uint8")
            self._sites[name] = quantized, scale, zero
        return self._sites[name]

    def _activation(self, site: str) -> tuple[str, str]:
        """Scale and zero point: numbers in the file or, in a Loop with a range for each iteration, picked by it."""
        graph, ranges, iteration = self._graph, self._scheme.ranges, self._graph.iteration
        assert ranges is not None
        if isinstance(iteration, Tensor) and len(ranges.rows(site)) > 1:
            scales, zeros = activation_parameters(ranges.rows(site))
            tables = graph.constant(f"{site}.scales", scales), graph.constant(f"{site}.zeros", _uint8(zeros))
            scale = graph.op("Gather", f"{site}.scale", [tables[0], iteration.name], ())
            zero = graph.op("Gather", f"{site}.zero", [tables[1], iteration.name], (), "uint8")
            return scale.name, zero.name
        span = ranges.of_iteration(site, iteration if isinstance(iteration, int) else None)
        scales, zeros = activation_parameters(span[None])
        name = graph.prefix + site
        return graph.constant(f"{name}.scale", scales[0]), graph.constant(f"{name}.zero", _uint8(zeros)[0])

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def rows(self, name: str, table: np.ndarray, shape: Shape, pick: Pick) -> Tensor:
        """Rows of a table in this precision, chosen by `pick`, as float32 of `shape`."""
        weight, graph = f"{name}.weight", self._graph
        precision = self._scheme.of(weight, table)
        if precision == "fp32":
            return pick(name, graph.constant(weight, self.stored.fp32(weight, table)), shape, "float")
        if precision == "fp16":
            half = graph.constant(weight, self.stored.fp16(weight, table))
            return graph.cast(name, pick(f"{name}.rows", half, shape, "float16"))
        if precision == "int4":
            return self._int4_rows(name, self.stored.int4(weight, table), shape, pick)
        quantized = self.stored.int8(weight, table)
        rows = pick(f"{name}.rows", graph.constant(f"{weight}.int8", quantized.values), shape, "int8")
        scales = graph.constant(f"{weight}.scale", quantized.scale[:, None])
        scale = pick(f"{name}.scale", scales, (*shape[:-1], 1), "float")
        return graph.op("Mul", name, [graph.cast(f"{name}.float", rows).name, scale.name], shape)

    def _int4_rows(self, name: str, table: BlockQuantized, shape: Shape, pick: Pick) -> Tensor:
        """byte = 16 · right + left + 8, so right = floor(byte / 16): three operators that every engine has."""
        graph, weight = self._graph, f"{name}.weight"
        blocks, half = table.scales.shape[1], (*shape[:-1], int(shape[-1]) // 2)
        packed = pick(f"{name}.rows", graph.constant(f"{weight}.int4", pack_halves(table.values)), half, "int8")
        scales = graph.constant(f"{weight}.scale", table.scales.astype(np.float16))
        scale = graph.cast(f"{name}.scale", pick(f"{name}.scale.half", scales, (*shape[:-1], blocks), "float16"))
        both = graph.cast(f"{name}.float", packed)
        sixteenth = graph.op("Mul", f"{name}.sixteenth", [both.name, graph.scalar(1 / 16)], half)
        right = graph.op("Floor", f"{name}.right", [sixteenth.name], half)
        high = graph.op("Mul", f"{name}.high", [right.name, graph.scalar(16)], half)
        low = graph.op("Sub", f"{name}.low", [both.name, high.name], half)
        left = graph.op("Sub", f"{name}.left", [low.name, graph.scalar(8)], half)
        values = graph.op("Concat", f"{name}.values", [left.name, right.name], shape, axis=-1)
        if blocks == 1:
            return graph.op("Mul", name, [values.name, scale.name], shape)
        split = (*shape[:-1], blocks, table.block_size)
        cut = graph.constant(f"{name}.blocks", np.array([0] * len(shape[:-1]) + [blocks, table.block_size], np.int64))
        in_blocks = graph.op("Reshape", f"{name}.split", [values.name, cut], split)
        column = graph.op("Unsqueeze", f"{name}.scale.column", [scale.name, graph.axes(-1)], (*scale.shape, 1))
        scaled = graph.op("Mul", f"{name}.scaled", [in_blocks.name, column.name], split)
        joined = graph.constant(f"{name}.row", np.array([0] * len(shape[:-1]) + [int(shape[-1])], np.int64))
        return graph.op("Reshape", name, [scaled.name, joined], shape)


def _uint8(zero: np.ndarray) -> np.ndarray:
    """ONNX Runtime's fast products take activations from 0 to 255."""
    return (zero.astype(np.int16) + 128).astype(np.uint8)


def _joined_name(names: list[str]) -> str:
    """layer.attention.query, .key, .value ► layer.attention.query_key_value"""
    if len(names) == 1:
        return names[0]
    stem = names[0].rpartition(".")[0]
    return f"{stem}.{'_'.join(name.rpartition('.')[2] for name in names)}"
