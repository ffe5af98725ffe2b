"""benchmarks/bases: small checkpoints to begin with, and what their card says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edge_albert
from edge_albert.checkpoint import read_checkpoint
from edge_albert.config import count_parameters
from edge_albert.exporter import Request, export_bundle
from edge_albert.tokenizer import load_tokenizer

BASES = Path(__file__).resolve().parents[1] / "benchmarks" / "bases"
SIZES = {"tiny-distilled": 1_500_000, "mini-distilled": 5_000_000}


@pytest.mark.parametrize("name", SIZES)
def test_it_is_of_its_size_and_has_its_tokenizer(name: str) -> None:
    read = read_checkpoint(BASES / name)
    parameters = count_parameters(read.config, pooler=False, head_outputs=0).total
    assert parameters <= SIZES[name]
    assert f"{parameters:,}" in (BASES / "README.md").read_text(encoding="utf-8")
    assert {tensor.dtype for tensor in read.tensors.values()} == {np.dtype("float16")}
    assert load_tokenizer(read.folder).vocab_size == read.config.vocab_size


@pytest.mark.parametrize("name", SIZES)
def test_its_vectors_tell_likeness(name: str, tmp_path: Path) -> None:
    """In int8: each sentence is nearer to its paraphrase than to any other."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    request = Request(
        str(BASES / name), tmp_path / "bundle", task="sentence-embedding", formats=("onnx",), measure=False
    )
    export_bundle(request)
    said = ["a man is playing a guitar", "how do i cook rice?", "shares fell on friday", "the film was very boring"]
    again = ["somebody plays music", "what is the way to boil rice", "the stock market lost", "a dull movie"]
    embed = edge_albert.load(tmp_path / "bundle")
    with embed.session:
        likeness = embed(said) @ embed(again).T
    assert (likeness.argmax(axis=1) == np.arange(len(said))).all(), likeness.round(2)
