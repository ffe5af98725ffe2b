"""Shared fixtures: where the genuine data lies, when it is there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# The models here are tiny: a second thread only waits for the first, for long where other work shares the processors.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts, and sends it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with genuine tokenizer, data sets and corpus; the test is skipped where it is absent."""
    folder = Path(os.environ.get("EDGE_ALBERT_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("shared/data is not beside the checkout")
    return folder


@pytest.fixture(scope="session")
def genuine_spiece(shared_data: Path) -> Path:
    """Google's genuine ALBERT v2 SentencePiece model (30,000 pieces)."""
    return shared_data / "tokenizer" / "30k-clean.model"
