"""Which machine and which packages a figure was measured with: a time is only good beside these."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

# instruction sets that int8 inference uses, as /proc/cpuinfo calls them
_INT8 = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
_PACKAGES = ("numpy", "onnxruntime", "ai-edge-litert", "tflite-runtime", "sentencepiece", "onnx", "torch")


def describe_machine() -> dict[str, Any]:
    """Processor, its int8 instructions, processors to run on, memory in bytes, system, Python and package versions."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "cpu": info.get("model name") or info.get("Model") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "int8_instructions": [name for name in _INT8 if name in flags],
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo, empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
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
