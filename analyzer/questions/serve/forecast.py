"""What requests meet on one GPU type and plan: latencies, rates, what limits them, each within a 90 % interval."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, hypot, log
from typing import Final

import numpy as np

from ....arrays import Floats
from ....records import dataclass, replace
from ....specs.generations import why_untested
from ....specs.gpu import Gpu, Rate, is_hbm
from ...memory.fit import UNREPORTED_RATIO
from .engines import SGLANG, TENSORRT_LLM, Engine, weight_bytes
from .ops import PARTS, ServePlan, StepPart
from .schedule import RequestLoad, Schedule, Served, serve_load
from .sizes import ModelSizes
from .step import StepTables

MEASURES: Final = ("mean", "p50", "p90", "p99")
PERCENTILES: Final = (50, 90, 99)
FIRST_WIDTH: Final = 0.63
"""90 % half-width, natural log, of the first token beside its steps: the client, how often the engine looks for
requests, the queue. With a step's own it is a factor of 2, which held 90 % of rows that the study had not looked at."""
FOREIGN_RATIO: Final = 1.6
"""On the width of a step where no engine was measured on the kind of GPU: AMD's, consumer cards."""
STAGES_WIDTH: Final = 0.25
"""The same of stages: how well batches overlap. Of 2024's TensorRT-LLM they did not (LLM-Inference-Bench)."""
FIRST: Final = "ttft"
PER_TOKEN: Final = "tpot"  # noqa: S105 (no password)
END_TO_END: Final = "e2e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Hold a latency's mean and percentiles over requests, ns, and the ends of the mean's interval as ratios."""

    values: Mapping[str, float]
    low_ratio: float
    high_ratio: float

    def within(self, measure: str) -> tuple[float, float, float]:
        """Return a value with the ends of its interval."""
        found = self.values[measure]
        return found, found * self.low_ratio, found * self.high_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """Hold what requests meet; rates are of one instance."""

    latencies: Mapping[str, Latency]
    """TTFT, TPOT, end to end, by `FIRST`, `PER_TOKEN`, `END_TO_END`; TTFT with the client's share."""
    requests_per_s: float
    output_tokens_per_s: float
    low_ratio: float
    high_ratio: float
    """Ends of the rates' interval."""
    step_half_width: float
    """90 %, natural log."""
    sequences: float
    """That decode at a time, in the mean."""
    parts_ns: Mapping[StepPart, float]
    """Of a mean decode step."""
    engine_ns: float
    """Of it, what the engine's host adds."""
    busy_share: float
    prompt_share: float
    """Of the time, steps with prompts."""
    full_share: float
    """Of the time, requests waiting for room in the cache."""
    preempted: int
    limit: str
    joules_per_token: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of all boards of an instance, for each token that is written, and the ends of its interval."""
    board_w: float = 0.0
    """That each draws in the mean."""


def forecast_load(
    tables: StepTables,
    column: int,
    engine: Engine,
    capacity: Capacity,
    load: RequestLoad,
    *,
    skips: int = 0,
    known: dict[tuple[object, ...], Schedule] | None = None,
) -> LoadFigures:
    """Run a load on a GPU of the tables; the first `skips` requests, which fill the engine, do not count.

    Boards take what steps do, within their limit, and what idles all the time. Requests that come at a rate go on
    coming: the last ones' end, when few are left, is no time of its own.
    """
    clock, joules = (make(column, engine) for make in (tables.clock, tables.joule_clock))
    served = serve_load(engine, clock, capacity.tokens, load, joules=joules, known=known)
    weights = (np.arange(len(load.prompts)) >= skips).astype(np.float64)
    found = figures_of(tables, column, engine, served, weights)
    span = max(served.busy_ns / _engine_share(engine, served), float(served.arrival_ns.max(initial=0.0)), 1.0)
    power = replace(tables.draws[column], work_j=served.work_j)
    low, high = power.interval_j(span, span * found.low_ratio, span * found.high_ratio)
    joule = power.joule(span)
    each = tables.plan.tp / max(float(served.load.outputs.sum()), 1.0)
    return replace(found, joules_per_token=(joule * each, low * each, high * each), board_w=joule / span * 1e9)


def _engine_share(engine: Engine, served: Served) -> float:
    """Return which part of its time a request is in the engine, where users wait for theirs before they ask anew."""
    inside_ns = float((served.last_ns - served.arrival_ns).mean())
    beside_ns = engine.first_ns + engine.first_per_token_ns * float(served.load.prompts.mean())
    return inside_ns / (inside_ns + beside_ns) if served.load.concurrency else 1.0


def figures_of(tables: StepTables, column: int, engine: Engine, served: Served, weights: Floats) -> LoadFigures:
    """Return the figures of what a simulation served; `weights`: how often each request counts in the means, [r]."""
    replicas = tables.plan.batches
    load = served.load
    counted = weights > 0
    busy = max(served.busy_ns, 1.0)
    sequences = served.sequence_ns / busy
    context = served.context_ns / max(served.sequence_ns, 1.0)
    parts, widths = tables.parts(column, max(sequences, 1.0), context, engine)
    width = step_half_width(tables, column, engine, parts, widths)
    waited = served.first_ns - served.arrival_ns
    added, inside = engine.first_ns + engine.first_per_token_ns * load.prompts, _engine_share(engine, served)
    tokens = np.maximum(load.outputs - 1, 1)
    per_token = (served.last_ns - served.first_ns) / tokens
    has_more = counted & (load.outputs > 1)
    first_width = hypot(width, FIRST_WIDTH)
    closed = load.concurrency > 0
    span = float(served.last_ns[counted].max() - (served.last_ns[~counted].max(initial=0.0) if closed else 0.0))
    rate = replicas * float(counted.sum()) / max(span, 1.0) * 1e9 * inside
    ends = (exp(-width), exp(width))
    spread = ends if closed else (1.0, 1.0)
    latencies = {
        FIRST: _latency(waited + added, weights, exp(-first_width), exp(first_width)),
        PER_TOKEN: _latency(per_token, (has_more if has_more.any() else counted) * weights, *ends),
        END_TO_END: _latency(served.last_ns - served.arrival_ns + added, weights, *ends),
    }
    kernels = dict(zip(PARTS, parts.tolist(), strict=True))
    host_ns = engine.step_ns + engine.sequence_ns * sequences
    span_all = max(served.end_ns, 1.0)
    found = LoadFigures(
        latencies=latencies,
        requests_per_s=rate,
        output_tokens_per_s=rate * float(load.outputs[counted].mean()),
        low_ratio=spread[0],
        high_ratio=spread[1],
        step_half_width=width,
        sequences=sequences,
        parts_ns=kernels,
        engine_ns=host_ns,
        busy_share=served.busy_ns / span_all * inside,
        prompt_share=served.prompt_ns / span_all,
        full_share=served.full_ns / span_all,
        preempted=served.preempted,
        limit="",
    )
    return replace(found, limit=limit_of(tables, column, found))


def _latency(values: Floats, weights: Floats, low: float, high: float) -> Latency:
    ordered = np.sort(values[weights > 0])
    last = len(ordered) - 1
    found = np.interp(np.array(PERCENTILES) / 100.0 * last, np.arange(last + 1), ordered).tolist()
    mean = float(np.average(values, weights=weights))
    return Latency(values=dict(zip(MEASURES, (mean, *found), strict=True)), low_ratio=low, high_ratio=high)


def step_half_width(tables: StepTables, column: int, engine: Engine, parts: Floats, widths: Floats) -> float:
    """Return the 90 % half-width of a step's time, natural log.

    Parts' errors are independent of each other and of the engine's; where no engine was measured it is wider. Which
    kernel runs quantised experts is in the width of their own model.
    """
    gpu = tables.gpus[column]
    kernels = float(np.sqrt(np.sum((parts * widths) ** 2)) / max(float(parts.sum()), 1.0))
    stages = STAGES_WIDTH if tables.plan.pp > 1 else 0.0
    ratios = (engine.prefill_ratio, engine.decode_ratio)  # How much of them is that GPU's own is not known.
    moved = 0.0 if engine.measured_on == gpu.name else max(abs(log(ratio)) for ratio in ratios)
    found = float(np.sqrt(kernels**2 + engine.spread**2 + stages**2 + moved**2))
    return found * (FOREIGN_RATIO if is_foreign(gpu) else 1.0)


def is_foreign(gpu: Gpu) -> bool:
    """Say whether no engine was measured on this kind of GPU: only NVIDIA's with HBM were.

    >>> is_foreign(h100)
    False
    """
    is_known = gpu.vendor == "NVIDIA" and is_hbm(gpu.memory_type)
    return not is_known or why_untested(gpu) is not None


def limit_of(tables: StepTables, column: int, found: LoadFigures) -> str:
    """Return what holds a load back, in words: the largest share of its time."""
    if found.full_share > 0.2:
        return "room in the cache"
    gpu = tables.gpus[column]
    kernels = sum(found.parts_ns.values())
    decode = 1.0 - found.prompt_share
    shares = {
        "attention reading the cache": decode * found.parts_ns[StepPart.ATTENTION],
        "links": decode * found.parts_ns[StepPart.LINKS],
        "small kernels": decode * found.parts_ns[StepPart.SMALL],
        "the engine's host": decode * found.engine_ns,
        _product_limit(tables, gpu, found): decode * found.parts_ns[StepPart.PRODUCTS],
    }
    total = kernels + found.engine_ns
    shares = {name: value / total for name, value in shares.items()}
    shares["prompts"] = found.prompt_share
    if found.busy_share < 0.5:
        return "requests: the GPU idles"
    return max(shares, key=lambda name: shares[name])


def _product_limit(tables: StepTables, gpu: Gpu, found: LoadFigures) -> str:
    """Say whether products wait for their weights or for arithmetic."""
    sizes, plan = tables.sizes, tables.plan
    peak = max(gpu.peak_flops_per_s.get(rate, 0.0) for rate in (Rate.MATRIX_BF16, Rate.MATRIX_FP16))
    active = sizes.parameters if not sizes.experts else sizes.parameters * sizes.top_k / sizes.experts
    arithmetic_s = 2.0 * active * found.sequences * plan.dp / plan.ranks / peak
    moved_s = sum(weight_bytes(sizes, tables.stack.precision)) / plan.ranks / gpu.memory_bandwidth_bytes_per_s
    return "arithmetic" if arithmetic_s > moved_s else "reading the weights"


CONTEXT_BYTES: Final = 0.55e9
"""What driver, kernels and graphs take on each GPU."""
ACTIVATION_COPIES: Final = 4.0
"""Widest activations of a whole budget that are alive at once, in 16 bits."""
LOGIT_BYTES: Final = 16.0
"""Per sequence and word: logits, and what sampling copies of them, four times 32 bits."""
REST_LOW, REST_HIGH = 0.6, 2.5
"""The rest beside weights and cache, between these times what is taken: declared. One measured value is known: vLLM
0.19 on an RTX 4090 (LLMServingSim's log) keeps 1.24 GB beside weights and cache."""

USUAL_SHARE: Final = 0.9
SGLANG_MIB, CHUNK_MIB, GRAPH_MIB, RANK_MIB = 512.0, 1.5, 2.0, 128.0
"""What SGLang leaves: at all, per token of a chunk, per sequence of its largest graph, per rank."""
LEAST_CHUNK: Final = 2048
SGLANG_REST: Final = (0.7, 1.1)
"""The same as above of what SGLang leaves: versions differ in the largest graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Hold what one replica's GPUs can cache; bytes are of one GPU."""

    memory_bytes: float
    """That the engine may use."""
    weight_bytes: float
    rest_bytes: float
    """Activations, logits, context."""
    token_bytes: float
    tokens: int
    """That are cached at most, of each of an instance's batches; negative where the weights alone do not fit."""
    low_tokens: int
    high_tokens: int


def capacity_of(
    sizes: ModelSizes, plan: ServePlan, precision: str, gpu: Gpu, engine: Engine, *, cache_bytes: float, context: float
) -> Capacity:
    """Return the cache that is left. `context`: tokens of a usual sequence, which layers with windows keep less of.

    tokens = (share * memory - weights - rest) / bytes of a token

    TensorRT-LLM's share is of what weights and the rest leave free (its `free_gpu_memory_fraction`). SGLang leaves
    what it expects chunks, graphs and ranks to take (`mem_fraction_static` in its server_args.py).
    """
    memory = float(gpu.reported_memory_bytes or gpu.memory_bytes * _reported_ratio(gpu))
    blocks, experts, tables = weight_bytes(sizes, precision)
    held = tables if sizes.is_tied or plan.pp == 1 else tables / 2.0  # The first stage embeds, the last writes.
    weights = blocks / (plan.tp * plan.pp) + experts / plan.gpus + held / plan.tp
    widest = max(2 * sizes.intermediate, 2 * sizes.shared_intermediate, sizes.top_k * sizes.hidden) / plan.tp
    activations = ACTIVATION_COPIES * engine.budget * (sizes.hidden + widest / 2.0)
    logits = engine.max_sequences * sizes.vocab * LOGIT_BYTES
    rest = CONTEXT_BYTES + activations + logits
    kept = 1.0 - sizes.window_share * (1.0 - min(1.0, sizes.window / max(context, 1.0))) if sizes.window else 1.0
    # Heads of keys are shared out among ranks as far as there are any; a latent is kept whole by each.
    split = 1.0 if sizes.is_latent else min(float(plan.tp), float(sizes.kv_heads))
    token = sizes.layers * sizes.cached_elements * cache_bytes * kept / split
    share = engine.memory_share or USUAL_SHARE
    limit, low, high = share * memory, REST_LOW, REST_HIGH
    if engine.name == TENSORRT_LLM:
        limit += (1.0 - share) * (weights + rest)
    elif engine.name == SGLANG and engine.memory_share is None:
        limit, (low, high) = memory, SGLANG_REST
        chunk, graphs = max(engine.budget, LEAST_CHUNK), engine.max_sequences
        rest = (SGLANG_MIB + CHUNK_MIB * chunk + GRAPH_MIB * graphs + RANK_MIB * plan.tp) * 2.0**20
    return Capacity(
        memory_bytes=limit,
        weight_bytes=weights,
        rest_bytes=rest,
        token_bytes=token,
        tokens=int((limit - weights - rest) // token),
        low_tokens=int((limit - weights - high * rest) // token),
        high_tokens=int((limit - weights - low * rest) // token),
    )


def _reported_ratio(gpu: Gpu) -> float:
    if gpu.vendor in ("AMD", "Intel"):
        return UNREPORTED_RATIO[gpu.vendor.casefold()].typical
    return UNREPORTED_RATIO["hbm" if is_hbm(gpu.memory_type) else "gddr with ecc" if gpu.has_ecc else "gddr"].typical
