"""The file that measurements of one GPU are kept in, and the GPU's name and state."""

import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import convert

from ...errors import InputError, OutputError, UnknownGpuError, parameter
from ...formats.files.destinations import check_destinations
from ...formats.measured.ops_file import MeasuredOps, read_ops, save_ops
from ...formats.trace.version import __version__
from ...specs.generation_rows import generation_at
from ...specs.gpu import Catalog
from ...specs.match import find_gpu, find_gpus, match_device
from .sweep import Sweep


def open_file(path: Path, gpu: str, device: str, inputs: Mapping[str, Path | None]) -> None:
    """Check that measurements can be written to a file, which may hold earlier ones of the same GPU.

    Raises OutputError where it is read as well, holds another GPU's or a CPU's beside a GPU's, or cannot be written;
    InputError or TraceError where it holds something else.
    """
    if str(path) == "-" or path.is_dir() or not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: cannot be written: name a file, for example l40s.json.gz, with -o")
    if not path.exists():
        return
    check_destinations({"-o": path}, {label: given for label, given in inputs.items() if given is not None})
    found = read_ops(path)
    if found.gpu != gpu:
        raise OutputError(f"{path}: holds measurements of {found.gpu}; name another file for {gpu} with -o")
    if found.device != device:
        raise OutputError(f"{path}: was measured with {parameter('device', found.device)}; name another file with -o")


def save(path: Path, family: str, sweep: Sweep) -> None:
    """Write a family's tables beside those of families that the file holds already."""
    before = read_ops(path).families if path.exists() else {}
    is_gpu = sweep.device == "cuda"
    run = {
        "date": datetime.now(UTC).date().isoformat(),
        "wavecast": __version__,
        "torch": str(torch.__version__).partition("+")[0],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if is_gpu else None,
        "gpu_state": read_gpu_state() if is_gpu else {},
        "left_out_counts": dict(sorted(sweep.left_out.items())),
        "tables": {name: _columns(rows) for name, rows in sorted(sweep.rows.items())},
    }
    document = {"gpu": sweep.gpu, "device": sweep.device, "families": {**before, family: run}}
    save_ops(path, convert(document, MeasuredOps))


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}


CLOCKS: Final = ("driver_version", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.memory", "power.limit")


def name_gpu(catalog: Catalog, device: str, name: str | None, option: str = "--gpu") -> str:
    """Return the catalogue's name of the GPU that is measured, the driver's where the catalogue does not hold it.

    `name` overrides what the driver says. Raises InputError where no GPU is known, and where the driver shows only a
    part of one.
    """
    if name is not None:
        return find_gpu(catalog, name).name
    if device == "cpu":
        raise InputError(f"a CPU is no GPU of the catalogue: say with {option} which one the rows shall be of")
    if not torch.cuda.is_available():
        raise InputError(f"no CUDA GPU here: pass {parameter('device', 'cpu')} to try the sweep out")
    found = torch.cuda.get_device_properties(0)
    gpu = match_device(catalog, found.name, sm_count=found.multi_processor_count, memory_bytes=int(found.total_memory))
    if gpu is not None:
        return gpu.name
    if is_catalogued(catalog, found.name):
        raise InputError(
            f"{found.name!r} with {found.multi_processor_count} SMs and {found.total_memory / 1e9:.0f} GB is no GPU of "
            f"the catalogue, perhaps a part of one: pass {option}"
        )
    return str(found.name)


def is_catalogued(catalog: Catalog, name: str) -> bool:
    """Say whether a name means at least one GPU."""
    try:
        return bool(find_gpus(catalog, name))
    except UnknownGpuError:
        return False


def has_tf32(device: str) -> bool:
    """Say whether TF32 is another unit than fp32: switched on elsewhere, PyTorch ignores it."""
    if device == "cpu" or torch.version.hip is not None:
        return device == "cpu"
    major, minor = torch.cuda.get_device_capability(0)
    return generation_at(f"{major}.{minor}").has_tf32


def default_dtypes(device: str) -> list[str]:
    """Return the formats worth measuring: before there were matrix units for bf16, fp16 instead."""
    if has_tf32(device):
        return ["fp32", "tf32", "bf16"]
    return ["fp32", "fp16"] if torch.version.hip is None else ["fp32", "bf16"]


def read_gpu_state() -> dict[str, str]:
    """Return driver, clocks (MHz) and power limit (W) as nvidia-smi tells them; nothing where it does not."""
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    index = "0" if uuid is None else f"GPU-{uuid}"
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "-i", index]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in text.strip().split(",")]
    return dict(zip(CLOCKS, values, strict=True)) if len(values) == len(CLOCKS) else {}
