"""The device package on a Raspberry Pi's system: real ARM wheels under QEMU, the same answers as on this machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from emulated_pi import SYSTEMS, EmulatedPi, emulated_pi, install_project, pip_install, project_wheel

from edge_albert import export
from edge_albert.runtime.session import Session

pytestmark = pytest.mark.slow
TEXTS = [
    "You have won a free phone, call now",
    "see you at seven?",
    "naïve Café, 9,5 % — “quoted” 日本語",
    "ok",
    "a long one, " * 100 + "the end",
]
TOLERANCE = {"int8": 0.05, "compat": 0.05, "fp32": 1e-4}  # of a logit, as docs/raspberry-pi.md states it
_SCRIPT = """
import json, sys
from edge_albert.runtime.session import Session
folder, engine, texts = json.loads(sys.argv[1])
with Session(folder, engine=engine, threads=1) as session:
    encodings = [session.encode(text) for text in texts]
    logits = [row.tolist() for row in session.infer(encodings)]
print(json.dumps({"ids": [e.input_ids for e in encodings], "logits": logits, "engine": session.engine.version}))
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> Path:
    """The embedded default model: "int8" and "fp32" with both engines' files, "compat" for tflite-runtime 2.14."""
    folder = tmp_path_factory.mktemp("bundles")
    for name, options in {"int8": [], "fp32": [], "compat": ["--format", "tflite", "--tflite-compat"]}.items():
        precision = "--fp32" if name == "fp32" else "--int8"
        assert export.main([precision, "--no-measure", "--output", str(folder / name), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def pi(tmp_path_factory):
    """The emulated system of a name, the project installed in it."""

    @cache
    def make(name: str) -> EmulatedPi:
        made, target = emulated_pi(name), tmp_path_factory.mktemp(name) / "packages"
        if name.startswith("aarch64"):
            install_project(made, target, "onnx", "tflite")
            return EmulatedPi(made.system, made.python, (target,))
        from armv7_sentencepiece import sentencepiece_for

        wheel = project_wheel(target.parent)
        pip_install(made.system, target, str(wheel), "tflite-runtime==2.14.0", "--no-deps")
        return EmulatedPi(made.system, made.python, (target, sentencepiece_for(made)))

    return make


CASES = [
    *[(name, bundle, engine) for name in SYSTEMS if name.startswith("aarch64")
      for bundle in ("int8", "fp32") for engine in ("onnx", "tflite")],
    ("armv7-3.11", "compat", "tflite"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bundle", "engine"), CASES)
def test_answers_as_on_this_machine(pi, bundles, name, bundle, engine):
    emulated = pi(name)
    arguments = json.dumps([str(bundles / bundle), engine, TEXTS])
    done = emulated.run("-c", _SCRIPT, arguments, folder=bundles)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with Session(bundles / bundle, engine=engine, threads=1) as session:
        encodings = [session.encode(text) for text in TEXTS]
        expected = np.array(session.infer(encodings))
    assert found["ids"] == [encoding.input_ids for encoding in encodings]
    difference = np.abs(np.array(found["logits"]) - expected).max()
    print(f"{name} {bundle} {found['engine']}: largest difference {difference:.6f}")
    assert difference <= TOLERANCE[bundle]
    assert (np.argmax(found["logits"], axis=1) == expected.argmax(axis=1)).all()


PI_3_AND_4, PI_5 = "cortex-a53", "cortex-a76"
CACHED = [
    *[(name, "int8", "onnx", PI_3_AND_4, True) for name in SYSTEMS if name.startswith("aarch64")],
    # LiteRT 2.3's CompiledModel ends the process on a processor without ARMv8.1's atomic instructions
    *[(name, "int8", "tflite", PI_3_AND_4, False) for name in SYSTEMS if name.startswith("aarch64")],
    ("aarch64-3.11", "int8", "tflite", PI_5, True),
    ("armv7-3.11", "compat", "tflite", "cortex-a7", False),  # tflite-runtime 2.14 cannot map weights
]


@pytest.mark.parametrize(("name", "bundle", "engine", "cpu", "packs"), CACHED)
def test_its_own_check_passes_cold_and_from_a_cache(pi, bundles, tmp_path, name, bundle, engine, cpu, packs):
    """The command a person types on the Pi; the second time it maps what the first one packed, if it can."""
    emulated, cache_dir = pi(name), tmp_path / "cache"
    command = ["-m", "edge_albert.run", str(bundles / bundle), "--engine", engine, "--threads", "1"]
    for _ in range(2):
        done = emulated.run(*command, "--check", "--json", "--cache", str(cache_dir), folder=tmp_path, cpu=cpu)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["passed"] is True
        assert report["texts"] == 5
        assert report["other_ids"] == []
        assert len(list(cache_dir.glob("*"))) == packs, done.stderr


def test_a_benchmark_says_that_it_was_emulated(pi, bundles, tmp_path):
    """Its figures are no Pi's, and are not to be taken for one's."""
    options = ["--engine", "all", "--lengths", "16", "--runs", "2", "--output", "result.json"]
    done = pi("aarch64-3.11").run("-m", "edge_albert.bench", str(bundles / "int8"), *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["machine"]["emulated"] is True
    assert len(result["configurations"]) == 2


@pytest.mark.parametrize("name", SYSTEMS)
def test_it_is_that_system(pi, tmp_path, name):
    """Not this machine's Python or wheels under another name."""
    script = "import platform, sys, numpy, sentencepiece; print(platform.machine(), *sys.version_info[:2])"
    done = pi(name).run("-c", script, folder=tmp_path)
    assert done.stdout.split() == [SYSTEMS[name].machine, *SYSTEMS[name].python.split(".")], done.stderr
