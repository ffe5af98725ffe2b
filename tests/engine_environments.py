"""Older engines, each in a virtual environment of its own: they need an older numpy than the rest does.

The environments are kept in the folder that EDGE_ALBERT_ENVS names, or in ~/.cache/edge_albert/envs. Making one
downloads 20 MB for tflite-runtime, 450 MB for tensorflow-cpu. Where that fails the test is skipped with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "tflite-runtime-2.14.0": ("tflite-runtime==2.14.0", "numpy<2"),
    "tensorflow-cpu-2.16.1": ("tensorflow-cpu==2.16.1", "numpy<2"),
    "onnxruntime-1.18.1": ("onnxruntime==1.18.1", "sentencepiece==0.2.3", "numpy<2"),
    "tflite-support-0.4.4": ("tflite-support==0.4.4", "numpy<2"),
}


def python_with(name: str) -> Path:
    """The interpreter of the environment of that name, made if need be."""
    folder = Path(os.environ.get("EDGE_ALBERT_ENVS", Path.home() / ".cache" / "edge_albert" / "envs")) / name
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists():
        return python
    if sys.version_info[:2] > (3, 11):
        pytest.skip(f"{name} has no wheels for Python {sys.version_info[0]}.{sys.version_info[1]}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *PACKAGES[name]], check=True, capture_output=True, timeout=900
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error).encode()).decode().strip().splitlines()
        pytest.skip(f"{name} cannot be installed here: {reason[-1] if reason else error}")
    complete.touch()
    return python


def run_there(name: str, script: str, folder: Path, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Run a script in that environment, with this project importable.

    The script finds `arrays` in a dict called `given` and leaves its results in a dict called `found`.
    """
    np.savez(folder / "given.npz", **arrays)
    before, after = "given, found = dict(np.load('given.npz')), {}", "np.savez('found.npz', **found)"
    body = f"import numpy as np\n{before}\n{script}\n{after}\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python_with(name)), "-c", body], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(folder / "found.npz"))
