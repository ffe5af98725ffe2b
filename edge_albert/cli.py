"""The console script `edge-albert <command>`, and how every command ends.

`edge-albert export …` and `python -m edge_albert.export …` run the same `main`. Exit status: 0 done; 1 a finding that
was asked for; 2 bad input, said in one line; 3 an export that the gate refused; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from edge_albert.errors import EdgeAlbertError

COMMANDS = {
    "export": "a checkpoint ► a bundle for the device",
    "calibrate": "what activations span and what each matrix costs in fewer bits",
    "run": "answer texts with a bundle",
    "prepare": "pack a bundle's weights for this device, for a fast start",
    "bench": "time and memory of a bundle on this device",
    "serve": "answer texts over HTTP with a bundle",
    "finetune": "train an ALBERT on labelled text",
    "distill": "teach a small ALBERT what a large model knows",
    "pretrain": "train an ALBERT on raw text",
    "train_vocab": "train a SentencePiece vocabulary",
    "analyze": "what sharing saves, costs and does, measured",
    "report": "a bundle's report as one HTML page",
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the console script: the first word names the command, the rest is its own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: edge-albert COMMAND …\n")
        for name, purpose in COMMANDS.items():
            print(f"  {name:<12} {purpose}")
        print("\nedge-albert COMMAND --help tells the rest.")
        sys.exit(0)
    command = arguments[0].replace("-", "_")
    if command not in COMMANDS:
        print(f"edge-albert: error: no command {arguments[0]!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    run_command(lambda _: importlib.import_module(f"edge_albert.{command}").main(arguments[1:]))


def run_command(command: Callable[[list[str] | None], int]) -> NoReturn:
    """Run a command's main and leave: its own status, or 2 and one line on stderr for an EdgeAlbertError."""
    try:
        status = command(None)
        sys.stdout.flush()
    except EdgeAlbertError as error:
        print(f"edge_albert: error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 2
    except ModuleNotFoundError as error:
        remedy = _missing_package(error)
        if remedy is None:
            raise
        print(f"edge_albert: error: {remedy}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("edge_albert: stopped", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def leave_without(error: ModuleNotFoundError, module: str) -> NoReturn:
    """For the imports at a command's top: one line and status 2 where it is run, the error where it is imported."""
    remedy = _missing_package(error)
    if module != "__main__" or remedy is None:
        raise error
    print(f"edge_albert: error: {remedy}", file=sys.stderr)
    sys.exit(2)


# package that is imported ► the extra that brings it
_EXTRAS = {
    "onnx": "export",
    "safetensors": "export",
    "huggingface_hub": "export",
    "onnxruntime": "onnx",
    "ai_edge_litert": "tflite",
    "flatbuffers": "tflite",
    "torch": "train",
    "tqdm": "train",
    "matplotlib": "report",
    "starlette": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
}


def _missing_package(error: ModuleNotFoundError) -> str | None:
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    return extra and f"the package {package} is not installed: pip install 'edge-albert[{extra}]'"


if __name__ == "__main__":
    main()
