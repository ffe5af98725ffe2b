"""What needs PyTorch: the model to compare on, the peers' files, the float reference. Runs as a process of its own.

    python benchmarks/peers/torch_side.py model FOLDER                      ALBERT-base, random weights
    python benchmarks/peers/torch_side.py quantized FOLDER FILE.onnx […]    a peer's route, start to finished file
    python benchmarks/peers/torch_side.py agreement FOLDER --plain FILE.onnx … --ours FILE …
                                                                            JSON: each file's distance from fp32

The peers' routes are those of ONNX Runtime's documentation: `torch.onnx.export`, then `quantize_dynamic`, which the
expert precedes with `quant_pre_process`. Symbolic shape inference is skipped there: on what torch 2.15 and transformers
5.24 export it stops with "Incomplete symbolic shape inference", and dynamic quantisation does not need it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.runtime.engine import open_engine
from edge_albert.runtime.probe import Feeds, open_plain, random_feeds

SEED = 0
SEQUENCES, LENGTH = 8, 64  # of the comparison with the float model
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

Run = Callable[[Feeds], np.ndarray]


def make_model(folder: Path) -> None:
    """Write a Hugging Face folder: ALBERT-base for two-way classification, weights as transformers draws them."""
    import torch
    from transformers import AlbertConfig, AlbertForSequenceClassification

    torch.manual_seed(SEED)
    shape = AlbertConfig(
        vocab_size=30000, embedding_size=128, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072, hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    AlbertForSequenceClassification(shape).save_pretrained(folder)


def make_quantized(
    folder: Path, output: Path, *, exporter: str, attention: str, preprocess: bool, per_channel: bool
) -> None:
    """A peer's route from a Hugging Face folder to an int8 .onnx file.

    exporter: "torchscript" or "dynamo"; attention: transformers' implementation, "eager" or "sdpa".
    """
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        exported = Path(scratch) / "float.onnx"
        _export(folder, exported, exporter, attention)
        if preprocess:
            prepared = Path(scratch) / "prepared.onnx"
            quant_pre_process(str(exported), str(prepared), skip_symbolic_shape=True)
            exported = prepared
        quantize_dynamic(str(exported), str(output), per_channel=per_channel)


def _export(folder: Path, path: Path, exporter: str, attention: str) -> None:
    """torch.onnx.export with a dynamic batch and length."""
    import torch

    class Logits(torch.nn.Module):
        """The model with positional inputs and one tensor as its output."""

        def __init__(self) -> None:
            super().__init__()
            self.model = _load(folder, attention)

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
        ) -> torch.Tensor:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
            return self.model(**inputs).logits

    ids = torch.full((2, 16), 5)
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    axes = {name: {0: "batch", 1: "length"} for name in INPUTS}
    dynamo = exporter == "dynamo"
    torch.onnx.export(
        Logits().eval(),
        example,
        str(path),
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamo=dynamo,
        dynamic_axes=None if dynamo else {**axes, "logits": {0: "batch"}},
        dynamic_shapes=tuple(axes.values()) if dynamo else None,
        external_data=False,
    )


def _load(folder: Path, attention: str) -> Any:
    from transformers import AlbertForSequenceClassification

    return AlbertForSequenceClassification.from_pretrained(folder, attn_implementation=attention).eval()


def agreement(folder: Path, plain: list[Path], ours: list[Path]) -> dict[str, dict[str, float | str]]:
    """Each file's largest logit difference from the float model, and the cosine of all logits, on random sequences.

    plain: files to open with the engine's defaults; ours: files to open with this project's runtime. A file that does
    not run has an "error" instead.
    """
    import torch

    model = _load(folder, "sdpa")
    length = min(LENGTH, model.config.max_position_embeddings)
    feeds = [random_feeds(length, model.config.vocab_size, seed) for seed in range(SEQUENCES)]
    with torch.inference_mode():
        wanted = np.concatenate([_logits(model, one) for one in feeds])  # (SEQUENCES, labels)
    out: dict[str, dict[str, float | str]] = {}
    for file, opener in [*((file, _open_plain) for file in plain), *((file, _open_ours) for file in ours)]:
        try:
            run = opener(file)
            found = np.concatenate([run(one) for one in feeds])  # one at a time: int8 ranges span a batch
        except Exception as error:  # the engines' own classes share no base but Exception
            out[str(file)] = {"error": str(error).strip().split("\n")[0]}
            continue
        norms = np.linalg.norm(found) * np.linalg.norm(wanted)
        out[str(file)] = {
            "max_difference": float(np.abs(found - wanted).max()),
            "cosine": float((found * wanted).sum() / norms),
        }
    return out


def _logits(model: Any, feeds: Feeds) -> np.ndarray:
    import torch

    return model(**{name: torch.from_numpy(array) for name, array in feeds.items()}).logits.numpy()


def _open_plain(file: Path) -> Run:
    _, run = open_plain(file, file.suffix.lstrip("."), threads=1)
    return lambda feeds: run(feeds)[0]


def _open_ours(file: Path) -> Run:
    engine = open_engine(file, threads=1)
    return lambda feeds: engine.run(feeds)["logits"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("model").add_argument("folder", type=Path)
    quantized = commands.add_parser("quantized")
    quantized.add_argument("folder", type=Path)
    quantized.add_argument("output", type=Path)
    quantized.add_argument("--exporter", choices=("torchscript", "dynamo"), default="torchscript")
    quantized.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa")
    quantized.add_argument("--preprocess", action="store_true")
    quantized.add_argument("--per-channel", action="store_true")
    compared = commands.add_parser("agreement")
    compared.add_argument("folder", type=Path)
    compared.add_argument("--plain", type=Path, nargs="*", default=[])
    compared.add_argument("--ours", type=Path, nargs="*", default=[])
    options = vars(parser.parse_args())
    command = options.pop("command")
    if command == "model":
        make_model(**options)
    elif command == "quantized":
        make_quantized(**options)
    else:
        json.dump(agreement(**options), sys.stdout)


if __name__ == "__main__":
    main()
