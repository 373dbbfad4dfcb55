"""The model of the processor, as the operating system names it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from ...formats.trace.privacy import hide_private

_LINUX: Final = Path("/proc/cpuinfo")
_KEYS: Final = ("model name", "Model", "cpu model", "cpu", "Hardware")
"""Lines of Linux that name the processor: x86, then ARM boards, MIPS, POWER."""
_ARM_MAKERS: Final = {"0x41": "Arm", "0xc0": "Ampere", "0x4e": "NVIDIA", "0x61": "Apple", "0x51": "Qualcomm"}
"""Implementers, as Arm numbers them: servers of that kind have no model's name in the file."""
_ARM_PARTS: Final = {
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
}
"""Processors of servers with GPUs (Graviton 2 to 4, Grace), as util-linux's `lscpu-arm.c` lists their part numbers."""
_LONGEST: Final = 80
_WINDOWS_KEY: Final = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def processor_name() -> str | None:
    """Return e.g. `AMD EPYC 7763 64-Core Processor`; None where the system does not say."""
    try:
        text = _READERS.get(sys.platform, platform.processor)()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return clean_name(text)


def clean_name(text: str) -> str | None:
    """Return a processor's name on one line, without trade marks, speed, and what may tell of a machine."""
    plain = re.sub(r"\((?:R|TM|tm|r)\)|®|™|\bCPU\b|@\s*[0-9.]+\s*[GM]Hz", " ", text[: 4 * _LONGEST])
    kept = " ".join("".join(sign if sign.isprintable() else " " for sign in plain).split())[:_LONGEST].strip()
    return hide_private(kept) or None


def read_cpuinfo(text: str) -> str:
    """Return the processor's name that `/proc/cpuinfo` holds, empty where there is none."""
    lines = (line.partition(":") for line in text.splitlines())
    found: dict[str, str] = {}
    for key, colon, value in lines:
        if colon and key.strip() not in found:
            found[key.strip()] = value.strip()
    for key in _KEYS:
        if found.get(key) and not found[key].isdecimal():
            return found[key]
    maker, part = found.get("CPU implementer", ""), found.get("CPU part", "")
    return _ARM_PARTS.get((maker, part)) or " ".join(filter(None, (_ARM_MAKERS.get(maker, ""), part)))


def _read_linux() -> str:
    return read_cpuinfo(_LINUX.read_text(encoding="utf-8", errors="replace")) or platform.machine()


def _read_mac() -> str:
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout  # noqa: S603


def _read_windows() -> str:
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _WINDOWS_KEY) as key:  # type: ignore[attr-defined]
        return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])  # type: ignore[attr-defined]


_READERS: Final = {"linux": _read_linux, "darwin": _read_mac, "win32": _read_windows}
