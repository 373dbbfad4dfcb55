"""Measure ops on this machine and write a file, as `wavecast score` and `analyze --calibration` read it.

    python -m benchmarks.make.measure_ops -o benchmarks/measurements/h200.json.gz             # all families, 5 minutes
    python -m benchmarks.make.measure_ops -o FILE --families matmul,attention --dtypes bf16 --seconds 60
    python -m benchmarks.make.measure_ops -o FILE --device cpu --gpu-name "H100 SXM" --shapes 3 --most-gflop 0.01

`wavecast measure` over everything that can be measured, what no model reads yet included. The time is shared evenly
among the families; wherever it ends, what was measured is spread over the sizes. A family is
written as soon as it is done, over that of an earlier run. Shapes that do not fit in memory, or that the device
refuses, are left out and counted. Needs torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wavecast.errors import WavecastError
from wavecast.specs.catalog import load_catalog
from wavecast.tracer.op_sweep.cases import DTYPES
from wavecast.tracer.op_sweep.local import name_gpu, open_file, save
from wavecast.tracer.op_sweep.sweep import FAMILIES, MOST_ELEMENTS, MOST_FLOPS, Sweep, SweepLimits, describe, run_cases


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        gpu = name_gpu(load_catalog(), options.device, options.gpu_name, "--gpu-name")
        open_file(options.output, gpu, options.device, {})
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


def run_family(name: str, gpu: str, options: argparse.Namespace, seconds: float) -> Sweep:
    limits = SweepLimits(
        seconds=seconds, flops=options.most_gflop * 1e9, elements=options.most_elements, row_count=options.shapes
    )
    return run_cases(FAMILIES[name](options.dtypes), Sweep(gpu=gpu, device=options.device), limits)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="what is written, .json or .json.gz")
    parser.add_argument("--families", type=_names(FAMILIES), default=list(FAMILIES), help=", ".join(FAMILIES))
    parser.add_argument("--dtypes", type=_names(DTYPES), default=["fp32", "tf32", "bf16"], help=", ".join(DTYPES))
    parser.add_argument("--seconds", type=float, default=300.0, help="time for everything (default: %(default)g)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpu-name", help="catalogue name, where the driver's does not tell or there is no GPU")
    parser.add_argument("--shapes", type=int, help="stop each family after this many rows")
    parser.add_argument("--most-gflop", type=float, default=MOST_FLOPS * 1e-9, help="leave larger calls out")
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


if __name__ == "__main__":
    main()
