"""Scores wave scaling against the plain bandwidth ratio on measured elementwise, softmax and LayerNorm kernels.

Usage: python -m benchmarks.check.wave_pairs DATA_DIR [--least-us 50] [--by-pair] [--by-waves]

Reads DATA_DIR/ops/vector.parquet (layout: its README). For every ordered pair of GPUs and every shape measured on
both with the same kernel name and over the least time on both, predicts the target's time from the source's, and
prints the mean absolute percentage error: per family the mean over pairs, the worst pair, pairs and points.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import numpy as np
from wavecast.analyzer.prediction.bounds import kernel_overhead_ns
from wavecast.analyzer.prediction.memory_rates import memory_rates
from wavecast.analyzer.prediction.wave import exact_wave_factor, large_wave_factor, reached_boundedness
from wavecast.arrays import Floats
from wavecast.mlp_weights.train.launched_pairs import FAMILIES, LaunchedRow, Pairing, load_rows, pair_up
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu
from wavecast.specs.occupancy import resident_blocks

WAVES = ("under 1 wave", "1 to 2", "2 to 4", "4 to 16", "over 16")


def pairings(data_dir: Path, least_us: float) -> Iterator[tuple[str, str, str, Pairing]]:
    rows, catalog = load_rows(data_dir), load_catalog()
    for family in FAMILIES:
        by_gpu = {gpu: {key_of(row): row for row in found} for (kind, gpu), found in rows.items() if kind == family}
        for source, target in permutations(sorted(by_gpu), 2):
            shared = [
                (by_gpu[source][key], by_gpu[target][key])
                for key in by_gpu[source].keys() & by_gpu[target].keys()
                if min(by_gpu[source][key]["latency_us"], by_gpu[target][key]["latency_us"]) > least_us
            ]
            if shared:
                origin = [build_fleet([find_gpu(catalog, name)]) for name in (source, target)]
                yield family, source, target, pair_up(family, shared, origin[0], origin[1])


def key_of(row: LaunchedRow) -> tuple[object, ...]:
    return tuple(row[name] for name in ("op", "rows", "cols", "dtype", "kernel"))


def predictions(pair: Pairing) -> dict[str, Floats]:
    source, target = pair.source, pair.target
    bandwidth = source.bandwidth_bytes_per_s / target.bandwidth_bytes_per_s
    clock = source.clock_hz / target.clock_hz
    gamma = memory_boundedness(pair.intensity, target.flops_per_s[Rate.FP32] / target.bandwidth_bytes_per_s)
    waves = [wave_blocks(pair.block_threads, fleet) for fleet in (source, target)]
    large = large_wave_factor(gamma, bandwidth, clock, source.sm_count / target.sm_count)
    exact = exact_wave_factor(gamma, bandwidth, clock, pair.block_count, *waves)
    return {
        "bandwidth ratio": pair.source_us * bandwidth,
        "many waves": pair.source_us * large,
        "exact waves": pair.source_us * exact,
        "W capped at B": pair.source_us * capped_factor(gamma, bandwidth, clock, pair.block_count, *waves),
        "Habitat's": pair.source_us * np.where(source.warp_size == target.warp_size, exact, large),
        "form in use": by_reached_bandwidth(pair, waves),
    }


def by_reached_bandwidth(pair: Pairing, waves: list[Floats]) -> Floats:
    """Times with the part that is bound by memory read off the source's time, and rates that memories reach."""
    source, target = pair.source, pair.target
    here, there = (kernel_overhead_ns(fleet) / 1e3 for fleet in (source, target))
    spent = pair.source_us - here
    gamma = reached_boundedness(pair.moved_bytes, spent * 1e3, memory_rates(source).dram)
    bandwidth, clock = memory_rates(source).dram / memory_rates(target).dram, source.clock_hz / target.clock_hz
    if source.warp_size == target.warp_size:
        factor = exact_wave_factor(gamma, bandwidth, clock, pair.block_count, *waves)
    else:
        factor = large_wave_factor(gamma, bandwidth, clock, source.sm_count / target.sm_count)
    return there + spent * factor


def memory_boundedness(flops_per_byte: Floats, ridge_flops_per_byte: Floats) -> Floats:
    """Habitat's gamma (section 3.4), from a kernel's arithmetic intensity and the target's ridge point."""
    ratio = flops_per_byte / ridge_flops_per_byte
    return np.where(ratio < 1.0, 1.0 - 0.5 * ratio, 0.5 / np.maximum(ratio, 1.0))


def capped_factor(
    gamma: Floats, bandwidth: Floats, clock: Floats, blocks: Floats, source_wave: Floats, target_wave: Floats
) -> Floats:
    """The rejected variant: below one wave, the blocks that exist share the whole bandwidth."""
    waves = np.ceil(blocks / target_wave) / np.ceil(blocks / source_wave)
    share = bandwidth * np.minimum(target_wave, blocks) / np.minimum(source_wave, blocks)
    return np.asarray(waves * share**gamma * clock ** (1.0 - gamma))


def wave_bucket(pair: Pairing) -> list[str]:
    """How many waves the kernel runs in on the GPU where it runs in fewer."""
    least = np.minimum(*(pair.block_count / wave_blocks(pair.block_threads, gpu) for gpu in (pair.source, pair.target)))
    return [WAVES[edge] for edge in np.digitize(least, [1, 2, 4, 16])]


def wave_blocks(threads: Floats, fleet: Fleet) -> Floats:
    """The tables hold no registers and no shared memory: threads alone limit the residency."""
    missing = np.full(len(threads), -1)
    return resident_blocks(threads.astype(np.int64), missing, missing, fleet.gpus)[:, 0] * fleet.sm_count


@dataclass(slots=True)
class Tally:
    """Errors of one method: per pair, and summed per number of waves."""

    by_pair: list[tuple[float, str, int]] = field(default_factory=list)
    by_waves: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, name: str, errors: Floats, warps: str, buckets: list[str]) -> None:
        self.by_pair.append((float(errors.mean()) * 100, name, len(errors)))
        for bucket, error in zip(buckets, errors.tolist(), strict=True):
            self.by_waves.setdefault((warps, bucket), []).append(error * 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--least-us", type=float, default=50.0, help="leave out kernels below this on either GPU")
    parser.add_argument("--by-pair", action="store_true", help="print every ordered pair as well")
    parser.add_argument("--by-waves", action="store_true", help="print errors by number of waves as well")
    options = parser.parse_args()
    tallies: dict[tuple[str, str], Tally] = {}
    for family, source, target, pair in pairings(options.data_dir, options.least_us):
        warps = "equal warps" if pair.source.warp_size == pair.target.warp_size else "other warps"
        for name, predicted_us in predictions(pair).items():
            errors = np.abs(predicted_us / pair.target_us - 1)
            tallies.setdefault((family, name), Tally()).add(f"{source} → {target}", errors, warps, wave_bucket(pair))
    print(f"{'family':12} {'method':16} {'MAPE %':>7} {'worst %':>8} {'pairs':>6} {'points':>7}  worst pair")
    for (family, name), tally in tallies.items():
        mean, worst = np.mean([error for error, _, _ in tally.by_pair]), max(tally.by_pair)
        points = sum(count for *_, count in tally.by_pair)
        print(f"{family:12} {name:16} {mean:7.1f} {worst[0]:8.1f} {len(tally.by_pair):6} {points:7}  {worst[1]}")
    for (family, name), tally in tallies.items():
        for error, pair_name, count in tally.by_pair if options.by_pair else ():
            print(f"{family:12} {name:16} {error:7.1f} {count:7}  {pair_name}")
        for warps, bucket in sorted(tally.by_waves, key=lambda key: (key[0], WAVES.index(key[1]))):
            if options.by_waves:
                found = tally.by_waves[warps, bucket]
                print(f"{family:12} {name:16} {np.mean(found):7.1f} {len(found):7}  {warps}, {bucket}")


if __name__ == "__main__":
    main()
