"""Measure ops on this machine and write measurement tables, as `wavecast score` and `analyze --calibration` read them.

    python benchmarks/measure_ops.py -o benchmarks/measurements/h200                     # all families, 5 minutes
    python benchmarks/measure_ops.py -o DIR --families matmul,attention --dtypes bf16 --seconds 60
    python benchmarks/measure_ops.py -o DIR --device cpu --gpu-name "H100 SXM" --shapes 3 --most-gflop 0.01

The time is shared evenly among the families; wherever it ends, what was measured is spread over the sizes. A family's
tables and meta.json are written as soon as it is done, over those of an earlier run. Shapes that do not fit in memory,
or that the device refuses, are left out and counted. Needs torch and pyarrow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from op_cases import DTYPES, Case, attention_cases, convolution_cases, matmul_cases
from op_tables import write_table
from op_timing import Timed, time_calls
from op_vector_cases import recurrent_cases, training_cases, vector_cases
from wavecast import __version__
from wavecast.errors import WavecastError
from wavecast.formats.files import write_atomic
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu, match_device

FAMILIES: Mapping[str, Callable[[Sequence[str]], Iterator[Case]]] = {
    "matmul": matmul_cases,
    "attention": attention_cases,
    "convolution": convolution_cases,
    "vector": vector_cases,
    "training": training_cases,
    "recurrent": recurrent_cases,
}
MOST_ELEMENTS = 1 << 30
"""Larger shapes are left out, as are those over `--most-gflop`."""
COPIED_BYTES = 2 << 30
"""Copies of operands take at most this; a single one that is larger outlasts every L2 anyway."""
CLOCKS = ("driver_version", "clocks.max.sm", "clocks.max.memory", "clocks.sm", "clocks.memory", "power.limit")


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


def _recover() -> bool:
    """Free what a failed call left, and say whether the device still works."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def time_case(case: Case, device: str) -> Timed:
    dtype = case.row["dtype"]
    operand_bytes = max(1.0, case.elements * DTYPES[dtype].itemsize)
    copies = int(min(case.copies, max(1.0, COPIED_BYTES // operand_bytes))) if device == "cuda" else 1
    with _precision(dtype), _own_stream(device):
        return time_calls([case.build(torch.device(device)) for _ in range(copies)], device)


@contextmanager
def _own_stream(device: str) -> Iterator[None]:
    """Run on one side stream: backward passes run where their forward pass did, and only there can be captured."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    with torch.cuda.stream(_side_stream()):
        yield
    torch.cuda.synchronize()


_STREAMS: list[torch.cuda.Stream] = []


def _side_stream() -> torch.cuda.Stream:
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream())
    return _STREAMS[0]


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


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "not enough memory" in text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        gpu = name_gpu(options.device, options.gpu_name)
        start = time.monotonic()
        for done, name in enumerate(options.families):
            left_s = options.seconds - (time.monotonic() - start)
            sweep = run_family(name, gpu, options, max(0.0, left_s) / (len(options.families) - done))
            save(options.output, name, sweep)
            print(f"{name}: {describe(sweep)}", flush=True)
            if sweep.is_broken:
                parser.exit(1, "the device failed: what was measured until then is written; start again for the rest\n")
    except WavecastError as error:
        parser.error(str(error))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for ops/*.parquet and meta.json")
    parser.add_argument("--families", type=_names(FAMILIES), default=list(FAMILIES), help=", ".join(FAMILIES))
    parser.add_argument("--dtypes", type=_names(DTYPES), default=["fp32", "tf32", "bf16"], help=", ".join(DTYPES))
    parser.add_argument("--seconds", type=float, default=300.0, help="time for everything (default: %(default)g)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpu-name", help="catalogue name, where the driver's does not tell or there is no GPU")
    parser.add_argument("--shapes", type=int, help="stop each family after this many rows")
    parser.add_argument("--most-gflop", type=float, default=2000.0, help="leave larger calls out (%(default)g)")
    parser.add_argument("--most-elements", type=float, default=MOST_ELEMENTS, help="leave larger calls out")
    return parser


def _names(known: Mapping[str, Any]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        wrong = [name for name in found if name not in known]
        if wrong or not found:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: expected some of {', '.join(known)}")
        return found

    return parse


def name_gpu(device: str, name: str | None) -> str:
    """Return the catalogue's name of the GPU; raises WavecastError where none is known."""
    catalog = load_catalog()
    if name is not None:
        return find_gpu(catalog, name).name
    if device == "cpu":
        raise WavecastError("a CPU is no GPU of the catalogue: say with --gpu-name which one the rows shall be of")
    if not torch.cuda.is_available():
        raise WavecastError("no CUDA GPU here: pass --device cpu to try the sweep out")
    found = torch.cuda.get_device_properties(0)
    gpu = match_device(catalog, found.name, sm_count=found.multi_processor_count, memory_bytes=int(found.total_memory))
    if gpu is None:
        raise WavecastError(f"{found.name!r} is no GPU of the catalogue, or only a part of one: pass --gpu-name")
    return gpu.name


def run_family(name: str, gpu: str, options: argparse.Namespace, budget_s: float) -> Sweep:
    """Measure cases of a family until the time is over, or as many as were asked for."""
    torch.manual_seed(0)
    sweep = Sweep(gpu=gpu, device=options.device)
    end = time.monotonic() + budget_s
    count = 0
    for case in FAMILIES[name](options.dtypes):
        if count == options.shapes or time.monotonic() >= end or sweep.is_broken:
            break
        if case.flops <= options.most_gflop * 1e9 and case.elements <= options.most_elements:
            sweep.measure(case)
            count += 1
    return sweep


def save(folder: Path, family: str, sweep: Sweep) -> None:
    """Write the family's tables, then meta.json with what it says of families that were measured before."""
    for table, rows in sweep.rows.items():
        write_table(folder, table, rows)
    path = folder / "meta.json"
    before = json.loads(path.read_text(encoding="utf-8"))["families"] if path.exists() else {}
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": sweep.gpu,
        "device": sweep.device,
        "wavecast": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if sweep.device == "cuda" else None,
        "gpu_state": read_gpu_state() if sweep.device == "cuda" else {},
        "row_counts": {table: len(rows) for table, rows in sorted(sweep.rows.items())},
        "left_out_counts": dict(sorted(sweep.left_out.items())),
    }
    text = json.dumps({"format": "wavecast.measurements", "families": before | {family: found}}, indent=1)
    write_atomic(path, f"{text}\n".encode())


def read_gpu_state() -> dict[str, str]:
    """Return driver, clocks (MHz) and power limit (W) as nvidia-smi tells them; nothing where it does not."""
    index = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "-i", index]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in text.strip().split(",")]
    return dict(zip(CLOCKS, values, strict=True)) if len(values) == len(CLOCKS) else {}


def describe(sweep: Sweep) -> str:
    rows = ", ".join(f"{len(found)} rows of {table}" for table, found in sorted(sweep.rows.items())) or "no rows"
    left = ", ".join(f"{count} left out ({reason})" for reason, count in sorted(sweep.left_out.items()))
    return f"{rows}; {left}" if left else rows


if __name__ == "__main__":
    main()
