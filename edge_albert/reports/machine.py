"""Which machine and which packages a figure was measured with: a time is only good beside these."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

# instruction sets that int8 inference uses, as /proc/cpuinfo calls them
_INT8 = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
# 32-bit programs run on a 64-bit kernel of their family without emulation
_FAMILIES = {"armv6l": "arm", "armv7l": "arm", "armv8l": "arm", "aarch64": "arm", "i686": "x86", "x86_64": "x86"}
_PACKAGES = ("numpy", "onnxruntime", "ai-edge-litert", "tflite-runtime", "sentencepiece", "onnx", "torch")


def describe_machine(root: Path = Path("/")) -> dict[str, Any]:
    """Processor, board, int8 instructions, processors to run on, memory in bytes, system, Python and package versions.

    emulated: under qemu, where times mean nothing. root: where `proc` lies; for tests.
    """
    info = _cpuinfo(root)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "cpu": info.get("model name") or info.get("Model") or platform.processor() or platform.machine(),
        "board": _text(root / "proc/device-tree/model"),
        "architecture": platform.machine(),
        "emulated": is_emulated(root, platform.machine()),
        "int8_instructions": [name for name in _INT8 if name in flags],
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def is_emulated(root: Path, architecture: str) -> bool:
    """Whether this process runs under qemu, as far as the system tells.

    In user mode the kernel shows the emulator's name for the process, and names another architecture than Python does;
    a whole emulated machine has QEMU's name for its processor.
    """
    kernel = _text(root / "proc/sys/kernel/arch")  # from Linux 6.1 on
    foreign = kernel is not None and _FAMILIES.get(kernel, kernel) != _FAMILIES.get(architecture, architecture)
    named = (_text(root / "proc/self/comm") or "").startswith("qemu-")
    return foreign or named or "QEMU" in _cpuinfo(root).get("model name", "")


def _text(path: Path) -> str | None:
    """A file's text without what device trees and kernels put behind it; None where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return None


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo, empty where there is none."""
    text = _text(root / "proc/cpuinfo") or ""
    pairs = (line.partition(":") for line in text.splitlines())
    out: dict[str, str] = {}
    for name, _, value in pairs:
        out.setdefault(name.strip(), value.strip())
    return out


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
