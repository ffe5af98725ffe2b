"""What a device's clock and temperature are doing now: a benchmark's figures are only good beside these.

Linux tells the governor and the frequencies under /sys/devices/system/cpu, temperatures under /sys/class/thermal, and,
on x86, how often a core was slowed down for heat. A Raspberry Pi's firmware tells by `vcgencmd get_throttled` whether
the voltage or the temperature held it back, now or since it was started
(https://www.raspberrypi.com/documentation/computers/os.html#vcgencmd). What a system does not tell is None or empty.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

# bit of get_throttled ► meaning
_THROTTLED = {
    0: "under-voltage now",
    1: "frequency capped now",
    2: "throttled now",
    3: "soft temperature limit now",
    16: "under-voltage since start",
    17: "frequency capped since start",
    18: "throttled since start",
    19: "soft temperature limit since start",
}


def read_state(root: Path = Path("/")) -> dict[str, Any]:
    """Governors, frequencies in MHz, temperatures in °C, throttling, and the load average. Never raises.

    root: where `sys` lies; for tests.
    """
    cpus = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"), key=lambda path: int(path.name[3:]))
    return {
        "governors": sorted({name for cpu in cpus if (name := _text(cpu / "cpufreq/scaling_governor"))}),
        "frequency_mhz": _megahertz(cpus, "scaling_cur_freq"),
        "max_frequency_mhz": _megahertz(cpus, "cpuinfo_max_freq"),
        "temperature_c": _temperatures(root / "sys/class/thermal"),
        "throttle_count": _throttle_count(cpus),
        "throttled": _firmware(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def throttling(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What held the processor back between two states, or now, in words; empty if nothing is known of."""
    out = list((after["throttled"] or {}).get("meaning", []))
    counts = before["throttle_count"], after["throttle_count"]
    if None not in counts and counts[1] > counts[0]:
        out.append(f"slowed down for heat {counts[1] - counts[0]} times meanwhile")
    return out


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def _megahertz(cpus: list[Path], name: str) -> list[float]:
    """Of every processor that tells; the files hold kHz."""
    return [value / 1000 for cpu in cpus if (value := _number(cpu / "cpufreq" / name)) is not None]


def _temperatures(folder: Path) -> dict[str, float]:
    """{zone's type: °C}; the files hold thousandths. Zones of one type are numbered."""
    out: dict[str, float] = {}
    for zone in sorted(folder.glob("thermal_zone[0-9]*"), key=lambda path: int(path.name[12:])):
        value = _number(zone / "temp")
        if value is not None:
            kind = _text(zone / "type") or zone.name
            out[kind if kind not in out else f"{kind} ({zone.name})"] = value / 1000
    return out


def _throttle_count(cpus: list[Path]) -> int | None:
    counts = [_number(cpu / "thermal_throttle/core_throttle_count") for cpu in cpus]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _firmware() -> dict[str, Any] | None:
    """{"value": "0x50000", "meaning": […]} of a Raspberry Pi's firmware; None elsewhere."""
    command = shutil.which("vcgencmd")
    if command is None:
        return None
    try:
        done = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.fullmatch(r"throttled=(0x[0-9a-fA-F]+)", done.stdout.strip())
    if found is None:
        return None
    bits = int(found[1], 16)
    return {"value": found[1], "meaning": [words for bit, words in _THROTTLED.items() if bits >> bit & 1]}
