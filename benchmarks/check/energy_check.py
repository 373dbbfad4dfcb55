"""Predicted power beside meters: two cards' power curves, each from the other, and networks that others measured.

    python -m benchmarks.check.energy_check DATA

Reads DATA/ops/clock_power.parquet: board power of an A100 SXM4 40GB and of two L40 (one held to 300 W, one to 350 W)
as fused multiply-adds per byte grow, and `board_power.csv` beside this program: average board power of
networks on other people's cards. Its columns: `limit_w` the power limit that was set, `mean_w` the board's power as
NVML had it on average, `iteration_ms` how long an iteration took.

Source `zeus`: github.com/ml-energy/zeus (Apache-2.0), examples/research_reproducibility/zeus_nsdi23/trace, commits
43297f6 (V100), 3db0d49 (P100, RTX 6000), 048db45 (A40): ImageNet on ResNet-50, SQuAD on BERT base, in PyTorch of 2021,
which took TF32 where a GPU had it. An iteration is its epoch's time over 1,281,167 images or 88,568 windows of 384
tokens. `waiting`: NCF on MovieLens at a batch of 8, where the GPU waits for its host nearly all the time, of which only
what idles is compared. The V100 and the P100 are the PCIe boards, by their limit of 250 W.

Source `ecocompute`: github.com/hongping-zh/ecocompute-dynamic-eval, metadata/COMPLETE_DATASET_MEMO.md at 06bbcdd:
generation in float16 by transformers, 128 or 256 tokens after a prompt of ten, the A800 as the A100 that it is beside
its links. What the host takes between tokens is not known: power is predicted for the measured time. Its traces are
recorded here, which needs torch and transformers; sizes of the models are their published configurations'.

The energies of FLOP and bytes were settled before any of these figures was looked at. What kernels switch beyond them
and what waits (`PowerConstants`) are fitted to the figures, as is the width of the interval; the form was chosen with
all of them in sight. "Left out": each card's runs with constants, and an interval, that come from the six others.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from wavecast.analyzer.iteration.energy import HALF_WIDTH
from wavecast.analyzer.models.frame.energy import joule_per_byte, vector_joule_per_flop, waiting_w
from wavecast.arrays import Floats, Mask
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.generations import process_energy
from wavecast.specs.match import find_gpu

from .energy_runs import SAMPLES, Outcome, check_networks, left_out

CARDS: Final = ("A100 SXM4 40GB", "L40")
HELD_W: Final = {("A100 SXM4 40GB", 0): 400.0, ("L40", 0): 300.0, ("L40", 1): 350.0}
"""The limits that the cards were held to; all A100 as the first."""
NORMAL_90: Final = 1.645
FULL_MHZ: Final = 2400.0
"""Below it an L40 was held back: what its power says of the energy at its boost clock is not known."""


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
    return Physics(
        idle_w=float(waiting_w(fleet)[0]),
        joule_per_byte=float(joule_per_byte(fleet)[0]),
        joule_per_flop=float(vector_joule_per_flop(fleet)[0]),
    )


def fitted(curve: Curve, *, rated_only: bool) -> Physics:
    """Return what a card's own points say alone: idle power, FLOP, and bytes where they vary at its top clock."""
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


def summarize(outcomes: list[Outcome], what: str, every: list[Outcome]) -> None:
    """Print errors over some of all runs, and how many lie in their intervals.

    `every`: all runs, each by constants that never saw its card.
    """
    for name in ("watts", "watts_at_time", "energy"):
        errors = np.array([getattr(item, name) for item in outcomes]) - 1.0
        print(
            f"{what}, {name.replace('_', ' ')}: {len(errors)} runs, mean error {np.abs(errors).mean():.1%}, bias "
            f"{errors.mean():+.1%}, worst {errors[np.abs(errors).argmax()]:+.1%}, within 15 %: "
            f"{(np.abs(errors) <= 0.15).mean():.0%}"
        )
    for width, whose in ((HALF_WIDTH, "its interval"), (None, "intervals as wide as the other cards say")):
        widths = [width or width_of(every, item.gpu) for item in outcomes]
        inside = [
            np.mean([item.is_inside(half, at_time=at_time) for item, half in zip(outcomes, widths, strict=True)])
            for at_time in (False, True)
        ]
        print(f"{what}, {whose}: energy {inside[0]:.0%} inside, power at the measured time {inside[1]:.0%}")


def width_of(outcomes: list[Outcome], without: str = "") -> float:
    """Return the half-width of the 90 % interval for a card that is none of these, natural log.

    A run's error is its card's own, which all its runs share, and its own beside that. Of n cards the first has a
    standard deviation s_c about 0 with n degrees of freedom, the second s_r, each card counted alike:

        w = sqrt((t s_c)^2 + (1.645 s_r)^2)        t: Student's 95 % of n degrees of freedom
    """
    from scipy.stats import t as student

    cards = list({item.gpu: None for item in outcomes if item.gpu != without})
    errors = [np.log([item.watts_at_time for item in outcomes if item.gpu == gpu]) for gpu in cards]
    shared = np.sqrt(np.mean([np.mean(each) ** 2 for each in errors]))
    own = np.sqrt(np.mean([np.var(each, ddof=1) for each in errors]))
    return float(np.hypot(student.ppf(0.95, len(cards)) * shared, NORMAL_90 * own))


def check_caps(outcomes: list[Outcome]) -> None:
    """Print by how much caps lengthen iterations and what they leave of the energy, measured and predicted."""
    whole = {(item.gpu, item.network, item.batch): item for item in outcomes}
    for item in outcomes:
        kept = whole[item.gpu, item.network, item.batch]
        whole[item.gpu, item.network, item.batch] = max(kept, item, key=lambda run: run.limit_w)
    errors = []
    for item in outcomes:
        free = whole[item.gpu, item.network, item.batch]
        if item.limit_w >= free.limit_w or item.found.energy_j is None or free.found.energy_j is None:
            continue
        longer = (item.measured_ns / free.measured_ns, item.found.iteration_ns / free.found.iteration_ns)
        energy = (item.measured_j / free.measured_j, item.found.energy_j / free.found.energy_j)
        errors.append((longer[1] / longer[0] - 1.0, energy[1] / energy[0] - 1.0))
        print(
            f"{item.gpu}, {item.network} batch {item.batch} at {item.limit_w:.0f} of {free.limit_w:.0f} W: time "
            f"{longer[0]:.2f} measured, {longer[1]:.2f} predicted; energy {energy[0]:.2f}, {energy[1]:.2f}"
        )
    mean = np.abs(np.array(errors)).mean(axis=0)
    print(f"{len(errors)} runs under caps, over those without: time {mean[0]:.1%} off, energy {mean[1]:.1%}")


def main() -> None:
    """Print what was measured beside what is predicted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    check_curves(parser.parse_args().data)
    with TemporaryDirectory() as folder:
        outcomes = list(check_networks(Path(folder)))
    check_caps(outcomes)
    others = left_out(outcomes)
    print(f"Half-width of all cards, each left out: {width_of(others):.2f}; shipped: {HALF_WIDTH}")
    for what, runs in (("as shipped", outcomes), ("left out", others)):
        for gpu in dict.fromkeys(item.gpu for item in runs):
            summarize([item for item in runs if item.gpu == gpu], f"{gpu}, {what}", others)
        trained = [item for item in runs if item.network in SAMPLES]
        summarize(trained, f"Training, {what}", others)
        generated = [item for item in runs if item.network not in SAMPLES]
        summarize(generated, f"Generation at the measured time, {what}", others)
        summarize(runs, f"All, {what}", others)


if __name__ == "__main__":
    main()
