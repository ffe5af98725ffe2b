"""SentencePiece for a 32-bit Raspberry Pi, which PyPI has no wheel of: compiled from its source package, once.

Zig's C++ compiler (a wheel on PyPI, ziglang.org) has every target built in, so no cross toolchain is installed. Version
0.2.1 and not 0.2.3, since 0.2.3's source package fetches parts of itself from GitHub while it is built. The two break
ties differently in a few texts of 10,000; the golden examples tell whether that matters. Takes some minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from emulated_pi import EmulatedPi, debian_packages, kept, run_tool, unpack

_VERSION = "0.2.1"
_ZIG = "ziglang==0.13.0"
_NOT_LIBRARY = re.compile(r"_test|_main|testharness|compile_charsmap")
_DEFINES = ("HAVE_PTHREAD=1", "_USE_INTERNAL_STRING_VIEW", "DISABLE_EMBEDDED_DATA")
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-s", "-w", "-pthread", *(f"-D{name}" for name in _DEFINES))


def sentencepiece_for(pi: EmulatedPi) -> Path:
    """A folder with the Python package `sentencepiece` for that system."""
    return kept(f"sentencepiece-{_VERSION}-{pi.system.machine}-{pi.system.python}", lambda folder: _make(pi, folder))


def _make(pi: EmulatedPi, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        sources = _sources(work)
        headers = _headers(pi, work)
        package = folder / "sentencepiece"
        shutil.copytree(sources / "src/sentencepiece", package, ignore=shutil.ignore_patterns("*.i", "*.cxx"))
        tag = f"cpython-{pi.system.python.replace('.', '')}-arm-linux-gnueabihf"
        _compile(pi, sources, headers, package / f"_sentencepiece.{tag}.so", work)


def _sources(work: Path) -> Path:
    pip = [sys.executable, "-m", "pip"]
    run_tool(*pip, "install", "-q", "--target", str(work / "tools"), _ZIG)
    source = f"sentencepiece=={_VERSION}"
    run_tool(*pip, "download", "-q", "--no-deps", "--no-binary=sentencepiece", "-d", str(work), source)
    shutil.unpack_archive(work / f"sentencepiece-{_VERSION}.tar.gz", work)
    return work / f"sentencepiece-{_VERSION}"


def _headers(pi: EmulatedPi, work: Path) -> Path:
    """Debian's headers of that Python: pyconfig.h holds the sizes of the 32-bit types."""
    name, folder = f"libpython{pi.system.python}-dev", work / "headers"
    folder.mkdir()
    (package,) = debian_packages(pi.system.suite, pi.system.architecture, [name], work / "apt", alone=True)
    unpack(package, folder)
    return folder / "usr" / "include"


def _compile(pi: EmulatedPi, sources: Path, headers: Path, output: Path, work: Path) -> None:
    library = sources / "sentencepiece"
    template = (library / "config.h.in").read_text()
    (library / "src" / "config.h").write_text(re.sub("@[A-Z_]+@", _VERSION, template))
    files = [
        path
        for part in ("src", "src/builtin_pb", "third_party/protobuf-lite", "third_party/absl/flags")
        for path in sorted((library / part).glob("*.cc"))
        if not _NOT_LIBRARY.search(path.name)
    ]
    includes = [library / part for part in ("", "src", "src/builtin_pb", "third_party/protobuf-lite", "third_party")]
    includes += [headers, headers / f"python{pi.system.python}"]
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(work / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    run_tool(
        *(sys.executable, "-m", "ziglang", "c++", "-target", "arm-linux-gnueabihf.2.31", "-mcpu=cortex_a7", *_FLAGS),
        *(f"-I{path}" for path in includes),
        *map(str, files),
        str(sources / "src/sentencepiece/sentencepiece_wrap.cxx"),
        *("-o", str(output)),
        env={**os.environ, **cache, "PYTHONPATH": str(work / "tools")},
    )
