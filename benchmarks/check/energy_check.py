"""Predicted joules and watts beside meters: two power curves, our recordings, other people's cards, B200's ops.

    python -m benchmarks.check.energy_check DATA

Reads DATA/ops/clock_power.parquet (board power of an A100 SXM4 40GB and of two L40, one held to 300 W and one to 350
W, as fused multiply-adds per byte grow), DATA/own (ops back to back, and networks recorded on an H100 and an H200 with
the board's energy counter over a plain loop), DATA/serving/b200_power (ops with sampled power) and `board_power.csv`
beside this program: average board power of networks on other people's cards. Its columns: `limit_w` the power limit
that was set, `mean_w` the board's power as NVML had it on average, `iteration_ms` how long an iteration took.

Source `zeus`: github.com/ml-energy/zeus (Apache-2.0), examples/research_reproducibility/zeus_nsdi23/trace, commits
43297f6 (V100), 3db0d49 (P100, RTX 6000), 048db45 (A40): ImageNet on ResNet-50, SQuAD on BERT base, in PyTorch of 2021,
which took TF32 where a GPU had it. An iteration is its epoch's time over 1,281,167 images or 88,568 windows of 384
tokens. `waiting`: NCF on MovieLens at a batch of 8, where the GPU waits for its host nearly all the time, of which only
what idles is compared. The V100 and the P100 are the PCIe boards, by their limit of 250 W.

Source `ecocompute`: github.com/hongping-zh/ecocompute-dynamic-eval, metadata/COMPLETE_DATASET_MEMO.md at 06bbcdd:
generation in float16 by transformers, 128 or 256 tokens after a prompt of ten, the A800 as the A100 that it is beside
its links. What the host takes between tokens is not known: power is predicted for the measured time.

The four `PowerConstants` are fitted to the recordings on their own GPU and to the public runs, with the form chosen in
sight of all; `--write` puts them where they are shipped. "Left out": each network's recordings, or each card's runs, by
constants from all others. "By the others": recordings by constants from other people's cards alone, and these by
constants from our recordings alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Final

import click
import numpy as np
import pyarrow.parquet as pq
from wavecast.analyzer.iteration.decision.electricity import PowerDraw
from wavecast.analyzer.iteration.energy import power_half_width
from wavecast.analyzer.models.frame.energy import (
    CONSTANTS,
    FITTED,
    LAUNCH_NS,
    PowerConstants,
    board_power,
    joule_per_byte,
    switching_joule,
    vector_joule_per_flop,
    waiting_w,
)
from wavecast.analyzer.models.library import load_library
from wavecast.arrays import Floats
from wavecast.mlp_weights.train.constants import FittedConstants, hash_files, save_constants
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

from .energy_runs import NAMES, Run, fit_constants, metered_rows, own_runs, public_runs

ABOUT: Final = "What the power of networks told: PowerConstants of analyzer/models/frame/energy.py. counts: iterations."
HELD_W: Final = {("A100 SXM4 40GB", 0): 400.0, ("L40", 0): 300.0, ("L40", 1): 350.0}
"""The limits that the cards were held to; all A100 as the first."""
B200_FORMATS: Final = {
    "bfloat16": (Rate.MATRIX_BF16, 2.0),
    "fp8": (Rate.MATRIX_FP8, 1.0),
    "fp8_block": (Rate.MATRIX_FP8, 1.0),
    "nvfp4": (Rate.MATRIX_FP4, 0.5625),
}
"""Unit and bytes of an operand."""
B200_WORKERS: Final = 8
"""GPUs of the machine, each of which began every weight with one size."""
LARGEST_TENSOR: Final = 2**31
"""Elements, at which sizes were left out."""
REQUANTISED: Final = "fp8_block"
"""Whose weights are quantised before every op."""
GPU_BOUND: Final = 0.6
"""Of an iteration that a GPU is busy; below it, it is the host's."""
SUSTAINED: Final = {
    "products": {
        "mm_bf16": (Rate.MATRIX_BF16, 2.0),
        "mm_fp16": (Rate.MATRIX_FP16, 2.0),
        "mm_tf32": (Rate.MATRIX_TF32, 4.0),
        "mm_fp32": (Rate.MATRIX_FP32, 4.0),
        "mm_fp8": (Rate.MATRIX_FP8, 1.0),
        "mm_intensity": (Rate.MATRIX_BF16, 2.0),
    },
    "streams of random numbers": dict.fromkeys(("sum_read", "gelu", "exp_sin_chain"), (Rate.FP32, 4.0)),
    "streams of zeros": dict.fromkeys(("copy", "fill"), (Rate.FP32, 4.0)),
}
LEAST_MS: Final = 0.1
"""Of B200's ops: shorter ones' power is sampled between others."""


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Write what is fitted to all where it is shipped; nothing else is printed.")
def main(data: Path, *, write: bool) -> None:
    """Print what was measured beside what is predicted."""
    if write:
        write_constants(data, [*own_runs(data), *public_runs()])
        return
    for card in dict.fromkeys(name for name, _ in HELD_W):
        _print(f"curve of {card}", *curve_errors(data, card))
    for row in metered_rows():
        if row["network"] == "waiting":
            idle = float(waiting_w(build_fleet([find_gpu(load_catalog(), row["gpu"])]))[0])
            click.echo(f"{row['gpu']} waiting for its host: {float(row['mean_w']):.0f} W measured, {idle:.0f} idle")
    runs = [*own_runs(data), *public_runs()]
    click.echo(f"shipped: {_words(FITTED)}\nfitted to all: {_words(fit_constants(runs))}")
    left_out = {
        name: fit_constants([run for run in runs if run.group != name]) for name in dict.fromkeys(r.group for r in runs)
    }
    halves = [fit_constants([run for run in runs if (run.kind == "public") is told]) for told in (True, False)]
    click.echo(f"fitted to other people's cards: {_words(halves[0])}\nfitted to our recordings: {_words(halves[1])}")
    carried = {run.group: halves[run.kind == "public"] for run in runs}
    ways = {"shipped": dict.fromkeys(left_out, FITTED), "left out": left_out, "by the others": carried}
    for title, constants in ways.items():
        for name, kept in _groups(runs):
            for at_time in (False, True):
                errors = np.array([run.error(constants[run.group], at_time=at_time) for run in kept])
                inside = np.array([run.is_inside(constants[run.group], at_time=at_time) for run in kept])
                _print(f"{title}, {name}, {'watts at the time' if at_time else 'joules'}", errors, inside)
    for name, errors in sustained_errors(data):
        _print(f"H100 {name}, back to back, watts", errors)
    check_caps([run for run in runs if run.kind == "public"])
    known = []
    for name, errors, inside, settled in b200_errors(data):
        _print(f"B200 {name}, all ops of {LEAST_MS * 1e3:.0f} us and more, watts", errors, inside)
        if settled.any():
            _print(f"B200 {name}, those that the meter had settled on, watts", errors[settled], inside[settled])
            known.append(errors[settled])
    _print("B200, all that the meter had settled on, watts", np.concatenate(known))


def write_constants(data: Path, runs: Sequence[Run]) -> None:
    """Write the constants that are fitted to the runs, with three digits, where they are shipped."""
    fitted = zip(NAMES, astuple(fit_constants(runs)), strict=True)
    constants = FittedConstants(
        values={name: float(f"{value:.3g}") for name, value in fitted},
        counts=Counter(run.kind for run in runs),
        inputs=hash_files(data, [data / "own/iterations.parquet"]),
    )
    save_constants(CONSTANTS, ABOUT, constants, module="benchmarks.check.energy_check")


def _groups(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Yield runs by kind and GPU, all of a kind, and of recordings those that wait little for their host."""
    for kind in dict.fromkeys(run.kind for run in runs):
        mine = [run for run in runs if run.kind == kind]
        for gpu in dict.fromkeys(run.gpu for run in mine):
            yield f"{kind}, {gpu}", [run for run in mine if run.gpu == gpu]
        yield f"{kind}, all", mine
        if kind in ("source", "moved"):
            yield f"{kind}, GPU-bound", [run for run in mine if run.busy_share >= GPU_BOUND]


def _print(what: str, errors: Floats, inside: Floats | np.ndarray | None = None) -> None:
    held = "" if inside is None else f", inside {100 * np.mean(inside):3.0f} %"
    click.echo(
        f"{what:62} n {len(errors):5,} mean {100 * np.abs(errors).mean():5.1f} % bias {100 * errors.mean():+6.1f} "
        f"worst {100 * errors[np.abs(errors).argmax()]:+6.1f}{held}"
    )


def _words(constants: PowerConstants) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in zip(NAMES, astuple(constants), strict=True))


def curve_errors(data: Path, card: str) -> tuple[Floats]:
    """Return predicted over measured power less 1 at each point of a card's power curve, a plain stream."""
    table = pq.read_table(data / "ops" / "clock_power.parquet").to_pydict()
    rows = np.flatnonzero(np.array(table["gpu"]) == card)
    moved, flops, watts, device = (np.array(table[key], float)[rows] for key in ("GBs", "GFs", "W", "device"))
    limits = np.array([HELD_W.get((card, int(item)), HELD_W[card, 0]) for item in device])
    fleet = build_fleet([find_gpu(load_catalog(), card)])
    drawn = waiting_w(fleet) + 1e9 * (joule_per_byte(fleet) * moved + vector_joule_per_flop(fleet) * flops)
    return (np.minimum(drawn, limits) / watts - 1.0,)


def check_caps(runs: Sequence[Run]) -> None:
    """Print what caps leave of an iteration's joules and speed, measured and predicted."""
    free: dict[tuple[str, str], Run] = {}
    for run in runs:
        kept = free.get((run.gpu, run.name), run)
        free[run.gpu, run.name] = max(kept, run, key=lambda item: item.draw.limit_w)
    rows = []
    for run in runs:
        whole = free[run.gpu, run.name]
        if run.draw.limit_w < whole.draw.limit_w:
            joules = [item.power(FITTED).joule(item.predicted_ns) for item in (run, whole)]
            measured = (run.measured_ns / whole.measured_ns, run.measured_j / whole.measured_j)
            rows.append((*measured, run.predicted_ns / whole.predicted_ns, joules[0] / joules[1]))
    time, energy, predicted_time, predicted_energy = np.array(rows).T
    _print("capped over free, time", predicted_time / time - 1.0)
    _print("capped over free, joules", predicted_energy / energy - 1.0)
    for what, left in (("measured", energy), ("predicted", predicted_energy)):
        click.echo(f"a cap saves, {what}: {100 * (1 - left.max()):.0f} to {100 * (1 - left.min()):.0f} % of the joules")


def b200_errors(data: Path) -> Iterator[tuple[str, Floats, np.ndarray, np.ndarray]]:
    """Yield for products of each format on a B200: predicted over sampled power less 1, which are inside, and settled.

    NVML's power is an average over a second since Ampere (but GA100), and each op was read ten times in the second that
    it ran (ai-dynamo/aiconfigurator, collector/helper.py): with it what the board drew before. Its collect_gemm.py
    makes weights that fit L2 anew for each op, quantises block-scaled ones in FP8 anew, and takes the sizes of a weight
    from the largest down. So what ran before an op is alike, and its reading settled, where the weight is kept and the
    op is not the first on its GPU. Chosen by that program, not by the readings.
    """
    fleet = build_fleet([find_gpu(load_catalog(), "B200")])
    half_width = float(power_half_width(fleet)[0])
    path = next((data / "serving" / "b200_power").glob("gemm__*.parquet"))
    table = {name: np.array(column) for name, column in pq.read_table(path).to_pydict().items()}
    kept = (table["latency"] >= LEAST_MS) & (table["power"] > 0)
    sizes, longest = np.unique(table["m"]), np.maximum(table["n"], table["k"])
    run = np.searchsorted(sizes, LARGEST_TENSOR / longest)
    is_first = np.searchsorted(sizes, table["m"]) >= run - B200_WORKERS
    for name, (rate, element_bytes) in B200_FORMATS.items():
        rows = np.flatnonzero(kept & (table["gemm_dtype"] == name))
        m, n, k, time_ms, watts = (table[key][rows].astype(float) for key in ("m", "n", "k", "latency", "power"))
        moved = (m + n) * k * element_bytes + 2.0 * m * n
        errors = op_watts(fleet, rate, 2.0 * m * n * k, moved, time_ms * 1e6) / watts - 1.0
        settled = ~is_first[rows] & (n * k * np.floor(2.0 * element_bytes) / 2.0 > fleet.l2_cache_bytes[0])
        yield name, errors, np.abs(np.log1p(errors)) <= half_width, settled & (name != REQUANTISED)


def sustained_errors(data: Path) -> Iterator[tuple[str, Floats]]:
    """Yield for kinds of ops that ran back to back on an H100: predicted over metered power less 1."""
    fleet = build_fleet([find_gpu(load_catalog(), "H100 SXM5")])
    table = {name: np.array(column) for name, column in pq.read_table(data / "own/power.parquet").to_pydict().items()}
    for kind, names in SUSTAINED.items():
        errors = []
        for name, (rate, element_bytes) in names.items():
            rows = np.flatnonzero(table["name"] == name)
            m, n, k, moved, time_ms, watts = (
                np.nan_to_num(table[key][rows].astype(float)) for key in ("m", "n", "k", "bytes", "ms", "watts")
            )
            moved = np.where(m > 0, (m * k + k * n + m * n) * element_bytes, moved)
            errors.append(op_watts(fleet, rate, 2.0 * m * n * k, moved, time_ms * 1e6) / watts - 1.0)
        yield kind, np.concatenate(errors)


def op_watts(fleet: Fleet, rate: Rate, flops: Floats, moved: Floats, time_ns: Floats) -> Floats:
    """Return the power of ops that run back to back, of so many FLOP and bytes in a time each."""
    power = board_power(fleet, load_library().values("matmul", fleet))
    roofline_s = np.maximum(flops / fleet.flops_per_s[rate][0], moved / fleet.bandwidth_bytes_per_s[0])
    work = switching_joule(flops, moved, np.full(len(flops), rate, dtype=object), fleet, power)[:, 0]
    work += power.stalled_w[0] * 1e-9 * np.maximum(time_ns - 1e9 * roofline_s - LAUNCH_NS, 0.0)
    idle, limit = float(power.idle_w[0]), float(power.idle_w[0] + power.switching_w[0])
    draws = [PowerDraw(idle_w=idle, work_j=joule, limit_w=limit, half_width=0.0) for joule in work.tolist()]
    return np.array([draw.joule(time) / time * 1e9 for draw, time in zip(draws, time_ns.tolist(), strict=True)])


if __name__ == "__main__":
    main()
