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

The values of power were settled before any of these figures was looked at, but for what a cap leaves of the energy of
an operation, which the law of caps says and which was first left out. The width of the interval comes from the figures,
and is scored with each card's from the others.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import wavecast
from wavecast.analyzer.analysis.energy import HALF_WIDTH
from wavecast.analyzer.analysis.report import GpuPrediction
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
CACHED_TOKENS: Final = 140
"""Of which the middle of what was generated."""
_SIZES: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
)  # fmt: skip
MODELS: Final = {
    "TinyLlama-1.1B": ("llama", "LlamaForCausalLM", (2048, 5632, 22, 32, 4, 32000)),
    "Qwen2-1.5B": ("qwen2", "Qwen2ForCausalLM", (1536, 8960, 28, 12, 2, 151936)),
    "Qwen2.5-3B": ("qwen2", "Qwen2ForCausalLM", (2048, 11008, 36, 16, 2, 151936)),
    "Qwen2-7B": ("qwen2", "Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 152064)),
    "Qwen2.5-7B": ("qwen2", "Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 152064)),
    "Yi-1.5-6B": ("llama", "LlamaForCausalLM", (4096, 11008, 32, 32, 4, 64000)),
    "Mistral-7B": ("mistral", "MistralForCausalLM", (4096, 14336, 32, 32, 8, 32768)),
    "Phi-3-mini": ("phi3", "Phi3ForCausalLM", (3072, 8192, 32, 32, 32, 32064)),
}
"""Type, class, and `_SIZES`."""
SAMPLES: Final = {"resnet50": ("resnet50-training-fp32-b32", 32), "bert_base": ("bert_base-training-fp32-b16", 16)}
WITH_TF32: Final = ("A40",)
TIED: Final = ("Qwen2-1.5B", "Qwen2.5-3B")
"""Models whose head is their embedding."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what was predicted of a measured run; ratios are predicted over measured."""

    gpu: str
    network: str
    batch: int
    limit_w: float
    watts: float
    watts_at_time: float
    """With the measured time of an iteration."""
    energy: float
    found: GpuPrediction
    measured_ns: float
    measured_j: float

    def is_inside(self, half_width: float, *, at_time: bool) -> bool:
        """Say whether the measured energy lies in its interval, predicted time and all or at the measured one."""
        assert self.found.power is not None
        power, row = replace(self.found.power, half_width=half_width), self.found
        ends = (row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns)
        low, high = power.interval_j(*((self.measured_ns, None, None) if at_time else ends))
        return low <= self.measured_j <= high


def check_networks(folder: Path) -> Iterator[Outcome]:
    """Yield each measured run beside its prediction; `folder` holds traces that are recorded on the way."""
    with (Path(__file__).with_name("board_power.csv")).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["network"] == "waiting":
            idle = shipped(build_fleet([find_gpu(load_catalog(), row["gpu"])])).idle_w
            print(f"{row['gpu']}, waiting for its host: {float(row['mean_w']):.0f} W measured, {idle:.0f} W idle")
        else:
            found = _trained(row) if row["network"] in SAMPLES else _generated(row, folder)
            yield _compare(row, found)


def _trained(row: dict[str, str]) -> GpuPrediction:
    """Predict a network of the samples at the batch and the power limit of a row."""
    sample, recorded = SAMPLES[row["network"]]
    batch, gpu = int(row["batch"]), find_gpu(load_catalog(), row["gpu"])
    limit = "" if float(row["limit_w"]) >= gpu.tdp_w else f"@{row['limit_w']}W"
    report = wavecast.analyze(
        Path("samples") / f"{sample}-shapes.json.gz",
        to=[f"{gpu.name}{limit}"],
        batch=None if batch == recorded else batch,
        sequence_length=384 if row["network"] == "bert_base" else None,
        precision="tf32" if row["gpu"] in WITH_TF32 else None,
    )
    return report.report.predictions[0]


def _generated(row: dict[str, str], folder: Path) -> GpuPrediction:
    """Predict one token of a model at the measured time."""
    trace = folder / f"{row['network']}-{row['batch']}.json.gz"
    if not trace.exists():
        kind, name, sizes = MODELS[row["network"]]
        config = {"model_type": kind, "architectures": [name], **dict(zip(_SIZES, sizes, strict=True))}
        config |= {"tie_word_embeddings": row["network"] in TIED, "max_position_embeddings": 4096, "pad_token_id": 0}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        words = ["--hf-config", str(folder / "config.json"), "--batch-size", row["batch"], "-o", str(trace)]
        fixed = ["--mode", "inference", "--precision", "fp16", "--cached-tokens", str(CACHED_TOKENS)]
        command = [sys.executable, "-m", "wavecast", "record", "--shapes-only", *fixed, *words]
        subprocess.run(command, check=True, capture_output=True)
    report = wavecast.analyze(trace, to=[row["gpu"]], observed={row["gpu"]: f"{row['iteration_ms']} ms"})
    return report.report.predictions[0]


def _compare(row: dict[str, str], found: GpuPrediction) -> Outcome:
    """Print a prediction beside what was measured, and return how far it is from it."""
    power, watts, time_ns = found.power, float(row["mean_w"]), float(row["iteration_ms"]) * 1e6
    assert power is not None
    assert found.energy_j is not None
    assert found.mean_power_w is not None
    energy = watts * time_ns * 1e-9
    print(
        f"{found.gpu}, {row['network']} batch {row['batch']}: {watts:.0f} W measured, {found.mean_power_w:.0f} "
        f"predicted; {time_ns / 1e6:.1f} ms, {found.iteration_ns / 1e6:.1f}; {energy:.1f} J, {found.energy_j:.1f} "
        f"({found.energy_low_j:.1f}-{found.energy_high_j:.1f})"
    )
    return Outcome(
        gpu=row["gpu"],
        network=row["network"],
        batch=int(row["batch"]),
        limit_w=float(row["limit_w"]),
        watts=found.mean_power_w / watts,
        watts_at_time=power.joule(time_ns) / energy,
        energy=found.energy_j / energy,
        found=found,
        measured_ns=time_ns,
        measured_j=energy,
    )


def summarize(outcomes: list[Outcome], what: str, every: list[Outcome]) -> None:
    """Print errors over some of all runs, and how many lie in their intervals."""
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


def width_of(outcomes: list[Outcome], left_out: str) -> float:
    """Return what 90 % of the runs on other cards than one lie within, each card counted alike: natural log."""
    cards = {item.gpu for item in outcomes} - {left_out}
    errors = [(abs(np.log(item.watts_at_time)), item.gpu) for item in outcomes if item.gpu in cards]
    share = {gpu: 1.0 / len(cards) / sum(item[1] == gpu for item in errors) for gpu in cards}
    errors.sort()
    reached = np.cumsum([share[gpu] for _, gpu in errors])
    return float(errors[int(np.searchsorted(reached, 0.9))][0])


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
    for gpu in dict.fromkeys(item.gpu for item in outcomes):
        summarize([item for item in outcomes if item.gpu == gpu], gpu, outcomes)
    summarize([item for item in outcomes if item.network in SAMPLES], "Training", outcomes)
    summarize([item for item in outcomes if item.network not in SAMPLES], "Generation at the measured time", outcomes)
    summarize(outcomes, "All", outcomes)


if __name__ == "__main__":
    main()
