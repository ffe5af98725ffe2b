"""The interface between ALBERT, said once (albert_graph.py), and a file format (onnx_writer.py, tflite_writer.py).

The operations are those an ALBERT is made of, not those a format happens to have: `linears` is "some projections of
one input", so that a writer may fuse them; `attention` is scaled dot-product attention, so that a writer may use one
fused operator or spell it out; `loop` is "apply this N times", so that a writer may emit a control-flow operator or
unroll it. How a weight is stored (fp32, fp16, int8 and with which layout) is the writer's business too; the
description hands over the float32 array under the name it shall have in the file.

Sizes that the caller chooses at run time are symbols: BATCH and LENGTH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from converters.quantize import WeightRecord

if TYPE_CHECKING:
    from converters.arithmetic import Arithmetic

BATCH = "batch"
LENGTH = "length"
PRECISIONS = ("fp32", "fp16", "int8", "int4", "int8-static")

Shape = tuple["int | str", ...]
State = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Tensor:
    """A value inside the graph: its name in the file, its shape (ints and symbols), and "float", "int" or "bool"."""

    name: str
    shape: Shape
    dtype: str = "float"


@dataclass(frozen=True)
class Linear:
    """y = x · weightᵀ + bias. weight (out, in) and bias (out,) are float32, as Hugging Face and PyTorch store them."""

    name: str
    weight: np.ndarray
    bias: np.ndarray

    @property
    def weight_name(self) -> str:
        return f"{self.name}.weight"


@dataclass(frozen=True)
class Norm:
    """Layer normalisation over the last axis. gamma, beta (D,) are float32; eps is added to the variance."""

    name: str
    gamma: np.ndarray
    beta: np.ndarray
    eps: float


class GraphWriter(Protocol):
    """One file being written. Every method appends to the graph and returns the new value.

    records: how each weight matrix was stored, by the name it was handed over under; filled as they are written.
    math: small arithmetic on what the graph computes, for the exits of a loop.
    """

    records: dict[str, WeightRecord]

    @property
    def math(self) -> Arithmetic: ...

    def input(self, name: str) -> Tensor:
        """A graph input of token numbers or flags, (BATCH, LENGTH)."""
        ...

    def scalar_input(self, name: str, default: np.generic) -> Tensor:
        """A graph input of one number, of the default's kind; callers that do not give it get the default."""
        ...

    def embedding(self, name: str, table: np.ndarray, ids: Tensor) -> Tensor:
        """Rows of `table` (V, E) at `ids` (B, S) ► (B, S, E)."""
        ...

    def positions(self, name: str, table: np.ndarray, like: Tensor) -> Tensor:
        """The first S rows of `table` (P, E), where `like` is (B, S) ► (1, S, E)."""
        ...

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor: ...

    def layer_norm(self, x: Tensor, norm: Norm) -> Tensor: ...

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        """Several projections of the same x (…, in) ► [(…, out), …]; their weights follow the precision asked for."""
        ...

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """A projection that stays float32 whatever the precision: a task head of a few rows."""
        ...

    def activation(self, name: str, kind: str, x: Tensor) -> Tensor:
        """kind: gelu (by erf), gelu_new (by tanh), relu or tanh."""
        ...

    def attention_mask(self, mask: Tensor) -> Tensor:
        """mask (B, S), 1 for tokens and 0 for padding ► whatever form this writer's `attention` takes."""
        ...

    def attention(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
        """softmax(q·kᵀ/√d + mask)·v per head; q, k, v and the result are (B, S, H)."""
        ...

    def loop(
        self, name: str, times: int, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """x ◄ body(x, constant), `times` times. What `body` writes stands once in the file, unless it is unrolled."""
        ...

    def exit_loop(
        self,
        name: str,
        times: int,
        state: State,
        constants: Sequence[Tensor],
        body: Callable[[Tensor, State, Sequence[Tensor]], tuple[State, Tensor]],
    ) -> State:
        """state ◄ body(number of the iteration from 0, state, constants), at most `times` times, at least once.

        body also says whether to go on: a float32 scalar above 0. Never unrolled.
        """
        ...

    def first_token(self, name: str, x: Tensor) -> Tensor:
        """x (B, S, H) ► its [CLS] row (B, H)."""
        ...

    def masked_sum(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        """Sum of x (B, S, H) over the tokens where mask (B, S), as given to `input`, is 1 ► (B, H)."""
        ...

    def l2_normalize(self, name: str, x: Tensor) -> Tensor:
        """Each row of x (B, H) scaled to unit length."""
        ...

    def output(self, name: str, x: Tensor) -> None:
        """Make x an output of the graph under this name."""
        ...

    def finish(self) -> bytes:
        """The finished file."""
        ...
