"""How far off the rules without an op model are, on measured kernels: one block per table family and pair of GPUs.

Every rule of analyzer/prediction/predict.py that moves a measured time by a ratio predicts the kernels of ops/*.parquet
between every two GPUs that have them (`pcie`: the efficiencies of copies in traces/). GPUs of one chip are no pair for
a fit, but for `link`, where boards and nodes differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...analyzer.measurements.readers import load_tables
from ...analyzer.measurements.samples import Samples, pick, read_table, records_of
from ...analyzer.models.frame.intervals import separations
from ...analyzer.prediction.bounds import bound_ops, kernel_overhead_ns, rate_matrix
from ...analyzer.prediction.ratio_widths import (
    by_host_or_node,
    cache_gap,
    growth,
    may_be_cached,
    memory_rates,
    width_of,
)
from ...analyzer.prediction.ratios import RULES
from ...analyzer.prediction.wave import exact_wave_factor, large_wave_factor, reached_boundedness
from ...analyzer.questions.score.rows import least_work, problem_keys, take_work
from ...analyzer.work import Family
from ...arrays import Floats, Rows
from ...formats.files.open import load_trace
from ...records import dataclass, replace
from ...specs.catalog import load_catalog
from ...specs.fleet import Fleet, build_fleet
from ...specs.gpu import Gpu, Rate, chip_of
from ...specs.match import find_gpu, match_device
from ...specs.occupancy import resident_blocks

POINTS: Final = np.linspace(0.0, 1.0, 1001)[:-1] + 0.0005
"""A block's residuals are kept as these quantiles, so that blocks of any length count alike."""
FEWEST_ROWS: Final = 30
EVENT_FLOOR_NS: Final = 50e3
"""Single launches between events: shorter ones measure the launch. Of NeuSight's tables (its README)."""
FLOOR_NS: Final = 10e3
"""Times to the whole microsecond, and quantization of activations inside: shorter ones say little of the kernel."""
EVENT_TIMED: Final = ("matmul_simt", "convolution")
LARGE_COPY_BYTES: Final = 1e6
CACHED: Final = " cached"
"""Added to the name of a rule whose kernels' bytes may lie in a cache."""
BY_HOST_OR_NODE: Final = frozenset(rule.name for rule in RULES if rule.half_width is by_host_or_node)
"""Rules whose errors depend on hosts, boards and nodes, not on the chips."""
COLLECTIVES: Final = "ops/collective.parquet"
TRACES: Final = "traces"


class GpuPair(NamedTuple):
    """Name the GPU that kernels were measured on and the one that they are moved to."""

    source: Gpu
    target: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class PairErrors:
    """Hold how far off a rule is for one table family between an ordered pair of GPUs."""

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
        """Return what the width grows by with the distance."""
        return 1.0 if self.rule in BY_HOST_OR_NODE else float(growth(np.array(self.apart)))

    @property
    def scaled(self) -> Floats:
        """Return the residuals at the reference distance."""
        return self.residual / self.growth

    @property
    def in_use(self) -> float:
        """Return the half width that analyzer/prediction/ratio_widths.py gives."""
        width = width_of(self.rule.removesuffix(CACHED), self.family) * self.growth
        return float(np.hypot(width, self.least)) if self.rule.endswith(CACHED) else max(width, self.least)


def block(
    rule: str, kind: str, pair: GpuPair, log_ratio: Floats, *, family: Family | None = None, least: float = 0.0
) -> PairErrors:
    """Return the block of a pair of GPUs from ln(predicted / measured) of its kernels."""
    source, target = pair
    return PairErrors(
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


def memory_blocks(rule: str, kind: str, pair: GpuPair, time_ns: Floats, log_ratio: Floats) -> Iterator[PairErrors]:
    """Yield the block of what comes from memory, and that of what may lie in a cache."""
    origin, fleet = build_fleet([pair.source]), build_fleet([pair.target])
    cached = may_be_cached(time_ns, fleet, origin)[:, 0]
    if np.count_nonzero(~cached) >= FEWEST_ROWS:
        yield block(rule, kind, pair, log_ratio[~cached])
    if np.count_nonzero(cached) >= FEWEST_ROWS:
        yield block(rule + CACHED, kind, pair, log_ratio[cached], least=float(cache_gap(fleet, origin)[0]))


def moved(time_ns: Floats, factor: Floats | float, origin: Fleet, fleet: Fleet) -> Floats:
    """Return times moved by a factor, as analyzer/prediction/predict.py moves them."""
    here, there = kernel_overhead_ns(origin), kernel_overhead_ns(fleet)
    fixed = np.minimum(time_ns, here)
    return np.asarray(fixed / here * there + (time_ns - fixed) * factor)


def table_blocks(data: Path) -> Iterator[PairErrors]:
    """Yield products, convolutions, attention and vector ops by roofline, peak rate and bandwidth."""
    for samples in load_tables(data):
        if not samples.table.startswith("ops/") or samples.model == "collective":  # links have blocks of their own
            continue
        keys = problem_keys(samples)
        is_event = np.full(len(samples.gpu), samples.model in EVENT_TIMED)
        if samples.model == "vector":
            is_event = samples.dtype == "fp32"
        is_used = samples.measured_ns > np.where(is_event, EVENT_FLOOR_NS, FLOOR_NS)
        by_gpu = [np.flatnonzero((samples.gpu == column) & is_used) for column in range(len(samples.gpus))]
        for here, there in permutations(range(len(samples.gpus)), 2):
            _, left, right = np.intersect1d(keys[by_gpu[here]], keys[by_gpu[there]], return_indices=True)
            pair = GpuPair(samples.gpus[here], samples.gpus[there])
            yield from _pair_blocks(samples, pair, by_gpu[here][left], by_gpu[there][right])


def _pair_blocks(samples: Samples[Any], pair: GpuPair, source: Rows, target: Rows) -> Iterator[PairErrors]:
    work = least_work(samples)
    if work is None or not len(source):
        return
    origin, fleet = build_fleet([pair.source]), build_fleet([pair.target])
    shared = take_work(work, source)
    bounds, here = bound_ops(shared, fleet), bound_ops(shared, origin)
    time_ns, measured_ns = samples.measured_ns[source], samples.measured_ns[target]
    by_roofline = moved(time_ns, (bounds.roofline_ns / here.roofline_ns)[:, 0], origin, fleet)
    obeys = time_ns >= here.lower_ns[:, 0]
    predicted = {
        "bound": np.maximum(by_roofline, np.where(obeys, bounds.lower_ns[:, 0], 0.0)),
        "compute": moved(
            time_ns, (rate_matrix(shared.rate, origin) / rate_matrix(shared.rate, fleet))[:, 0], origin, fleet
        ),
        "guess": moved(time_ns, origin.flops_per_s[Rate.FP32] / fleet.flops_per_s[Rate.FP32], origin, fleet),
        "bandwidth": moved(time_ns, memory_rates(origin).dram / memory_rates(fleet).dram, origin, fleet),
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
    """Return the rules that a table family tells of.

    Launches of the serving frameworks' vector kernels are not in the tables: many waves, which is the bandwidth.
    """
    if model != "vector":
        return "bound", "compute", "guess"
    many = () if "(" not in family else ("wave",)
    is_move = family.split(" ", maxsplit=1)[0] in ("elementwise", "add", "add3", "embedding")
    return (*many, "bandwidth") if is_move else many


def _family(model: str) -> Family:
    named = {"convolution": Family.CONVOLUTION, "recurrent": Family.RECURRENT}
    return named.get(model, Family.ATTENTION if "attention" in model else Family.MATMUL)


def wave_blocks(data: Path) -> Iterator[PairErrors]:
    """Yield PyTorch's kernels with their launches and bytes."""
    by_kind: dict[str, dict[str, dict[tuple[Any, ...], Mapping[str, Any]]]] = {name: {} for name in FAMILIES}
    for row in records_of(read_table(data / TABLE)):
        kind = "elementwise" if row["op"] in _ELEMENTWISE else row["op"]
        if kind in by_kind and row["kernel"] and row["grid_x"] > 0 and not row["suspect"]:
            key = tuple(row[name] for name in ("op", "rows", "cols", "dtype"))
            by_kind[kind].setdefault(row["gpu"], {})[key] = row
    for kind, by_gpu in by_kind.items():
        for here, there in permutations(sorted(by_gpu), 2):
            both = [(by_gpu[here][key], by_gpu[there][key]) for key in by_gpu[here].keys() & by_gpu[there].keys()]
            long = [rows for rows in both if min(row["latency_us"] for row in rows) * 1e3 > EVENT_FLOOR_NS]
            if len(long) < FEWEST_ROWS:
                continue
            pair = GpuPair(find_gpu(load_catalog(), here), find_gpu(load_catalog(), there))
            origin, fleet = build_fleet([pair.source]), build_fleet([pair.target])
            time_ns, measured_ns = np.array([[row["latency_us"] * 1e3 for row in rows] for rows in long]).T
            factor = _wave_factor([rows[0] for rows in long], time_ns, origin, fleet)
            log_ratio = np.log(moved(time_ns, factor, origin, fleet) / measured_ns)
            yield from memory_blocks("wave", kind, pair, time_ns, log_ratio)


def _wave_factor(rows: Sequence[Mapping[str, Any]], time_ns: Floats, source: Fleet, target: Fleet) -> Floats:
    """Return wave scaling's factor; no row tells of registers and shared memory."""
    rates, clock = [memory_rates(fleet).dram for fleet in (source, target)], source.clock_hz / target.clock_hz
    moved_bytes = np.array([row["bytes_read"] + row["bytes_written"] for row in rows], dtype=np.float64)
    gamma = reached_boundedness(moved_bytes, time_ns - kernel_overhead_ns(source), rates[0])
    bandwidth, missing = rates[0] / rates[1], np.full(len(gamma), -1)
    if source.warp_size != target.warp_size:
        return large_wave_factor(gamma, bandwidth, clock, source.sm_count / target.sm_count)
    blocks, threads = (
        np.array([prod(row[f"{name}_{axis}"] for axis in "xyz") for row in rows]) for name in ("grid", "block")
    )
    waves = [
        resident_blocks(threads.astype(np.int64), missing, missing, fleet.gpus)[:, 0] * fleet.sm_count
        for fleet in (source, target)
    ]
    return exact_wave_factor(gamma, bandwidth, clock, blocks.astype(np.float64), *waves)


def link_blocks(data: Path) -> Iterator[PairErrors]:
    """Yield collectives within a node, medians over library versions; ranks start together there, nobody waits."""
    times: dict[str, dict[tuple[object, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    table = read_table(data / COLLECTIVES)
    table = pick(table, ~table["suspect"].astype(bool) & (table["n_gpus"] <= table["devices_per_node"]))
    keys = zip(*(table[name].tolist() for name in ("collective", "n_gpus", "bytes", "dtype", "impl")), strict=True)
    for gpu, key, time_us in zip(table["gpu"], keys, table["latency_us"].tolist(), strict=True):
        times[gpu][key].append(time_us * 1e3)
    catalog = load_catalog()
    for here, there in permutations(sorted(times), 2):
        pair = GpuPair(find_gpu(catalog, here), find_gpu(catalog, there))
        both = sorted(times[here].keys() & times[there].keys(), key=str)
        for collective in sorted({str(key[0]) for key in both}):
            shared = [key for key in both if key[0] == collective]
            if min(gpu.link_bandwidth_bytes_per_s for gpu in pair) and len(shared) >= FEWEST_ROWS // 2:
                source, target = (np.array([np.median(times[gpu][key]) for key in shared]) for gpu in (here, there))
                factor = pair.source.link_bandwidth_bytes_per_s / pair.target.link_bandwidth_bytes_per_s
                predicted_ns = moved(source, factor, build_fleet([pair.source]), build_fleet([pair.target]))
                log_ratio = np.log(predicted_ns / target)
                yield block("link", collective, pair, log_ratio, least=abs(float(np.log(factor))))


def trace_paths(data: Path) -> list[Path]:
    """Return the recordings of a data directory, sorted."""
    return sorted((data / TRACES).glob("*.json*"))


def pcie_blocks(data: Path) -> Iterator[PairErrors]:
    """Yield copies of a megabyte and more in recordings: bytes per second over the datasheet's, between recordings."""
    found: dict[str, tuple[Gpu, Floats]] = {}
    for path in trace_paths(data):
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
        yield replace(block("pcie", "copies", GpuPair(found[here][0], found[there][0]), log_ratio), chips=(here, there))


TABLE: Final = "ops/vector.parquet"
FAMILIES: Final = ("elementwise", "layernorm", "softmax")
_ELEMENTWISE: Final = frozenset(
    {"add", "mul", "div", "pow", "add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "relu", "gelu", "tanh"}
)
