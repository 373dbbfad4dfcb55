"""Names what GPUs do as torch's profiler does, whichever tool recorded it: copies, fills, kernels of collectives."""

from __future__ import annotations

import re
from typing import Final

_COLLECTIVE: Final = re.compile(r"(?:void )?[nr]ccl", re.IGNORECASE)
_CAST: Final = re.compile(
    r"\((?P<type>bool|int|unsigned int|long|unsigned long|long long|unsigned long long)\)(?P<value>-?\d+)\b"
)
_SUFFIXES: Final = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll", "unsigned long long": "ull",
}  # fmt: skip


def is_collective(kernel: str) -> bool:
    """Say whether a kernel communicates, by its name.

    >>> is_collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), is_collective("void gemm()")
    (True, False)
    """
    return _COLLECTIVE.match(kernel) is not None


def plain_template(kernel: str) -> str:
    """Return a kernel's name with template arguments as compilers write them: some tools put their types before them.

    >>> plain_template("void reduce<(int)512, (bool)1, (unsigned int)4, float>(float*)")
    'void reduce<512, true, 4u, float>(float*)'
    """
    return _CAST.sub(_write, kernel) if ")" in kernel else kernel


def _write(match: re.Match[str]) -> str:
    if match["type"] == "bool":
        return "false" if match["value"] == "0" else "true"
    return match["value"] + _SUFFIXES[match["type"]]


def copy_name(direction: str, source: str, target: str) -> str:
    """Return the name of a copy.

    >>> copy_name("HtoD", "Pageable", "Device")
    'Memcpy HtoD (Pageable -> Device)'
    """
    return f"Memcpy {direction} ({source} -> {target})"


def fill_name(memory: str) -> str:
    """Return the name of a fill.

    >>> fill_name("Device")
    'Memset (Device)'
    """
    return f"Memset ({memory})"
