"""How far iterations that wait for the host are predicted on another machine: our own H100 and H200, both ways.

    python -m benchmarks.check.own_hosts DATA

Networks whose GPU stands still for more than 40 % of the plain loop. `--host` is given another network's recording made
on the target, the next one by name, then the same network's. Errors are |ln(predicted / measured)| against the plain
loop and against the median recorded iteration; `in` is the share inside the 90 % interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet
from wavecast.analyzer.host.speed import read_host
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

LEAST_IDLE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Hold a recording moved to the other machine; ns."""

    network: str
    loop_ns: float
    recorded_ns: float
    plain: tuple[float, float, float]
    """The iteration and its interval without `--host`."""
    told: tuple[float, float, float]
    """With another network's recording."""
    known: tuple[float, float, float]
    """With its own."""


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(data: Path) -> None:
    """Print both tables' lines."""
    moves = list(_moves(data / "own"))
    for name, answers in (
        ("no --host", [item.plain for item in moves]),
        ("--host another network", [item.told for item in moves]),
        ("--host its own", [item.known for item in moves]),
    ):
        for against, truth in (
            ("plain loop", [item.loop_ns for item in moves]),
            ("recorded iteration", [item.recorded_ns for item in moves]),
        ):
            predicted, low, high = np.array(answers).T
            error, measured = np.abs(np.log(np.array(truth) / predicted)), np.array(truth)
            held = (low <= measured) & (measured <= high)
            click.echo(
                f"{name:22} against the {against:19} {len(moves):3} moves  mean {error.mean():.2f}  median "
                f"{np.median(error):.2f}  nine of ten {np.quantile(error, 0.9):.2f}  in {100 * held.mean():.0f} %"
            )


def _moves(own: Path) -> Iterator[Move]:
    lines = [
        line for line in pyarrow.parquet.read_table(own / "iterations.parquet").to_pylist() if not line["compiled"]
    ]
    for gpu in sorted({line["gpu"] for line in lines}):
        here = sorted((line for line in lines if line["gpu"] == gpu), key=lambda line: str(line["workload"]))
        for line in here:
            peer = next((item for item in lines if item["workload"] == line["workload"] and item["gpu"] != gpu), None)
            others = [item for item in here if _network(item) > _network(line)] or here
            if peer is not None and (move := _move(own, line, peer, others[0])) is not None:
                yield move


def _network(line: dict[str, Any]) -> str:
    return str(line["workload"]).partition("-")[0]


def _move(own: Path, line: dict[str, Any], peer: dict[str, Any], other: dict[str, Any]) -> Move | None:
    """Return a moved recording; None where its GPU is busy, or where it cannot be moved."""
    source, gpu = load_trace(own / "traces" / peer["trace"]), find_gpu(load_catalog(), line["gpu"])
    try:
        plain = run_analysis(source, load_catalog(), targets=[gpu]).forecast
        if plain.busy_ns[0] > (1 - LEAST_IDLE) * line["ms"] * 1e6:
            return None
        found = [plain]
        for item in (other, line):
            host = read_host(str(own / "traces" / item["trace"]), source)
            scenario = Scenario(cpu_speed=host.ratio, host_half_width=host.half_width)
            found.append(run_analysis(source, load_catalog(), targets=[gpu], scenario=scenario).forecast)
    except InputError:
        return None
    answers = [(float(item.iteration_ns[0]), float(item.low_ns[0]), float(item.high_ns[0])) for item in found]
    return Move(
        network=str(line["workload"]),
        loop_ns=line["ms"] * 1e6,
        recorded_ns=_median_ns(load_trace(own / "traces" / line["trace"])),
        plain=answers[0],
        told=answers[1],
        known=answers[2],
    )


def _median_ns(trace: Trace) -> float:
    """Return the median of the iterations that were timed without the profiler."""
    rows = trace.iterations
    return float(np.median((rows.end_ns - rows.start_ns)[rows.profiled == 0]))


if __name__ == "__main__":
    main()
