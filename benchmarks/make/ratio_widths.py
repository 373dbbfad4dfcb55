"""Measures how far off the rules without an op model are: the widths of analyzer/prediction/ratio_widths.py.

Usage: python -m benchmarks.make.ratio_widths DATA_DIR [--by-pair]

DATA_DIR as its README describes it. Every rule of analyzer/prediction/ratios.py that moves a measured time by a
ratio predicts the kernels of ops/*.parquet between every two GPUs that have them (`pcie`: the efficiencies of copies
in traces/). A block is one table family between an ordered pair of GPUs, all blocks count alike. |ln(predicted /
measured)|, divided by what the widths grow with the distance, has the 90 % quantile `pooled`; `width` is widened so
that it holds 90 % on a chip left out. `left out` is the share that such widths hold on the blocks of a chip that
neither quantile nor widening saw. GPUs of one chip are no pair, but for `link`, where boards and nodes differ.
Printed as well: the share that the widths in use hold, by distance.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import parquet
from wavecast import load_trace
from wavecast.analyzer.accuracy.score.least_work import least_work, take_work
from wavecast.analyzer.accuracy.score.rows import problem_keys
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import Samples
from wavecast.analyzer.models.frame.intervals import separations
from wavecast.analyzer.prediction.bounds import bound_ops, rate_matrix
from wavecast.analyzer.prediction.predict import KERNEL_OVERHEAD_NS
from wavecast.analyzer.prediction.ratio_widths import by_host_or_node, cache_gap, growth, may_be_cached, width_of
from wavecast.analyzer.prediction.ratios import RULES
from wavecast.analyzer.prediction.wave import exact_wave_factor, large_wave_factor
from wavecast.analyzer.work import Family
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Gpu, Rate, chip_of
from wavecast.specs.match import find_gpu, match_device
from wavecast.specs.occupancy import resident_blocks

from ..check.wave_pairs import load_rows, pair_up

Floats = npt.NDArray[np.float64]
COVERAGE = 0.9
POINTS = np.linspace(0.0, 1.0, 1001)[:-1] + 0.0005
"""A block's residuals are kept as these quantiles, so that blocks of any length count alike."""
BY_HOST_OR_NODE = {rule.name for rule in RULES if rule.half_width is by_host_or_node}
FEWEST_ROWS = 30
FEWEST_PAIRS = 6
"""Of GPUs, ordered."""
EVENT_FLOOR_NS = 50e3
"""Single launches between events: shorter ones measure the launch. Of NeuSight's tables (DATA_DIR/README.md)."""
FLOOR_NS = 10e3
"""Times to the whole microsecond, and quantization of activations inside: shorter ones say little of the kernel."""
EVENT_TIMED = ("matmul_simt", "convolution")
LARGE_COPY_BYTES = 1e6
LEAPS = ((0.0, 0.5), (0.5, 1.5), (1.5, 2.5), (2.5, 9.0))
CACHED = " cached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One table family between an ordered pair of GPUs."""

    rule: str
    family: Family | None
    kind: str
    source: str
    target: str
    chips: tuple[str, str]
    apart: float
    count: int
    residual: Floats
    """|ln(predicted / measured)| at `POINTS`."""
    bias: float
    """Median of ln(predicted / measured)."""
    least: float = 0.0
    """What the width in use is not under."""

    @property
    def growth(self) -> float:
        return 1.0 if self.rule in BY_HOST_OR_NODE else float(growth(np.array(self.apart)))

    @property
    def scaled(self) -> Floats:
        """Residuals at the reference distance."""
        return self.residual / self.growth

    @property
    def in_use(self) -> float:
        """The half width that analyzer/prediction/ratio_widths.py gives."""
        width = width_of(self.rule.removesuffix(CACHED), self.family) * self.growth
        return float(np.hypot(width, self.least)) if self.rule.endswith(CACHED) else max(width, self.least)


def block(
    rule: str, kind: str, pair: tuple[Gpu, Gpu], log_ratio: Floats, *, family: Family | None = None, least: float = 0.0
) -> Block:
    source, target = pair
    return Block(
        least=least,
        rule=rule,
        family=family,
        kind=kind,
        source=source.name,
        target=target.name,
        chips=(chip_of(source), chip_of(target)),
        apart=float(separations(build_fleet([target]), build_fleet([source]))[0]),
        count=len(log_ratio),
        residual=np.quantile(np.abs(log_ratio), POINTS),
        bias=float(np.median(log_ratio)),
    )


def memory_blocks(rule: str, kind: str, pair: tuple[Gpu, Gpu], time_ns: Floats, log_ratio: Floats) -> Iterator[Block]:
    """What may lie in a cache apart."""
    origin, fleet = build_fleet([pair[0]]), build_fleet([pair[1]])
    cached = may_be_cached(time_ns, fleet, origin)[:, 0]
    if np.count_nonzero(~cached) >= FEWEST_ROWS:
        yield block(rule, kind, pair, log_ratio[~cached])
    if np.count_nonzero(cached) >= FEWEST_ROWS:
        yield block(rule + CACHED, kind, pair, log_ratio[cached], least=float(cache_gap(fleet, origin)[0]))


def moved(time_ns: Floats, factor: Floats | float) -> Floats:
    """The rule of analyzer/prediction/predict.py."""
    fixed = np.minimum(time_ns, KERNEL_OVERHEAD_NS)
    return np.asarray(fixed + (time_ns - fixed) * factor)


def table_blocks(data: Path) -> Iterator[Block]:
    """Products, convolutions, attention and vector ops by roofline, peak rate and bandwidth."""
    for samples in load_tables(data):
        if not samples.table.startswith("ops/"):
            continue
        keys = problem_keys(samples)
        least_ns = _least_ns(samples)
        by_gpu = [
            np.flatnonzero((samples.gpu == column) & (samples.measured_ns > least_ns))
            for column in range(len(samples.gpus))
        ]
        for here, there in permutations(range(len(samples.gpus)), 2):
            _, left, right = np.intersect1d(keys[by_gpu[here]], keys[by_gpu[there]], return_indices=True)
            pair = (samples.gpus[here], samples.gpus[there])
            yield from _pair_blocks(samples, pair, by_gpu[here][left], by_gpu[there][right])


def _least_ns(samples: Samples[Any]) -> Floats:
    is_event = np.full(len(samples.gpu), samples.model in EVENT_TIMED)
    if samples.model == "vector":
        is_event = samples.dtype == "fp32"
    return np.where(is_event, EVENT_FLOOR_NS, FLOOR_NS)


def _pair_blocks(
    samples: Samples[Any], pair: tuple[Gpu, Gpu], source: npt.NDArray[np.int64], target: npt.NDArray[np.int64]
) -> Iterator[Block]:
    work = least_work(samples)
    if work is None or not len(source):
        return
    origin, fleet = build_fleet([pair[0]]), build_fleet([pair[1]])
    shared = take_work(work, source)
    bounds, here = bound_ops(shared, fleet), bound_ops(shared, origin)
    time_ns, measured_ns = samples.measured_ns[source], samples.measured_ns[target]
    by_roofline = moved(time_ns, (bounds.roofline_ns / here.roofline_ns)[:, 0])
    obeys = time_ns >= here.lower_ns[:, 0]
    predicted = {
        "bound": np.maximum(by_roofline, np.where(obeys, bounds.lower_ns[:, 0], 0.0)),
        "compute": moved(time_ns, (rate_matrix(shared.rate, origin) / rate_matrix(shared.rate, fleet))[:, 0]),
        "guess": moved(time_ns, origin.flops_per_s[Rate.FP32] / fleet.flops_per_s[Rate.FP32]),
        "bandwidth": moved(time_ns, origin.bandwidth_bytes_per_s / fleet.bandwidth_bytes_per_s),
    }
    names = samples.family[source].astype(str)
    dtypes = samples.dtype[source].astype(str)
    for name in np.unique(names).tolist():
        for rule in _rules(samples.model, name):
            chosen = names == name
            if samples.model == "matmul_quantized":
                chosen &= dtypes == "fp8"
            log_ratio = np.log(predicted["bandwidth" if rule == "wave" else rule] / measured_ns)[chosen]
            kind = f"{samples.model} {name}"
            if samples.model == "vector":
                yield from memory_blocks(rule, kind, pair, time_ns[chosen], log_ratio)
            elif len(log_ratio) >= FEWEST_ROWS:
                yield block(rule, kind, pair, log_ratio, family=_family(samples.model))


def _rules(model: str, family: str) -> tuple[str, ...]:
    """Launches of the serving frameworks' vector kernels are not in the tables: many waves, which is the bandwidth."""
    if model != "vector":
        return "bound", "compute", "guess"
    many = () if "(" not in family else ("wave",)
    is_move = family.split(" ", maxsplit=1)[0] in ("elementwise", "add", "add3", "embedding")
    return (*many, "bandwidth") if is_move else many


def _family(model: str) -> Family:
    named = {"convolution": Family.CONVOLUTION, "attention_prefill": Family.ATTENTION}
    return named.get(model, Family.ATTENTION if "attention" in model else Family.MATMUL)


def wave_blocks(data: Path) -> Iterator[Block]:
    """PyTorch's kernels with their launches, intensity unknown as in most recordings: gamma = 1."""
    rows, catalog = load_rows(data), load_catalog()
    for kind in ("elementwise", "layernorm", "softmax"):
        by_gpu = {
            gpu: {tuple(row[name] for name in ("op", "rows", "cols", "dtype")): row for row in found}
            for (name, gpu), found in rows.items()
            if name == kind
        }
        for here, there in permutations(sorted(by_gpu), 2):
            shared = [(by_gpu[here][key], by_gpu[there][key]) for key in by_gpu[here].keys() & by_gpu[there].keys()]
            floor_us = EVENT_FLOOR_NS / 1e3
            shared = [pair for pair in shared if min(pair[0]["latency_us"], pair[1]["latency_us"]) > floor_us]
            if len(shared) < FEWEST_ROWS:
                continue
            pair = (find_gpu(catalog, here), find_gpu(catalog, there))
            found = pair_up(kind, shared, build_fleet([pair[0]]), build_fleet([pair[1]]))
            factor = _wave_factor(found.source, found.target, found.block_count, found.block_threads)
            log_ratio = np.log(moved(found.source_us * 1e3, factor) / (found.target_us * 1e3))
            yield from memory_blocks("wave", kind, pair, found.source_us * 1e3, log_ratio)


def _wave_factor(source: Fleet, target: Fleet, blocks: Floats, threads: Floats) -> Floats:
    bandwidth, clock = (
        source.bandwidth_bytes_per_s / target.bandwidth_bytes_per_s,
        source.clock_hz / target.clock_hz,
    )
    gamma, missing = np.ones(len(blocks)), np.full(len(blocks), -1)
    if source.warp_size != target.warp_size:
        return large_wave_factor(gamma, bandwidth, clock, source.sm_count / target.sm_count)
    waves = [
        resident_blocks(threads.astype(np.int64), missing, missing, fleet.gpus)[:, 0] * fleet.sm_count
        for fleet in (source, target)
    ]
    return exact_wave_factor(gamma, bandwidth, clock, blocks, *waves)


def link_blocks(data: Path) -> Iterator[Block]:
    """Collectives within a node, medians over library versions; ranks start together there, nobody waits."""
    times: dict[str, dict[tuple[object, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in parquet.read_table(data / "ops" / "collective.parquet").to_pylist():
        if not row["suspect"] and row["n_gpus"] <= row["devices_per_node"]:
            key = tuple(row[name] for name in ("collective", "n_gpus", "bytes", "dtype", "impl"))
            times[row["gpu"]][key].append(row["latency_us"] * 1e3)
    catalog = load_catalog()
    for here, there in permutations(sorted(times), 2):
        pair = (find_gpu(catalog, here), find_gpu(catalog, there))
        keys = sorted(times[here].keys() & times[there].keys(), key=str)
        for collective in sorted({str(key[0]) for key in keys}):
            shared = [key for key in keys if key[0] == collective]
            if min(gpu.link_bandwidth_bytes_per_s for gpu in pair) and len(shared) >= FEWEST_ROWS // 2:
                source, target = (np.array([np.median(times[gpu][key]) for key in shared]) for gpu in (here, there))
                factor = pair[0].link_bandwidth_bytes_per_s / pair[1].link_bandwidth_bytes_per_s
                log_ratio = np.log(moved(source, factor) / target)
                yield block("link", collective, pair, log_ratio, least=abs(float(np.log(factor))))


def pcie_blocks(data: Path) -> Iterator[Block]:
    """Copies of a megabyte and more in recordings: bytes per second over the datasheet's, between recordings."""
    found: dict[str, tuple[Gpu, Floats]] = {}
    for path in sorted((data / "traces").glob("*.json*")):
        trace = load_trace(path)
        device = trace.devices[0] if trace.devices else None
        gpu = device and match_device(
            load_catalog(), device.name, sm_count=device.sm_count, memory_bytes=device.memory_bytes
        )
        names = [trace.strings[name] for name in trace.kernels.name.tolist()]
        crossing = np.array(["HtoD" in name or "DtoH" in name for name in names], dtype=bool)
        rows = np.flatnonzero(crossing & (trace.kernels.size_bytes >= LARGE_COPY_BYTES))
        if gpu and len(rows):
            speed = trace.kernels.size_bytes[rows] / trace.kernels.duration_ns[rows] * 1e9
            found[path.name.split(".")[0]] = (gpu, speed / gpu.pcie_bandwidth_bytes_per_s)
    for here, there in permutations(found, 2):
        log_ratio = np.log(found[here][1][:, None] / found[there][1][None, :]).ravel()
        yield replace(block("pcie", "copies", (found[here][0], found[there][0]), log_ratio), chips=(here, there))


def residuals(blocks: Sequence[Block]) -> Floats:
    return np.concatenate([item.scaled for item in blocks])


def pooled(blocks: Sequence[Block]) -> float:
    return float(np.quantile(residuals(blocks), COVERAGE))


def chips_of(blocks: Sequence[Block]) -> list[str]:
    return sorted({chip for item in blocks for chip in item.chips})


def without(blocks: Sequence[Block], chip: str) -> list[Block]:
    return [item for item in blocks if chip not in item.chips]


def with_chip(blocks: Sequence[Block], chip: str) -> list[Block]:
    return [item for item in blocks if chip in item.chips]


def widened(blocks: Sequence[Block]) -> float:
    """The quantile, times the least factor under which the others' quantile holds 90 % of each chip's, chips alike.

    To the power of (J - 1) / J for J chips, as mlp_weights/train/calibrate.py does; never under 1.
    """
    ratios = []
    for chip in chips_of(blocks):
        others, mine = without(blocks, chip), with_chip(blocks, chip)
        if others:
            ratios.append(np.quantile(residuals(mine), POINTS) / pooled(others))
    if not ratios:
        return pooled(blocks)
    needed = float(np.quantile(np.concatenate(ratios), COVERAGE) ** ((len(ratios) - 1) / len(ratios)))
    return pooled(blocks) * max(needed, 1.0)


def held(blocks: Sequence[Block], width: float) -> float:
    """Share of the blocks' residuals within a width."""
    return float(np.mean([np.mean(item.scaled <= width) for item in blocks]))


def left_out(blocks: Sequence[Block]) -> list[tuple[float, str]]:
    """Share held on each chip by widths that never saw it."""
    parts = [(chip, without(blocks, chip), with_chip(blocks, chip)) for chip in chips_of(blocks)]
    return [(held(mine, widened(others)), chip) for chip, others, mine in parts if others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--by-pair", action="store_true", help="print every block as well")
    options = parser.parse_args()
    readers: tuple[Callable[[Path], Iterator[Block]], ...] = (table_blocks, wave_blocks, link_blocks, pcie_blocks)
    groups: dict[tuple[str, str], list[Block]] = defaultdict(list)
    for reader in readers:
        for item in reader(options.data_dir):
            groups[item.rule, item.family.value if item.family else ""].append(item)
    leaps = "  ".join(f"{low:g}-{high:g}".center(7) for low, high in LEAPS)
    numbers = f"{'points':>8} {'blocks':>6} {'chips':>5} {'pooled':>7} {'width':>6}  {'left out':>8}"
    print(f"{'rule':16} {'family':12} {numbers}  {'worst chip':26} {'in use':>7}  {leaps}")
    for (rule, family), blocks in sorted(groups.items()):
        print_group(rule, family, blocks)
        for item in sorted(blocks, key=lambda item: item.apart) if options.by_pair else ():
            print(f"    {item.apart:4.1f} {np.quantile(item.residual, COVERAGE):6.2f} {item.count:7}  {item.kind}: "
                  f"{item.source} → {item.target}")  # fmt: skip
    every = [item for blocks in groups.values() for item in blocks if item.chips[0] != item.chips[1]]
    for names in (("wave",), ("compute",), ("bound",), ("guess",), ("wave", "compute")):
        print_shared(" and ".join(names), [item for item in every if item.rule in names])


def print_shared(title: str, blocks: Sequence[Block]) -> None:
    """Print how alike the errors of two table families are between the same GPUs: 1 where one follows the other."""
    by_kind: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for item in blocks:
        by_kind[item.kind][item.source, item.target] = item.bias
    found = []
    for here, there in combinations(by_kind.values(), 2):
        pairs = sorted(here.keys() & there.keys())
        left, right = (np.array([biases[pair] for pair in pairs]) for biases in (here, there))
        if len(pairs) >= FEWEST_PAIRS:
            found.append(float(left @ right / np.sqrt((left @ left) * (right @ right))))
    print(
        f"{title}: {len(found)} pairs of families, correlation {np.median(found):.2f} (median), {min(found):.2f} least"
    )


def print_group(rule: str, family: str, blocks: Sequence[Block]) -> None:
    fitted = [item for item in blocks if rule in BY_HOST_OR_NODE or item.chips[0] != item.chips[1]]
    shares = [] if rule.endswith(CACHED) else left_out(fitted)
    mean = f"{np.mean([share for share, _ in shares]):8.1%}" if shares else " " * 8
    worst = f"{min(shares)[0]:7.1%} {min(shares)[1][:18]:18}" if shares else " " * 26
    in_use = width_of(rule.removesuffix(CACHED), blocks[0].family)
    spread = []
    for low, high in LEAPS:
        here = [item for item in blocks if low <= item.apart < high]
        spread.append(
            f"{np.mean([np.mean(item.residual <= item.in_use) for item in here]):7.1%}" if here else "      –"
        )
    print(
        f"{rule:16} {family:12} {sum(item.count for item in fitted):8} {len(fitted):6} {len(chips_of(fitted)):5} "
        f"{pooled(fitted):7.2f} {widened(fitted):6.2f}  {mean}  {worst} {in_use:7.2f}  {'  '.join(spread)}"
    )


if __name__ == "__main__":
    main()
