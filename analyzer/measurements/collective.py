"""Collectives measured alone: `ops/collective.parquet` and `distributed/collectives.parquet` as their model's problems.

Three ways of timing: nccl-tests' mean over calls back to back, a CUDA graph's mean (frameworks' own all-reduce), and a
profiler's median of kernels, in whole microseconds, with whatever a rank waits for another (vidur, pipeweave): of these
only messages from `PROFILED_BYTES` are kept, since what is shorter is mostly wait (62 us of 2 kB beside 22 by
nccl-tests, on the same eight A100s). DeepEP's rows keep its default of 20 multiprocessors. Its dispatch for many tokens
is taken to send fp8, whatever the table says: it moves in half the time that its combine does. Rows of 0.5.6.post2
that stand under two GPUs with the same times to the last digit are counted once.

Clusters whose NICs nobody states (vidur's), and pairs of PCIe boards on bridges, are no usual node of their GPU: they
train nothing. Nor does what passes through a host, but for its latency: how fast it
forwards differs more between boxes than a few can tell (`host_efficiency`, `host_sharing` of the model).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...arrays import Mask
from ...specs.fleet import build_fleet
from ...specs.gpu import Catalog
from ..models.collective.problems import CollectiveProblems, least_work, problems_of_dims
from ..work.communication import CollectiveDims, CollectiveKind, Implementation
from .samples import MeasurementTable, Samples, keep_known, pick, read_table, samples_of, shape_share, take_samples

TABLE: Final = "ops/collective.parquet"
DISTRIBUTED: Final = "distributed/collectives.parquet"
TABLES: Final = (TABLE, DISTRIBUTED)
COLUMNS: Final = ("gpu", "collective", "n_gpus", "devices_per_node", "bytes", "dtype", "impl", "latency_us", "timing")
MORE_COLUMNS: Final = ("hidden", "top_k", "experts", "sms", "tokens")
KINDS: Final = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "send_recv": CollectiveKind.SEND_RECEIVE,
    "moe_dispatch": CollectiveKind.DISPATCH,
    "moe_combine": CollectiveKind.COMBINE,
}
ELEMENT_BYTES: Final = {
    **{"int8": 1.0, "fp8": 1.0, "fp16": 2.0, "bf16": 2.0, "fp32": 4.0, "double": 8.0},
    **dict.fromkeys(("", "None"), 2.0),
}
"""Rows that name no type are of 16-bit networks."""
PROFILED_BYTES: Final = 1e6
PROFILED_SHARE: Final = 0.15
"""Part of a profiler's rows that is kept: they lie a hundred times as dense as others."""
USUAL_MULTIPROCESSORS: Final = 20.0
USUAL_NODE: Final = 8
LOW_LATENCY: Final = "low-latency"
FRAMEWORKS: Final = "custom"
"""What `impl` begins with where a framework's own kernel reduced."""
HOST_BYTES: Final = 4096.0
"""Of a message, below which start and ranks take most of the time through a host."""
UNLIKE_NODES: Final = ("vidur/a100_pairwise_nvlink", "vidur/h100_pairwise_nvlink", "odissei-benchmarks/nccl-tests")
"""Sources of which no machine is the usual one of its GPU."""
UNSTATED_NICS: Final = ("vidur/a100_dgx", "vidur/h100_dgx")
"""Sources whose machines are the usual ones, but whose NICs are not stated."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[CollectiveProblems]]:
    """Return what was measured on usual machines of their GPUs, a few rows per size where a profiler has hundreds."""
    found = []
    for name in TABLES:
        if (data / name).exists():
            table = _clean(read_table(data / name, may_lack=("dtype", "impl", *MORE_COLUMNS)))
            table, notes = keep_known(table, {"collective": KINDS, "gpu": None, "dtype": ELEMENT_BYTES}, catalog)
            samples = _samples(table, catalog)
            kept = take_samples(samples, np.flatnonzero(_is_usual(table) & ~_shares_host(samples)))
            found.append(replace(kept, notes=notes))
    return found


def _clean(table: MeasurementTable) -> MeasurementTable:
    """Return the rows that measure what a model predicts, each once."""
    for name in COLUMNS:
        _ = table[name]
    keep = np.ones(len(table["gpu"]), dtype=bool)
    if "suspect" in table:
        keep &= ~table["suspect"].astype(bool)
    if "sms" in table:
        sms = table["sms"].astype(np.float64)
        keep &= np.isnan(sms) | (sms == USUAL_MULTIPROCESSORS)
    keep &= ~_repeats(table)
    return pick(table, keep)


def _repeats(table: MeasurementTable) -> Mask:
    """Say which rows of experts' exchanges stand already under another GPU, with the same time to the last digit."""
    seen: dict[tuple[Any, ...], str] = {}
    names = [name for name in ("collective", "impl", "n_gpus", "bytes", "latency_us", "source") if name in table]
    names += [name for name in MORE_COLUMNS if name in table]
    is_exchange = np.char.startswith(table["collective"].astype(str), "moe_")
    result = np.zeros(len(is_exchange), dtype=bool)
    rows = np.flatnonzero(is_exchange)
    keys = zip(*(table[name][rows].tolist() for name in names), strict=True)
    for row, gpu, key in zip(
        rows.tolist(), table["gpu"][rows].tolist(), (tuple(map(str, key)) for key in keys), strict=True
    ):
        result[row] = seen.setdefault(key, gpu) != gpu
    return result


def _samples(table: MeasurementTable, catalog: Catalog | None) -> Samples[CollectiveProblems]:
    columns = [
        table[column].astype(str).tolist() if column in ("dtype", "impl") else table[column].tolist()
        for column in ("collective", "n_gpus", "devices_per_node", "bytes", "dtype", "impl")
    ]
    hidden, top_k, tokens = (
        table[column].astype(np.float64) if column in table else np.full(len(table["gpu"]), np.nan)
        for column in ("hidden", "top_k", "tokens")
    )
    rows = zip(*columns, (tokens * hidden).tolist(), top_k.tolist(), strict=True)
    problems = problems_of_dims([_dims(*row) for row in rows])
    family = [f"{KINDS[item].name.lower()} ({impl})" for item, impl in zip(columns[0], columns[5], strict=True)]
    sizes = (problems.kind, problems.message_bytes, problems.ranks, problems.run, problems.implementation)
    return replace(
        samples_of(
            table,
            "collective",
            problems,
            catalog,
            family=family,
            share=shape_share(*(np.asarray(column).astype(np.int64) for column in sizes)),
        ),
        work=least_work(problems),
    )


def _dims(
    collective: str, ranks: int, near: int, size: int, dtype: str, implementation: str, elements: float, top_k: float
) -> CollectiveDims:
    """Return what a row measured: `near` ranks per node; of an exchange, tokens times hidden `elements`."""
    kind, whose, message = KINDS[collective], Implementation.NCCL, float(size)
    if kind in (CollectiveKind.DISPATCH, CollectiveKind.COMBINE):
        is_few = LOW_LATENCY in implementation
        whose = Implementation.LOW_LATENCY if is_few else Implementation.NCCL
        copies = top_k if is_few else ranks * (1.0 - (1.0 - 1.0 / ranks) ** top_k)
        element = 1.0 if kind is CollectiveKind.DISPATCH and (dtype == "fp8" or not is_few) else 2.0
        message = elements * copies * element
    elif implementation.startswith(FRAMEWORKS):
        whose = Implementation.TENSORRT_LLM if "trtllm" in implementation.lower() else Implementation.FRAMEWORK
    return CollectiveDims(
        kind=kind,
        message_bytes=message,
        ranks=ranks,
        run=min(near, ranks),
        stride=USUAL_NODE if ranks > near else 1,
        element_bytes=ELEMENT_BYTES[dtype],
        implementation=whose,
    )


def _is_usual(table: MeasurementTable) -> Mask:
    """Say which rows are of usual machines, and thin out those of profilers."""
    source = table["source"].astype(str) if "source" in table else np.full(len(table["gpu"]), "")
    size = table["bytes"].astype(np.float64)
    crosses = table["n_gpus"].astype(np.int64) > table["devices_per_node"].astype(np.int64)
    keep = ~np.isin(source, UNLIKE_NODES) & ~(np.isin(source, UNSTATED_NICS) & crosses)
    profiled = np.asarray(np.char.find(table["timing"].astype(str), "profiler") >= 0)
    drawn = shape_share(table["bytes"].astype(np.int64), table["n_gpus"].astype(np.int64))
    return np.asarray(keep & ~(profiled & ((size < PROFILED_BYTES) | (drawn > PROFILED_SHARE))))


def _shares_host(samples: Samples[CollectiveProblems]) -> Mask:
    """Say which rows are of ranks that only the host joins, and long enough to tell of its rate."""
    p = samples.problems
    is_hosted = (build_fleet(samples.gpus).fabric.domain_gpu_count <= 1.0)[samples.gpu]
    return np.asarray(is_hosted & (p.message_bytes >= HOST_BYTES))
