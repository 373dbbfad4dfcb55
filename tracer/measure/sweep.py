"""Measures the cases of a family until its time is over, and writes the rows and what they were measured with."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from ... import __version__
from ...errors import InputError
from ...formats.files import write_atomic
from ...specs.gpu import Catalog
from ...specs.match import find_gpu, match_device
from .cases import DTYPES, Case, attention_cases, convolution_cases, matmul_cases
from .tables import write_table
from .timing import Timed, own_stream, time_calls
from .vector_cases import recurrent_cases, training_cases, vector_cases

FAMILIES: Final[Mapping[str, Callable[[Sequence[str]], Iterator[Case]]]] = {
    "matmul": matmul_cases,
    "attention": attention_cases,
    "convolution": convolution_cases,
    "vector": vector_cases,
    "training": training_cases,
    "recurrent": recurrent_cases,
}
MOST_FLOPS: Final = 2e12
"""Larger calls are left out: they say nothing that smaller ones do not."""
MOST_ELEMENTS: Final = 1 << 30
COPIED_BYTES: Final = 2 << 30
"""Copies of operands take at most this; a single one that is larger outlasts every L2 anyway."""
CLOCKS: Final = ("driver_version", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.memory", "power.limit")
META: Final = "meta.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Say when a family is done, and which of its calls are too large."""

    seconds: float
    flops: float = MOST_FLOPS
    elements: float = MOST_ELEMENTS
    row_count: int | None = None


@dataclass(slots=True, kw_only=True)
class Sweep:
    """Collect the rows of one family, by table, and count what was left out and why."""

    gpu: str
    device: str
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    left_out: Counter[str] = field(default_factory=Counter)
    is_broken: bool = False
    """The device failed and takes no more calls."""

    def measure(self, case: Case) -> None:
        """Add one row, or count why there is none."""
        try:
            timed = time_case(case, self.device)
        except (RuntimeError, NotImplementedError) as error:  # out of memory is a RuntimeError
            self.left_out["out_of_memory" if _is_out_of_memory(error) else "unsupported"] += 1
            self.is_broken = self.device == "cuda" and not _recover()
            return
        self.rows[case.table].append(
            {
                "gpu": self.gpu,
                **case.row,
                "latency_us": timed.latency_us,
                "timing": timed.timing,
                "source": f"wavecast/{__version__}",
                "suspect": False,
            }
        )


def run_cases(cases: Iterable[Case], sweep: Sweep, limits: Limits) -> Sweep:
    """Measure cases until the time is over, the device fails, or there are as many rows as are wanted."""
    torch.manual_seed(0)
    end = time.monotonic() + limits.seconds
    count = 0
    for case in cases:
        if count == limits.row_count or time.monotonic() >= end or sweep.is_broken:
            break
        if case.flops <= limits.flops and case.elements <= limits.elements:
            sweep.measure(case)
            count += 1
    return sweep


def time_case(case: Case, device: str) -> Timed:
    """Build a case's operands, as often as they are to be taken in turn, and time its call."""
    dtype = case.row["dtype"]
    operand_bytes = max(1.0, case.elements * DTYPES[dtype].itemsize)
    copies = int(min(case.copies, max(1.0, COPIED_BYTES // operand_bytes))) if device == "cuda" else 1
    with _precision(dtype), own_stream(device):
        return time_calls([case.build(torch.device(device)) for _ in range(copies)], device)


@contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """Switch TF32 on for `tf32` and off otherwise, for matrix products and cuDNN alike."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _recover() -> bool:
    """Free what a failed call left, and say whether the device still works."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "not enough memory" in text


def name_gpu(catalog: Catalog, device: str, name: str | None, option: str = "--gpu") -> str:
    """Return the catalogue's name of the GPU that is measured; raises InputError where none is known."""
    if name is not None:
        return find_gpu(catalog, name).name
    if device == "cpu":
        raise InputError(f"a CPU is no GPU of the catalogue: say with {option} which one the rows shall be of")
    if not torch.cuda.is_available():
        raise InputError("no CUDA GPU here: pass --device cpu to try the sweep out")
    found = torch.cuda.get_device_properties(0)
    gpu = match_device(catalog, found.name, sm_count=found.multi_processor_count, memory_bytes=int(found.total_memory))
    if gpu is None:
        raise InputError(f"{found.name!r} is no GPU of the catalogue, or only a part of one: pass {option}")
    return gpu.name


def save(folder: Path, family: str, sweep: Sweep) -> None:
    """Write the family's tables, then meta.json with what it says of families that were measured before."""
    for table, rows in sweep.rows.items():
        write_table(folder, table, rows)
    path = folder / META
    before = json.loads(path.read_text(encoding="utf-8"))["families"] if path.exists() else {}
    text = json.dumps(
        {"format": "wavecast.measurements", "families": before | {family: _describe_run(sweep)}}, indent=1
    )
    write_atomic(path, f"{text}\n".encode())


def _describe_run(sweep: Sweep) -> dict[str, Any]:
    is_gpu = sweep.device == "cuda"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": sweep.gpu,
        "device": sweep.device,
        "wavecast": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if is_gpu else None,
        "gpu_state": read_gpu_state() if is_gpu else {},
        "row_counts": {table: len(rows) for table, rows in sorted(sweep.rows.items())},
        "left_out_counts": dict(sorted(sweep.left_out.items())),
    }


def read_gpu_state() -> dict[str, str]:
    """Return driver, clocks (MHz) and power limit (W) as nvidia-smi tells them; nothing where it does not."""
    index = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "-i", index]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in text.strip().split(",")]
    return dict(zip(CLOCKS, values, strict=True)) if len(values) == len(CLOCKS) else {}


def describe(sweep: Sweep) -> str:
    """Say how many rows of which table were measured, and what was left out."""
    rows = ", ".join(f"{len(found)} rows of {table}" for table, found in sorted(sweep.rows.items())) or "no rows"
    left = ", ".join(f"{count} left out ({reason})" for reason, count in sorted(sweep.left_out.items()))
    return f"{rows}; {left}" if left else rows
