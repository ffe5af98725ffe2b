"""What bench_android.sh collected from a phone ► one JSON file. Standard library only.

    python android_result.py FOLDER BUNDLE OUTPUT

FOLDER holds the phone's own words: app.json, properties, {battery,thermal}.{before,after}, benchmark_model.TOKENS.
OUTPUT: {schema, schema_version, phone, bundle, app, benchmark_model, before, after}; times in ms, temperatures in °C.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

_POWER = {"AC powered": "ac", "USB powered": "usb", "Wireless powered": "wireless"}
_THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")  # PowerManager's
_TIMING = re.compile(
    r"Inference timings in us: Init: ([\d.e+]+), First inference: ([\d.e+]+), "
    r"Warmup \(avg\): ([\d.e+]+), Inference \(avg\): ([\d.e+]+)"
)
_FOOTPRINT = re.compile(r"Memory footprint delta from the start of the tool \(MB\): init=([\d.]+) overall=([\d.]+)")


def result(folder: Path, bundle: Path) -> dict[str, Any]:
    """The whole document. ValueError when the app's line is not JSON."""
    app = json.loads((folder / "app.json").read_text(encoding="utf-8"))
    return {
        "schema": "edge_albert.bench_android",
        "schema_version": 1,
        "phone": _phone(_lines(folder / "properties", "=")),
        "bundle": _bundle(bundle, app["model_bytes"]),
        "app": app,
        "benchmark_model": [_benchmark_model(path) for path in _by_length(folder)],
        "before": _state(folder, "before"),
        "after": _state(folder, "after"),
    }


def _phone(properties: dict[str, str]) -> dict[str, Any]:
    names = {
        "manufacturer": "ro.product.manufacturer",
        "model": "ro.product.model",
        "soc": "ro.soc.model",
        "abi": "ro.product.cpu.abi",
        "android": "ro.build.version.release",
    }
    return {
        **{name: properties.get(key) or None for name, key in names.items()},
        "api_level": int(properties["ro.build.version.sdk"]),
    }


def _bundle(folder: Path, app_bytes: int) -> dict[str, Any]:
    """The bundle's model files; whether the app's model is one of them, by its size."""
    manifest = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    models = {
        kind: {"file": model["file"], **manifest["files"][model["file"]]} for kind, model in manifest["models"].items()
    }
    same = any(model["size"] == app_bytes for model in models.values())
    return {"name": folder.resolve().name, "task": manifest["task"], "models": models, "in_app": same}


def _state(folder: Path, when: str) -> dict[str, Any]:
    """Battery and temperatures. Android 9 and older have no thermal service: then status and sensors are empty."""
    battery = _lines(folder / f"battery.{when}", ":")
    thermal = (folder / f"thermal.{when}").read_text(encoding="utf-8", errors="replace")
    status = re.search(r"^Thermal Status: (\d)", thermal, re.MULTILINE)
    current = thermal.partition("Current temperatures from HAL:")[2].partition("Current cooling devices")[0]
    sensors = re.findall(r"Temperature\{mValue=([-\d.]+), mType=-?\d+, mName=([^,]+), mStatus=\d+", current)
    return {
        "battery_percent": int(battery["level"]) if battery.get("level", "").isdigit() else None,
        "battery_celsius": int(battery["temperature"]) / 10 if battery.get("temperature", "").isdigit() else None,
        "charging_by": [short for name, short in _POWER.items() if battery.get(name) == "true"],
        "thermal_status": _THERMAL_STATUS[int(status[1])] if status and int(status[1]) < 7 else None,
        "celsius": {name: float(value) for value, name in sensors},
    }


def _by_length(folder: Path) -> list[Path]:
    return sorted(folder.glob("benchmark_model.*"), key=lambda path: int(path.suffix[1:]))


def _benchmark_model(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8", errors="replace")
    timing, footprint = _TIMING.search(text), _FOOTPRINT.search(text)
    if timing is None:
        raise ValueError(f"benchmark_model printed no timings: {text.strip().splitlines()[-1:]}")
    init, first, warm_up, mean = (float(value) / 1000 for value in timing.groups())
    return {
        "tokens": int(path.suffix[1:]),
        "init_ms": init,
        "first_ms": first,
        "warm_up_mean_ms": warm_up,
        "mean_ms": mean,
        "init_mb": float(footprint[1]) if footprint else None,
        "overall_mb": float(footprint[2]) if footprint else None,
    }


def _lines(path: Path, separator: str) -> dict[str, str]:
    """`name: value` lines."""
    lines = [line.partition(separator) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return {name.strip(): value.strip() for name, found, value in lines if found}


def main(folder: str, bundle: str, output: str) -> int:
    try:
        document = result(Path(folder), Path(bundle))
    except (KeyError, ValueError) as error:
        print(f"android_result.py: error: what the phone said cannot be read: {error}", file=sys.stderr)
        return 2
    if not document["bundle"]["in_app"]:
        size = document["app"]["model_bytes"]
        print(f"warning  the app's model has {size} bytes, {bundle} has none of that size", file=sys.stderr)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    temporary = Path(output).with_name(f".{Path(output).name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
