"""An int8 ALBERT-base answers inside a small memory cgroup, the whole process counted; the expert's ONNX file does not.

The process is fresh, Python included, without swap; it imports from copies of the packages that nobody has read yet, so
that their pages are charged to it (benchmarks/memory_cap.py). What of the interpreter's own file is in memory already,
at the expense of whoever runs these tests, is taken off the limit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_albert.bundle import open_bundle
from edge_albert.exporter import Request, export_bundle
from edge_albert.runtime.budget import needed

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from memory_cap import MB, NoCgroup, Outcome, copy_packages, push_out, run_capped  # noqa: E402
from memory_model import make_source  # noqa: E402

pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")
LIMITS = {"tflite": 72 * MB, "onnx": 96 * MB}
TEXTS = ["the train was late again and nobody told us why", "is there a table free for two at eight?"]

_CLASSIFY = """
import json, sys
import edge_albert
model = edge_albert.load(sys.argv[1], engine=sys.argv[2], threads=1, memory_mb=float(sys.argv[3]) or None)
answers = [model(text, windows=True) for text in json.loads(sys.argv[4])]
packages = sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))
print(json.dumps({
    "labels": [one.label for one in answers], "windows": [one.windows for one in answers],
    "packages": packages, "longest": model.session.max_length,
}))
"""
_EXPERT_OPTIONS = ("--attention", "eager", "--preprocess", "--per-channel")
_EXPERT = """
import sys
from pathlib import Path
from edge_albert.runtime.probe import open_plain, random_feeds
from edge_albert.tokenizer import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
_, run = open_plain(Path(sys.argv[2]), "onnx", threads=1)
for _ in range(2):
    run(random_feeds(int(sys.argv[3]), 30000))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """An ALBERT-base with random weights."""
    return make_source("albert-base-v2", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def bundle(source) -> Path:
    export_bundle(Request(source=str(source), output=source.parent / "bundle", formats=tuple(LIMITS), measure=False))
    return source.parent / "bundle"


@pytest.fixture(scope="module")
def interpreter() -> int:
    """Bytes of files that a bare interpreter has in memory: its own, and the C library's."""
    status = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/status').read())"], capture_output=True, text=True, check=True
    ).stdout
    return int(status.split("RssFile:")[1].split()[0]) * 1024


def capped(work: Path, engine: str, limit: int, script: str, *arguments: object, seconds: float = 120) -> Outcome:
    """Run a script under the limit, with copies of all it reads; skip where there is no cgroup."""
    copy_packages(engine, work / "site")
    push_out(work)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {"PYTHONPATH": str(work / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return run_capped(command, limit, seconds=seconds, **environment)
    except NoCgroup as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(work)


@pytest.mark.parametrize("engine", LIMITS)
def test_albert_base_classifies_within_the_limit(bundle, interpreter, tmp_path, engine):
    shutil.copytree(bundle, tmp_path / "work" / "bundle")
    limit = LIMITS[engine] - interpreter
    outcome = capped(
        tmp_path / "work", engine, limit, _CLASSIFY, tmp_path / "work" / "bundle", engine, 0, json.dumps(TEXTS)
    )
    assert outcome.fits, outcome
    found = json.loads(outcome.output)
    assert all(label.startswith(("no", "yes")) for label in found["labels"])
    engines = {"onnx": {"onnxruntime"}, "tflite": {"ai_edge_litert"}}[engine]
    assert set(found["packages"]) - {"__editable___edge_albert_0_1_0_finder", "_distutils_hack"} <= (
        engines | {"numpy", "sentencepiece", "edge_albert", "__main__"}
    )


@pytest.mark.parametrize("engine", LIMITS)
def test_what_is_planned_for_a_budget_fits_into_a_cgroup_of_that_size(bundle, tmp_path, engine):
    """The longest text that the plan allows, many windows of it, under a limit of exactly the budget."""
    shutil.copytree(bundle, tmp_path / "work" / "bundle")
    budget = LIMITS[engine] // MB
    texts = json.dumps([*TEXTS, " ".join(TEXTS) * 30])
    outcome = capped(
        tmp_path / "work", engine, LIMITS[engine], _CLASSIFY, tmp_path / "work" / "bundle", engine, budget, texts
    )
    assert outcome.fits, outcome
    found = json.loads(outcome.output)
    assert found["longest"] >= 128
    assert found["windows"][-1] > 1
    need = needed(
        open_bundle(bundle), engine, mapped=False, threads=1, batch=1, length=found["longest"], process=20 * MB
    )
    assert need.total < LIMITS[engine] * 1.05


def test_far_below_what_is_needed_the_kernel_ends_it(bundle, tmp_path):
    """The limit is real: with less than its anonymous memory the same process does not come through."""
    shutil.copytree(bundle, tmp_path / "work" / "bundle")
    outcome = capped(
        tmp_path / "work", "tflite", 30 * MB, _CLASSIFY, tmp_path / "work" / "bundle", "tflite", 0, json.dumps(TEXTS),
        seconds=10,
    )  # fmt: skip
    assert not outcome.fits


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "length"), [(LIMITS["tflite"], 64), (LIMITS["onnx"], 512)])
def test_the_expert_peers_onnx_does_not_fit(source, tmp_path, limit, length):
    """torch.onnx.export, quant_pre_process and quantize_dynamic per channel, on the same weights."""
    for module in ("torch", "transformers", "onnx"):
        pytest.importorskip(module)
    work = tmp_path / "work"
    work.mkdir()
    make = [sys.executable, str(ROOT / "benchmarks/peers/torch_side.py"), "quantized", str(source)]
    file = work / "model.onnx"
    subprocess.run([*make, str(file), *_EXPERT_OPTIONS], check=True, capture_output=True)
    shutil.copyfile(source / "spiece.model", work / "spiece.model")
    plenty = capped_copy(work, tmp_path / "plenty", file, 4 * limit, length)
    assert plenty.fits, plenty
    tight = capped_copy(work, tmp_path / "tight", file, limit, length)
    assert not tight.fits


def capped_copy(work: Path, place: Path, file: Path, limit: int, length: int) -> Outcome:
    shutil.copytree(work, place)
    return capped(place, "onnx", limit, _EXPERT, place, place / file.name, length, seconds=60)
