"""How many bytes `pip install` of the export extra brings, in a virtual environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from edge_albert.errors import EdgeAlbertError

_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "edge_albert", "converters", "calibration")
_CONSTRAINTS = "constraints.txt"
_OF_THE_ENVIRONMENT = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "wheel")


def export_extra_bytes(root: Path, work: Path) -> int:
    """Bytes in site-packages after `pip install '.[export]'`, without pip and setuptools themselves. Needs the network.

    The project at `root` is copied into `work` first: a build leaves files beside its sources.
    """
    source, environment = work / "install-source", work / "install-venv"
    for folder in (source, environment):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    for name in _SOURCES:
        path = root / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(path, source / name)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pinned = ["-c", str(root / _CONSTRAINTS)] if (root / _CONSTRAINTS).is_file() else []
    _run([sys.executable, "-m", "venv", str(environment)])
    _run([str(python), "-m", "pip", "install", "--quiet", *pinned, f"{source}[export]"])
    where = _run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    return sum(
        file.stat().st_size
        for entry in Path(where.strip()).iterdir()
        if not _is_pip(entry.name)
        for file in ([entry] if entry.is_file() else entry.rglob("*"))
        if file.is_file() and not file.is_symlink()
    )


def _is_pip(name: str) -> bool:
    """Whether an entry of site-packages came with the environment: the package itself or its .dist-info."""
    return name.split("-")[0] in _OF_THE_ENVIRONMENT or name == "distutils-precedence.pth"


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EdgeAlbertError(f"{' '.join(command[:4])} …: failed: {said}")
    return done.stdout
