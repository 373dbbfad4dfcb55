"""Reads the GPUs that a file lists."""

from __future__ import annotations

from typing import Final

from ..files.database import NULL, Database
from ..trace.privacy import hide_private
from ..trace.tables import Device

TABLE: Final = "TARGET_INFO_GPU"
_COLUMNS: Final = (
    "id", "cuDevice", "totalMemory", "clockRate", "smCount", "maxShmemPerBlock", "maxShmemPerBlockOptin",
    "maxShmemPerSm", "maxRegistersPerSm", "threadsPerWarp", "maxWarpsPerSm", "maxThreadsPerBlock", "computeMajor",
    "computeMinor",
)  # fmt: skip
_LARGEST: Final = 2**53


def read_devices(database: Database, used: frozenset[int]) -> tuple[Device, ...]:
    """Return the GPUs that ran something, by the number that CUDA gives them; the only one listed where none did.

    Kernels carry CUDA's number (`cuDevice`), which differs from the tool's own (`id`) where devices were chosen.
    """
    rows: list[dict[str, int | None]] = []
    names: list[str] = []
    for batch in database.read(TABLE, _COLUMNS, ("name",)):
        for row, name in enumerate(batch.texts["name"]):
            rows.append({column: _known(int(batch.integers[column][row])) for column in _COLUMNS})
            names.append(hide_private(name or "unknown GPU"))
    numbers = [row["cuDevice"] for row in rows]
    key = "cuDevice" if None not in numbers and len(set(numbers)) == len(numbers) else "id"
    found = {row[key]: _device(row, name, row[key] or 0) for row, name in zip(rows, names, strict=True)}
    chosen = [found[number] for number in sorted(used) if number in found]
    if not chosen and len(found) == 1:
        number = min(used, default=0) if len(used) == 1 else rows[0][key] or 0
        return (_device(rows[0], names[0], number),)
    return tuple(chosen)


def _known(value: int) -> int | None:
    return None if value == NULL or not 0 <= value <= _LARGEST else value


def _device(row: dict[str, int | None], name: str, index: int) -> Device:
    major, minor = row["computeMajor"], row["computeMinor"]
    warps, width = row["maxWarpsPerSm"], row["threadsPerWarp"]
    return Device(
        index=index,
        name=name,
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=row["smCount"] or None,
        memory_bytes=row["totalMemory"] or None,
        warp_size=width or None,
        max_threads_per_block=row["maxThreadsPerBlock"] or None,
        max_threads_per_sm=_known(warps * width) if warps and width else None,
        registers_per_sm=row["maxRegistersPerSm"] or None,
        shared_memory_per_sm_bytes=row["maxShmemPerSm"] or None,
        shared_memory_per_block_bytes=row["maxShmemPerBlockOptin"] or row["maxShmemPerBlock"] or None,
        sm_clock_hz=float(row["clockRate"]) if row["clockRate"] else None,
    )
