"""The routes that are compared, as data: how each makes its file, and how that file is opened.

`expert` is the row that the others are given as ratios to. It exports with transformers' eager attention, which this
exporter and ONNX Runtime's fusions turn into the faster graph, and quantises per channel, which is more accurate at the
same speed; `naive` is what one gets without choosing anything.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

BASE = "expert"
_TORCH_SIDE = str(Path(__file__).with_name("torch_side.py"))
_TENSORFLOW_SIDE = str(Path(__file__).with_name("tensorflow_side.py"))
_PEER = (_TORCH_SIDE, "quantized", "{model}", "{output}/model.onnx")
_EXPERT = ("--attention", "eager", "--preprocess", "--per-channel")
_DYNAMO = ("--exporter", "dynamo")
_OURS = (
    "-m", "edge_albert.export", "--model", "{model}", "--output", "{output}", "--int8", "--no-measure", "--force",
    "--format",
)  # fmt: skip
_TFLITE = "model.tflite"
_LITERT = "ai_edge_litert"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    command: what makes the file, after `python`; {model} stands for the Hugging Face folder, {output} for a folder of
    the row's own. Empty for a row that opens the file of the row `made_by` in another way. file: the model, in
    {output}. plain: opened with the engine's defaults, as peers are. mapped: opened with weights that the device packed
    before. needs: a module without which the row is left out. python: environment variable that names an interpreter
    which has that module; unset, it is this one.
    """

    name: str
    label: str
    command: tuple[str, ...] = ()
    made_by: str = ""
    file: str = "model.onnx"
    plain: bool = True
    mapped: bool = False
    needs: str = ""
    python: str = ""

    @property
    def interpreter(self) -> str:
        """What makes the file."""
        return os.environ.get(self.python, sys.executable)

    @property
    def possible(self) -> bool:
        """Whether the interpreter has the module it needs."""
        if self.interpreter != sys.executable:
            return True  # found out when it is run
        return not self.needs or find_spec(self.needs) is not None


ROWS = (
    Row("naive", "naive: torch.onnx.export, quantize_dynamic", _PEER),
    Row("expert", "expert: and quant_pre_process, per channel", (*_PEER, *_EXPERT)),
    Row("naive-dynamo", "naive, exporter dynamo=True", (*_PEER, *_DYNAMO), needs="onnxscript"),
    Row("expert-dynamo", "expert, exporter dynamo=True", (*_PEER, *_EXPERT, *_DYNAMO), needs="onnxscript"),
    Row(
        "tensorflow",
        "TensorFlow unrolled, TFLite converter",
        (_TENSORFLOW_SIDE, "{model}", f"{{output}}/{_TFLITE}"),
        file=_TFLITE,
        needs="tensorflow",
        python="EDGE_ALBERT_TF_PYTHON",
    ),
    Row("ours", "edge_albert, ONNX", (*_OURS, "onnx"), plain=False),
    Row("ours-mapped", "edge_albert, ONNX, weights mapped from a cache", made_by="ours", plain=False, mapped=True),
    Row("ours-tflite", "edge_albert, TFLite", (*_OURS, "tflite"), file=_TFLITE, plain=False, needs=_LITERT),
    Row(
        "ours-tflite-mapped",
        "edge_albert, TFLite, weights mapped from a cache",
        made_by="ours-tflite",
        file=_TFLITE,
        plain=False,
        mapped=True,
        needs=_LITERT,
    ),
)
