"""A bundle made with today's packages runs on ONNX Runtime 1.18, which Raspberry Pis and Android apps still have."""

from __future__ import annotations

import pytest
from engine_environments import run_there
from tiny_models import tiny_bundle

from edge_albert.bundle import open_bundle

_SCRIPT = """
import onnxruntime
from edge_albert.runtime.selfcheck import self_check
from edge_albert.runtime.session import Session

assert onnxruntime.__version__ == "1.18.1"
for name in ("bundle", "unrolled"):
    with Session(name, threads=1) as session:
        check = self_check(session)
        assert check.texts == 5 and not check.other_ids
        found[name] = np.array([check.difference, check.allowed])
    with Session(name, threads=1, cache_dir="cache") as session:
        assert session.engine.packed is not None
        assert self_check(session).passed
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize("task", ["text-classification", "token-classification", "sentence-embedding"])
def test_bundle_runs_there_and_agrees(tmp_path, task, precision):
    tiny_bundle(tmp_path / "bundle", task, precision=precision)
    tiny_bundle(tmp_path / "unrolled", task, precision=precision, num_hidden_groups=3)
    assert open_bundle(tmp_path / "bundle").manifest["models"]["onnx"]["form"] == "loop"
    for difference, allowed in run_there("onnxruntime-1.18.1", _SCRIPT, tmp_path).values():
        assert difference <= allowed
