"""Predicted power beside meters: two cards' power curves, each from the other, and networks that others measured.

    python -m benchmarks.check.energy_check DATA

Reads DATA/ops/clock_power.parquet: board power of an A100 SXM4 40GB and of two L40 (one held to 300 W, one to 350 W)
as fused multiply-adds per byte grow, and `board_power.csv` beside this program: average board power of training on
other people's cards. Its columns: `limit_w` the power limit that was set, `mean_w` the board's power as NVML had it on
average, `seconds_per_epoch` what an epoch of `EPOCHS` took; `waiting` are networks so small that the GPU waits for its
host nearly all the time, of which only what idles is compared.

Source `zeus`: github.com/ml-energy/zeus (Apache-2.0), examples/research_reproducibility/zeus_nsdi23/trace, commits
43297f6 (V100), 3db0d49 (P100, RTX 6000), 048db45 (A40): ImageNet on ResNet-50, SQuAD on BERT base, in PyTorch of 2021,
which took TF32 where a GPU had it; the smallest batch of NCF on MovieLens as `waiting`. The V100 and the P100 are the
PCIe boards, by their limit of 250 W. The values of power were settled before any of these figures was looked at.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import wavecast
from wavecast.analyzer.models.frame.energy import joule_per_byte, vector_joule_per_flop
from wavecast.analyzer.models.frame.gpu_physics import POWER_PARAMETERS, idle_w
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.arrays import Floats, Mask
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.generations import process_energy
from wavecast.specs.match import find_gpu

CARDS: Final = ("A100 SXM4 40GB", "L40")
HELD_W: Final = {("A100 SXM4 40GB", 0): 400.0, ("L40", 0): 300.0, ("L40", 1): 350.0}
"""The limits that the cards were held to; all A100 as the first."""
FULL_MHZ: Final = 2400.0
"""Below it an L40 was held back: what its power says of the energy at its boost clock is not known."""
EPOCHS: Final = {"resnet50": 1_281_167, "bert_base": 88_568}
"""Samples of ImageNet, and windows of 384 tokens that SQuAD's questions make."""
SAMPLES: Final = {"resnet50": ("resnet50-training-fp32-b32", 32), "bert_base": ("bert_base-training-fp32-b16", 16)}
WITH_TF32: Final = ("A40",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Hold what one kind of card drew."""

    fleet: Fleet
    moved: Floats
    """Bytes per second."""
    flops: Floats
    watts: Floats
    limit_w: Floats
    is_free: Floats
    """1 at the boost clock, 0 where it was held back."""
    is_rated: Mask
    """Whether the card's limit was the one that its datasheet states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """Hold what a card's power is made of."""

    idle_w: float
    joule_per_byte: float
    joule_per_flop: float

    def watts(self, curve: Curve) -> Floats:
        """Return the power of each point."""
        drawn = self.idle_w + self.joule_per_byte * curve.moved + self.joule_per_flop * curve.flops
        return np.minimum(drawn, curve.limit_w)


def read_curve(data: Path, name: str) -> Curve:
    """Return the points of one card."""
    import pyarrow.parquet as pq

    table = pq.read_table(data / "ops" / "clock_power.parquet").to_pydict()
    rows = np.flatnonzero(np.array(table["gpu"]) == name)
    moved, flops, watts, mhz, device = (
        np.array(table[key], float)[rows] for key in ("GBs", "GFs", "W", "MHz", "device")
    )
    limits = [HELD_W.get((name, int(item)), HELD_W[name, 0]) for item in device]
    fleet = build_fleet([find_gpu(load_catalog(), name)])
    is_free = np.where(fleet.has_hbm, 1.0, mhz >= FULL_MHZ)
    is_rated = np.array(limits) <= fleet.tdp_w
    return Curve(
        fleet=fleet,
        moved=moved * 1e9,
        flops=flops * 1e9,
        watts=watts,
        limit_w=np.array(limits),
        is_free=is_free,
        is_rated=is_rated,
    )


def shipped(fleet: Fleet) -> Physics:
    """Return what wavecast takes a card's power to be made of."""
    idle = idle_w(fleet, prior_values(POWER_PARAMETERS, 1))
    return Physics(
        idle_w=float(idle[0]),
        joule_per_byte=float(joule_per_byte(fleet)[0]),
        joule_per_flop=float(vector_joule_per_flop(fleet)[0]),
    )


def fitted(curve: Curve, *, rated_only: bool) -> Physics:
    """Return idle power and energy per FLOP of a card by its own points alone; bytes where they vary at its top clock."""
    free = (curve.is_free > 0) & (curve.is_rated | (not rated_only))
    ones = np.ones(int(free.sum()))
    if np.ptp(curve.moved[free]) > 0.5 * curve.moved.max():
        columns = np.stack([ones, curve.moved[free] * 1e-12, curve.flops[free] * 1e-12], axis=1)
        idle, byte, flop = np.linalg.lstsq(columns, curve.watts[free], rcond=None)[0].tolist()
        byte *= 1e-12
    else:
        # Bandwidth hardly varies there: idle power and bytes cannot be told apart, and bytes are as shipped.
        byte = shipped(curve.fleet).joule_per_byte
        rest = curve.watts[free] - byte * curve.moved[free]
        columns = np.stack([ones, curve.flops[free] * 1e-12], axis=1)
        idle, flop = np.linalg.lstsq(columns, rest, rcond=None)[0].tolist()
    return Physics(idle_w=idle, joule_per_byte=byte, joule_per_flop=flop * 1e-12)


def carried(known: Physics, source: Fleet, target: Fleet, *, by_chip: bool) -> Physics:
    """Return what one card's values say of another: energies by the laws that wavecast has, idle power by one of two.

    `by_chip`: with multiprocessors, clock and the process's energy; else as the same share of the board's power.
    """
    chips = [float((item.sm_count * item.clock_hz * process_energy(item)[0])[0]) for item in (source, target)]
    boards = [float(item.tdp_w[0]) for item in (source, target)]
    idle = chips[1] / chips[0] if by_chip else boards[1] / boards[0]
    return Physics(
        idle_w=known.idle_w * idle,
        joule_per_byte=known.joule_per_byte * float(joule_per_byte(target)[0] / joule_per_byte(source)[0]),
        joule_per_flop=known.joule_per_flop
        * float(vector_joule_per_flop(target)[0] / vector_joule_per_flop(source)[0]),
    )


def check_curves(data: Path) -> None:
    """Print how far predicted power is from the meters of the two cards."""
    curves = {name: read_curve(data, name) for name in CARDS}
    for name, other in (CARDS, CARDS[::-1]):
        curve, source = curves[name], curves[other].fleet
        own, rated = (fitted(curves[other], rated_only=rated_only) for rated_only in (False, True))
        ways = {
            "as shipped": shipped(curve.fleet),
            f"from {other} alone, idle by chip": carried(own, source, curve.fleet, by_chip=True),
            f"from {other} at its stated limit alone, idle by chip": carried(rated, source, curve.fleet, by_chip=True),
            f"from {other} alone, idle by board": carried(own, source, curve.fleet, by_chip=False),
        }
        for way, physics in ways.items():
            errors = physics.watts(curve) / curve.watts - 1.0
            within = float((np.abs(errors) <= 0.15).mean())
            print(
                f"{name}, {way}: {physics.idle_w:.0f} W idle, {physics.joule_per_byte * 1e12:.0f} pJ per byte, "
                f"{physics.joule_per_flop * 1e12:.1f} pJ per FLOP; {len(errors)} points, mean error "
                f"{np.abs(errors).mean():.1%}, worst {errors[np.abs(errors).argmax()]:+.1%}, within 15 %: {within:.0%}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what was predicted of a measured run; ratios are predicted over measured."""

    gpu: str
    network: str
    watts: float
    watts_at_time: float
    """With the measured time of an iteration."""
    energy: float
    is_inside: bool
    """The measured energy lies in its interval."""
    are_watts_inside: bool
    """The measured power lies in the interval of the power at the measured time."""


def check_networks() -> Iterator[Outcome]:
    """Yield each measured run beside its prediction."""
    with (Path(__file__).with_name("board_power.csv")).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["network"] == "waiting":
                idle = shipped(build_fleet([find_gpu(load_catalog(), row["gpu"])])).idle_w
                print(f"{row['gpu']}, waiting for its host: {float(row['mean_w']):.0f} W measured, {idle:.0f} W idle")
            else:
                yield _check_network(row)


def _check_network(row: dict[str, str]) -> Outcome:
    sample, recorded = SAMPLES[row["network"]]
    batch, watts = int(row["batch"]), float(row["mean_w"])
    gpu = find_gpu(load_catalog(), row["gpu"])
    limit = "" if float(row["limit_w"]) >= gpu.tdp_w else f"@{row['limit_w']}W"
    report = wavecast.analyze(
        Path("samples") / f"{sample}-shapes.json.gz",
        to=[f"{gpu.name}{limit}"],
        batch=None if batch == recorded else batch,
        sequence_length=384 if row["network"] == "bert_base" else None,
        precision="tf32" if row["gpu"] in WITH_TF32 else None,
    )
    found = report.report.predictions[0]
    power = found.power
    assert power is not None and found.energy_j is not None and found.mean_power_w is not None
    time_ns = float(row["seconds_per_epoch"]) / EPOCHS[row["network"]] * batch * 1e9
    energy = watts * time_ns * 1e-9
    at_time = power.joule(time_ns)
    low, high = power.interval_j(time_ns, None, None)
    print(
        f"{gpu.name}{limit}, {row['network']} batch {batch}: {watts:.0f} W measured, {found.mean_power_w:.0f} predicted; "
        f"{time_ns / 1e6:.0f} ms, {found.iteration_ns / 1e6:.0f}; {energy:.1f} J, {found.energy_j:.1f} "
        f"({found.energy_low_j:.1f}-{found.energy_high_j:.1f})"
    )
    return Outcome(
        gpu=gpu.name,
        network=row["network"],
        watts=found.mean_power_w / watts,
        watts_at_time=at_time / energy,
        energy=found.energy_j / energy,
        is_inside=(found.energy_low_j or 0.0) <= energy <= (found.energy_high_j or 0.0),
        are_watts_inside=low <= energy <= high,
    )


def summarize(outcomes: list[Outcome], what: str) -> None:
    """Print errors over some runs."""
    for name in ("watts", "watts_at_time", "energy"):
        errors = np.array([getattr(item, name) for item in outcomes]) - 1.0
        print(
            f"{what}, {name.replace('_', ' ')}: {len(errors)} runs, mean error {np.abs(errors).mean():.1%}, bias "
            f"{errors.mean():+.1%}, worst {errors[np.abs(errors).argmax()]:+.1%}, within 15 %: "
            f"{(np.abs(errors) <= 0.15).mean():.0%}"
        )
    print(
        f"{what}: energy in its interval {np.mean([item.is_inside for item in outcomes]):.0%}, power at the measured "
        f"time {np.mean([item.are_watts_inside for item in outcomes]):.0%}"
    )


def main() -> None:
    """Print what was measured beside what is predicted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    check_curves(parser.parse_args().data)
    outcomes = list(check_networks())
    for gpu in dict.fromkeys(item.gpu for item in outcomes):
        summarize([item for item in outcomes if item.gpu == gpu], gpu)
    summarize(outcomes, "All")


if __name__ == "__main__":
    main()
