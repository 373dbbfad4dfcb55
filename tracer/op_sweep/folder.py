"""The folder that measurements of one GPU are kept in, ops/*.parquet and meta.json, and the GPU's name and state."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow
import torch
from pyarrow import parquet

from ...errors import InputError, OutputError, UnknownGpuError, parameter
from ...formats.files.destinations import check_destinations
from ...formats.files.open import write_atomic
from ...specs.generations import generation_at
from ...specs.gpu import Catalog
from ...specs.match import find_gpu, find_gpus, match_device
from ...version import __version__
from .sweep import SOURCE, Sweep
from .timing import HOST

META: Final = "meta.json"
FORMAT: Final = "wavecast.measurements"


def check_inputs(folder: Path, inputs: Mapping[str, Path | None]) -> None:
    """Raise OutputError where a file of the folder that is to be written is read as well."""
    given = {label: path for label, path in inputs.items() if path is not None}
    for path in (folder / META, *_tables(folder)):
        if path.is_file():
            check_destinations({"-o": path}, given)


def open_folder(folder: Path, gpu: str, device: str) -> None:
    """Make the folder where it does not exist.

    Raises OutputError where it cannot be made or holds something else: tables of another origin, another GPU's, or a
    CPU's times beside a GPU's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    families = _read_families(folder)
    if not families:
        _check_unfinished(folder, gpu, device)
    for found in families.values():
        if found["gpu"] != gpu:
            raise OutputError(f"{folder}: holds measurements of {found['gpu']}; name another folder for {gpu} with -o")
        if found["device"] != device:
            raise OutputError(
                f"{folder}: was measured with {parameter('device', found['device'])}; name another folder with -o"
            )


def save(folder: Path, family: str, sweep: Sweep) -> None:
    """Write the family's tables, then meta.json with what it says of families that were measured before."""
    for table, rows in sweep.rows.items():
        write_table(folder, table, rows)
    families = _read_families(folder) | {family: _describe_run(sweep)}
    text = json.dumps({"format": FORMAT, "families": families}, indent=1)
    write_atomic(folder / META, f"{text}\n".encode())


def _check_unfinished(folder: Path, gpu: str, device: str) -> None:
    """Accept tables that nothing describes where they are our own: what a run left that ended before meta.json."""
    for path in _tables(folder):
        origins = read_origins(path)
        if origins is None or not all(
            source.startswith(SOURCE) and name == gpu and (timing == HOST) == (device == "cpu")
            for name, source, timing in origins
        ):
            raise OutputError(f"{folder}: holds tables that were not measured here; name another folder with -o")


def _tables(folder: Path) -> list[Path]:
    return sorted((folder / "ops").glob("*.parquet"))


def _read_families(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / META
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_bytes())
        families = dict(document["families"])
        if document["format"] == FORMAT and all(found["gpu"] and found["device"] for found in families.values()):
            return families
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise InputError(f"{path}: expected what 'wavecast measure' writes; name another folder with -o")


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


TEXT = pyarrow.dictionary(pyarrow.int16(), pyarrow.string())
I32, I64 = pyarrow.int32(), pyarrow.int64()
TIMED = {"dtype": TEXT, "latency_us": pyarrow.float32(), "timing": TEXT}
LAUNCH = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), I32)
END = {"kernel": TEXT, "source": TEXT, "split": TEXT, "suspect": pyarrow.bool_()} | LAUNCH


def _sizes(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, I32)


MATMUL = {"gpu": TEXT, "op": TEXT} | _sizes("batch", "m", "n", "k") | TIMED | END
ATTENTION_SIZES = ("batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv", "window")
ATTENTION = (
    {"gpu": TEXT, "phase": TEXT}
    | _sizes(*ATTENTION_SIZES)
    | {"dtype": TEXT, "kv_dtype": TEXT}
    | TIMED
    | {"kernel": TEXT, "source": TEXT, "suspect": pyarrow.bool_()}
)
CONVOLUTION_SIZES = ("batch", "c_in", "c_out", "kernel_size", "input_size", "stride", "padding", "output_size")
CONVOLUTION = {"gpu": TEXT} | _sizes(*CONVOLUTION_SIZES) | TIMED | {"algorithm": TEXT, "kernels": TEXT} | END
VECTOR = {"gpu": TEXT, "op": TEXT} | _sizes("rows", "cols") | TIMED | {"bytes_read": I64, "bytes_written": I64} | END
DIRECTION = {"direction": TEXT}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "matmul": MATMUL,
    "matmul_train": MATMUL,
    "attention": ATTENTION,
    "attention_train": ATTENTION | DIRECTION,
    "convolution": CONVOLUTION,
    "convolution_train": CONVOLUTION | DIRECTION,
    "vector": VECTOR,
    "vector_train": VECTOR | {"inner": I32} | DIRECTION,
    "recurrent": {"gpu": TEXT, "op": TEXT}
    | _sizes("batch", "steps", "input_size", "hidden_size", "layers")
    | {"bidirectional": pyarrow.bool_(), "input_product": pyarrow.bool_()}
    | TIMED
    | DIRECTION
    | END,
}
"""By the name of the file in ops/; those that `wavecast score` does not read end in `_train`."""


def write_table(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows (what they lack is null) to ops/NAME.parquet, sorted by shape, whole or not at all."""
    rows = list(rows)
    schema = pyarrow.schema([(key, _type(kind, key, rows)) for key, kind in SCHEMAS[name].items()])
    keys = [key for key in schema.names if key not in ("latency_us", *END, "bytes_read", "bytes_written")]
    table = pyarrow.Table.from_pylist(
        sorted(rows, key=lambda row: tuple(str(row.get(key, "")).zfill(12) for key in keys)), schema=schema
    )
    path = folder / "ops" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def read_origins(path: Path) -> set[tuple[str, str, str]] | None:
    """Return GPU, source and timing method of a table's rows, each combination once; None where it is no such table."""
    names = ["gpu", "source", "timing"]
    try:
        columns = parquet.ParquetFile(path).read(columns=names)
        return set(zip(*(map(str, columns[name].to_pylist()) for name in names), strict=True))
    except (OSError, KeyError, pyarrow.ArrowException):
        return None


def _type(kind: Any, name: str, rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return plain text for a column of nulls: pyarrow cannot turn an empty dictionary into numpy's objects."""
    return pyarrow.string() if kind == TEXT and all(row.get(name) is None for row in rows) else kind


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
