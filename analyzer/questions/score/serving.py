"""Measured serving beside what `serve` says: `serving/points.csv`, and logs of requests, `serving/requests_*.csv`.

What an engine adds was fitted on some of these rows (`engines.toml` names them): H100's, B200's and A100's errors are
those of rows that were in sight.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats, group_by
from ....errors import InputError
from ....records import dataclass, field, replace
from ....specs.catalog import load_catalog
from ....specs.generation_rows import generation_at
from ....specs.gpu import Gpu
from ....specs.match import find_gpu
from ...models.matmul.problems import FORMATS
from ..serve.engines import SGLANG, SMALL_SEQUENCES, TENSORRT_LLM, Engine, EngineStack, engine_on, read_engine, stack_of
from ..serve.forecast import END_TO_END, FIRST, PER_TOKEN, Capacity, LoadFigures, capacity_of, figures_of
from ..serve.measured import least_squares
from ..serve.ops import ServePlan
from ..serve.schedule import RequestLoad, serve_load
from ..serve.sizes import ModelSizes, plain_name, read_model
from ..serve.step import StepTables, step_tables
from .report import DecisionRow, ServingRow
from .weights import Weights

POINTS: Final = "serving/points.csv"
LOGS: Final = "requests_*.csv"
"""Beside each lies a JSON file of the same name: what ran, and how many tokens were cached."""
FIRST_TOKENS: Final = "serving/llm_inference_bench_ttft_itl.csv"
"""First tokens of batches of `POINTS`; the rest of a batch is steps of decodes."""
LATENCY: Final = "latency"
DIGITS: Final = 9
"""Of a batch's time in both tables, which are the same."""
PREFILL, DECODE, CACHE, MOVED = "prefill", "decode step", "cached tokens", "latency, engine from other GPUs"
SKIPPED: Final = (
    *("speculation_unknown", "speculation_mtp", "impossible_tpot", "replicas_unclear", "no_parallelism_given"),
    *("disaggregated_or_many_replicas", "pipeline_2", "gguf_precision_not_given", "throughput_disagrees"),
    "repeated_row",
)
"""Flags of rows whose configuration or time is not what the row says (README of the tables)."""
SHARED_ATTENTION: Final = frozenset({("MiniMaxAI/MiniMax-M2.5", "fp8"), ("moonshotai/Kimi-K2.5", "fp4")})
"""Whose rows of vLLM the table gives replicas of attention: InferenceX's launch scripts of them say tensor and expert
parallelism alone, and the times are those of their rows so labelled."""
IMPOSSIBLE_BATCHES: Final = ("tensorrt-llm", "mistralai/Mixtral-8x7B-v0.1")
"""On A100, 16 at a time, a step takes 11 ms; reading all experts takes 14.5 at the memory's peak."""
CASE: Final = ("source", "model", "precision", "isl", "osl")
"""What rows that can be chosen from have in common."""
LEAST_APART: Final = log(1.1)
"""Natural log of two rates, one of which is better."""
LIMITS_NS: Final = (10e6, 20e6, 30e6, 50e6, 100e6)
"""Of TPOT, as users ask for them."""
LOG_TIMES: Final = ("queued", "first_token", "last_token")
SHORTEST: Final = 0.8
"""InferenceX draws lengths evenly from here up to the given ones."""
REQUESTS_PER_PLACE: Final = 10
"""Of InferenceX's runs."""
SEED: Final = 20261128
NAMES: Final[Mapping[str, str]] = {"tensorrt-llm": "trtllm"}
VERSIONS_OF_2024: Final = "0.5"
CONFIGURATOR, CONFIGURATOR_TOKENS = "silicon_sample/gap", 1500
"""AIConfigurator's engines take as many sequences as users, and beside them a prompt and so many tokens in a step (its
rule_plugin/benchmark/trtllm.rule and rule_plugin/vllm.rule)."""
INFERENCEX, INFERENCEX_TOKENS = "silicon_sample/inferencex", 16384
"""Of a step; vLLM's 8,192, with `async-scheduling` in all versions (InferenceX's launch scripts, as what follows)."""
POLLED_STEPS, MANY_USERS, GATHERED_STEPS = (10, 30), 16, 20
"""After which SGLang looks for requests, the second from so many users on (`scheduler-recv-interval`); for which
TensorRT-LLM lets Llama's prompts wait for more of them, if as long as outputs (`batch_wait_timeout_iters`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """Hold a measured load beside its prediction; times in ns."""

    row: Mapping[str, str]
    """Of the table; of a log its source, GPU and engine."""
    measured: Mapping[str, float]
    """By what was measured: ttft, tpot, e2e, latency, of one batch prefill and decode step; cached tokens, a count."""
    predicted: Mapping[str, Floats]
    """The same with the ends of the interval, [3]."""
    roofline_ns: Mapping[str, float] = field(default_factory=dict)
    """A token's and a prompt's time by the roofline, where the load is given."""
    parts_ns: tuple[float, ...] = ()
    """Of an offline batch: kernels, steps, and the sum over steps of sequences: what a ns more of each adds."""


def score_serving(
    data: Path, weights: Weights
) -> tuple[tuple[ServingRow, ...], tuple[DecisionRow, ...], tuple[str, ...]]:
    """Predict the rows of `serving/points.csv` that say what ran.

    Return their errors, how often the better of two was named and limits were kept, and why others are left out.
    """
    path = data / POINTS
    if not path.exists():
        return (), (), ()
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    left_out, points, scorer = Counter[str](), list[ServingPoint](), _Scorer(weights)
    for row in rows:
        flags = [flag for flag in row["flags"].split() if flag in SKIPPED]
        try:
            if flags:
                raise InputError(f"the table says {flags[0]}")
            points.append(scorer.score(row))
        except InputError as error:
            left_out[str(error).partition(" of ")[0]] += 1
    decisions = tuple(_decisions(points))
    timed: Iterable[ServingPoint] = scorer.steps(data / FIRST_TOKENS, points) if (data / FIRST_TOKENS).exists() else ()
    points += [*timed, *_from_other_gpus(points)]
    points += [scorer.replay(log) for log in sorted(path.parent.glob(LOGS))]
    notes = [f"{count:,} rows of {POINTS} left out: {reason}" for reason, count in left_out.items()]
    return tuple(_rows_of(points)), decisions, tuple(notes)


def _rows_of(points: Sequence[ServingPoint]) -> Iterator[ServingRow]:
    """Yield the errors of each measure by source, then by GPU and engine."""
    for measure in (PER_TOKEN, FIRST, END_TO_END, LATENCY, MOVED, PREFILL, DECODE, CACHE):
        chosen = [point for point in points if measure in point.measured]
        groups: dict[str, list[ServingPoint]] = {}
        for point in chosen:
            source = point.row["source"].partition("/")[0]
            for name in (source, f"{source}, {point.row['gpu']}, {point.row['engine']}"):
                groups.setdefault(name, []).append(point)
        for name, found in sorted(groups.items()):
            ratio = np.array([point.predicted[measure][0] / point.measured[measure] - 1.0 for point in found])
            bare = [
                abs(ns / point.measured[measure] - 1.0) for point in found if (ns := point.roofline_ns.get(measure))
            ]
            ends = [(point.measured[measure], *point.predicted[measure][1:]) for point in found]
            held = [low <= value <= high for value, low, high in ends]
            yield ServingRow(
                group=name,
                measure=measure,
                rows=len(found),
                mape=float(np.abs(ratio).mean()),
                median_ape=float(np.median(np.abs(ratio))),
                bias=float(np.median(ratio)),
                covered=float(np.mean(held)),
                roofline=float(np.mean(bare)) if bare else None,
            )


def _decisions(points: Sequence[ServingPoint]) -> Iterator[DecisionRow]:
    """Yield how often the better of two measured loads was named, and how often the best under a limit kept it.

    Better is more written tokens/s per GPU, by 10 % at least. Recommended is what writes most of one GPU type's and
    engine's rows, among those whose TPOT is within the limit at the upper end of its interval.
    """
    each_type = _groups([point for point in points if PER_TOKEN in point.measured], *CASE, "gpu", "engine")
    found = {
        "more tokens/s per GPU": [_right(group) for group in _groups(points, *CASE)],
        "the same, of as many users": [_right(group) for group in _groups(points, *CASE, "concurrency")],
        "the most within a limit of TPOT keeps it": [_kept(group, limit) for group in each_type for limit in LIMITS_NS],
    }
    for criterion, right in found.items():
        pairs = [one for group in right for one in group]
        if pairs:
            yield DecisionRow(
                table="serving",
                criterion=criterion,
                workloads=sum(map(bool, right)),
                pairs=len(pairs),
                right=float(np.mean(pairs)),
                kendall_tau=None,
                baselines={},
            )


def _groups(points: Sequence[ServingPoint], *names: str) -> list[list[ServingPoint]]:
    return list(group_by(points, lambda point: tuple(point.row[name] for name in names)).values())


def _right(group: Sequence[ServingPoint]) -> list[bool]:
    """Return of each pair whose rates differ whether the better one was named."""
    rates = np.log([[_rate(point.row, times) for times in (point.measured, point.predicted)] for point in group])
    first, second = np.triu_indices(len(group), 1)
    measured, predicted = (rates[first] - rates[second]).T
    return list(((measured > 0) == (predicted > 0))[np.abs(measured) > LEAST_APART])


def _kept(group: Sequence[ServingPoint], limit_ns: float) -> list[bool]:
    held = [point for point in group if point.predicted[PER_TOKEN][2] <= limit_ns]
    best = max(held, key=lambda point: _rate(point.row, point.predicted), default=None)
    return [] if best is None else [best.measured[PER_TOKEN] <= limit_ns]


def _rate(row: Mapping[str, str], times_ns: Mapping[str, Any]) -> float:
    """Return tokens per ns and GPU: the tokens of all users over the time from request to last token."""
    tokens = int(row["osl"])
    whole = times_ns[LATENCY] if LATENCY in times_ns else times_ns[FIRST] + times_ns[PER_TOKEN] * (tokens - 1)
    return float(int(row["concurrency"]) * tokens / np.ravel(whole)[0] / int(row["gpus"]))


def _from_other_gpus(points: Sequence[ServingPoint]) -> Iterator[ServingPoint]:
    """Yield offline batches with what an engine adds as its other GPUs' batches say: a and b of the least squares.

    Of batches on one GPU, where links' errors cannot pass for the host's.
    """
    for batches in group_by([point for point in points if point.parts_ns], lambda point: point.row["engine"]).values():
        gpu, tp = np.array([[point.row["gpu"], point.row["tp"]] for point in batches]).T
        measured = np.array([point.measured[LATENCY] for point in batches])
        kernels, *host = np.array([point.parts_ns for point in batches]).T / measured
        names = sorted(set(gpu.tolist()))
        for name in names if len(names) > 1 else []:
            others = (gpu != name) & (tp == "1")
            factors = least_squares(np.stack(host)[:, others], (1.0 - kernels)[others])
            predicted = measured * (kernels + factors @ np.stack(host))
            for place in np.flatnonzero(gpu == name).tolist():
                point = batches[place]
                found = predicted[place] * point.predicted[LATENCY] / point.predicted[LATENCY][0]
                yield replace(point, measured={MOVED: float(measured[place])}, predicted={MOVED: found}, parts_ns=())


class _Scorer:
    """Predict rows of the table; what rows of one configuration share is kept."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.catalog = weights, load_catalog()
        self.tables: dict[tuple[object, ...], StepTables] = {}

    def score(self, row: Mapping[str, str]) -> ServingPoint:
        """Return a row beside its prediction. Raises InputError, with the reason, where none is possible."""
        if (row["engine"], row["model"]) == IMPOSSIBLE_BATCHES and int(row["concurrency"]) > 1:
            raise InputError("a batch is faster than reading the experts that it needs")
        if row["load"] == "largest":
            raise InputError("the load is not given")
        gpu, sizes = find_gpu(self.catalog, row["gpu"]), _sizes_of(row["model"])
        name = NAMES.get(row["engine"], row["engine"])
        if name not in ("vllm", "sglang", "trtllm"):
            raise InputError(f"{row['engine']} is not modelled")
        precision = _precision_of(row)
        plan = ServePlan(tp=int(row["tp"]), dp=int(row["dp"]), ep=int(row["ep"]))
        if name == "vllm" and (row["model"], row["precision"]) in SHARED_ATTENTION:
            plan = replace(plan, tp=plan.gpus, dp=1)
        if int(row["gpus"]) != plan.gpus:
            raise InputError("replicas and plan disagree")
        engine = _engine_of(row, name, gpu, sizes, precision)
        stack = stack_of(gpu, precision, name)
        is_narrow = generation_at(gpu.compute_capability).has_tensor_memory or (
            name == "trtllm" and precision.startswith("fp8")
        )
        cache_bytes = 1.0 if is_narrow and precision != "fp16" else 2.0
        tables = self._tables(sizes, plan, stack, gpu, cache_bytes)
        context = int(row["isl"]) + int(row["osl"]) / 2
        capacity = capacity_of(sizes, plan, precision, gpu, engine, cache_bytes=cache_bytes, context=context)
        load = _load_of(row, plan)
        served = serve_load(engine, tables.clock(0, engine), capacity.tokens, load)
        figures = figures_of(tables, 0, engine, served, np.ones(len(load.prompts)))
        roofline_ns = _roofline_ns(sizes, plan, gpu, stack, capacity, load)
        point = replace(_point_of(row, figures, served.end_ns), roofline_ns=roofline_ns)
        if row["load"] != "offline":
            return point
        tried = [replace(engine, step_ns=step, sequence_ns=each) for step, each in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))]
        kernels, *more = (serve_load(one, tables.clock(0, one), capacity.tokens, load).end_ns for one in tried)
        return replace(point, parts_ns=(kernels, *(end - kernels for end in more)))

    def replay(self, path: Path) -> ServingPoint:
        """Return a log's means beside those of its requests replayed, with the cache that it says."""
        ran = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        with path.open(encoding="utf-8", newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: float(row["queued_s"]))
        arrival, first, last = (np.array([float(row[f"{name}_s"]) for row in rows]) * 1e9 for name in LOG_TIMES)
        prompts, outputs = (np.array([int(row[f"{name}_tokens"]) for row in rows]) for name in ("input", "output"))
        load = RequestLoad(arrival_ns=arrival, prompts=prompts, outputs=outputs)
        sizes, plan = _sizes_of(ran["model"]), ServePlan(tp=ran["tensor_parallel"])
        gpu, precision = find_gpu(self.catalog, ran["gpu"]), {"bfloat16": "bf16", "float16": "fp16"}[ran["dtype"]]
        found = engine_on(read_engine(f"{ran['engine']}=={ran['version']}"), gpu, sizes, precision)
        # The log's clock starts as the engine queues a request: neither client nor text is in it.
        limits = {"budget": ran["max_num_batched_tokens"], "max_sequences": ran["max_num_seqs"]}
        engine = replace(found, **limits, first_ns=0.0, first_per_token_ns=0.0)
        tables = self._tables(sizes, plan, stack_of(gpu, precision, engine.name), gpu, 2.0)
        served = serve_load(engine, tables.clock(0, engine), ran["kv_tokens"], load)
        figures = figures_of(tables, 0, engine, served, np.ones(len(rows)))
        per_token = ((last - first) / np.maximum(outputs - 1, 1))[outputs > 1]
        room = capacity_of(sizes, plan, precision, gpu, engine, cache_bytes=2.0, context=float(prompts.mean()))
        means = {FIRST: first - arrival, PER_TOKEN: per_token, END_TO_END: last - arrival}
        predicted = {name: figures.latencies[name].within("mean") for name in means}
        means[CACHE], predicted[CACHE] = ran["kv_tokens"], (room.tokens, room.low_tokens, room.high_tokens)
        return ServingPoint(
            row={"source": "request log", "gpu": gpu.name, "engine": engine.name},
            measured={name: float(np.mean(values)) for name, values in means.items()},
            predicted={name: np.array(found) for name, found in predicted.items()},
        )

    def steps(self, path: Path, points: Sequence[ServingPoint]) -> Iterator[ServingPoint]:
        """Yield the batches whose first tokens were timed too, taken apart into prefill and a mean decode step."""
        with path.open(encoding="utf-8", newline="") as file:
            timed = {row["end_latency "][:DIGITS]: row["TTFT Latency"] for row in csv.DictReader(file)}
        for point in points:
            if point.row["latency_s"] and point.row["latency_s"][:DIGITS] in timed:
                prompts = {"osl": "1", "latency_s": timed[point.row["latency_s"][:DIGITS]]}
                first, steps = self.score({**point.row, **prompts}), int(point.row["osl"]) - 1
                pairs: Any = ((first.measured, point.measured), (first.predicted, point.predicted))
                measured, predicted = (
                    {PREFILL: one[LATENCY], DECODE: (whole[LATENCY] - one[LATENCY]) / steps} for one, whole in pairs
                )
                yield replace(point, measured=measured, predicted=predicted)

    def _tables(
        self, sizes: ModelSizes, plan: ServePlan, stack: EngineStack, gpu: Gpu, cache_bytes: float
    ) -> StepTables:
        key = (sizes, plan, stack, gpu.name, cache_bytes)
        if key not in self.tables:
            library = self.weights.library_for(gpu)
            self.tables[key] = step_tables(sizes, plan, stack, [gpu], library, cache_bytes=cache_bytes)
        return self.tables[key]


def _sizes_of(model: str) -> ModelSizes:
    name = plain_name(model).removesuffix("-nvfp4").removesuffix("-v0.1").removesuffix("-0528")
    try:
        return read_model(name)
    except InputError:
        raise InputError(f"{model}: its layers are not modelled") from None


def _precision_of(row: Mapping[str, str]) -> str:
    """Return the precision by what the source calls products and experts; gpt-oss's is mxfp4 whatever it is called."""
    if "gpt-oss" in row["model"]:
        return "mxfp4"
    if "fp8_block" in (row["products"], row["experts_format"]) or (
        "DeepSeek" in row["model"] and row["precision"] == "fp8"
    ):
        return "fp8_block"
    return {"fp4": "nvfp4"}.get(row["precision"], row["precision"])


def _engine_of(row: Mapping[str, str], name: str, gpu: Gpu, sizes: ModelSizes, precision: str) -> Engine:
    version = {"2024": VERSIONS_OF_2024, "nightly": ""}.get(row["version"], row["version"])
    version = "" if not version[:1].isdigit() else version
    engine = read_engine(f"{name}=={version}" if version else name)
    engine = engine_on(engine, gpu, sizes, precision)
    places = int(row["concurrency"])
    if row["source"] == CONFIGURATOR and name != SGLANG:
        return replace(engine, budget=places + int(row["isl"]) + CONFIGURATOR_TOKENS, max_sequences=places)
    engine = replace(engine, max_sequences=max(SMALL_SEQUENCES, places))
    if row["source"] != INFERENCEX:
        return engine
    gathers = name == TENSORRT_LLM and "Llama" in row["model"] and row["isl"] == row["osl"] and int(row["tp"]) < 8
    waited = POLLED_STEPS[places >= MANY_USERS] if name == SGLANG else GATHERED_STEPS if gathers else 2
    budget = engine.budget if name == "vllm" else INFERENCEX_TOKENS
    return replace(engine, held_steps=waited // 2, budget=budget)  # Half an interval in the mean.


def _load_of(row: Mapping[str, str], plan: ServePlan) -> RequestLoad:
    """Return the requests that one replica of attention gets."""
    places = max(round(int(row["concurrency"]) / plan.dp), 1)
    is_offline = row["load"] == "offline"
    count = places * (1 if is_offline else REQUESTS_PER_PLACE)
    prompts, outputs = np.full(count, int(row["isl"])), np.full(count, int(row["osl"]))
    if row["length_spread"] != "fixed":
        drawn = np.random.default_rng(SEED).uniform(SHORTEST, 1.0, (2, count))
        prompts, outputs = np.maximum((drawn * (prompts, outputs)).astype(np.int64), 1)
    return RequestLoad(arrival_ns=np.zeros(count), prompts=prompts, outputs=outputs, concurrency=places)


def _roofline_ns(
    sizes: ModelSizes, plan: ServePlan, gpu: Gpu, stack: EngineStack, capacity: Capacity, load: RequestLoad
) -> Mapping[str, float]:
    """Return the roofline of a step that writes a token of each sequence, and of one prompt: no engine, no queue.

    time = max(2 * active weights * tokens / (GPUs * peak), bytes of weights and read cache / bandwidth)
    """
    expert = 3.0 * sizes.hidden * sizes.expert_intermediate
    active = sizes.parameters - sizes.expert_layers * expert * (sizes.experts - sizes.top_k)
    peak = gpu.peak_flops_per_s.get(FORMATS[stack.products].rate, np.inf) * plan.gpus
    prompt, places = float(np.mean(load.prompts)), load.concurrency
    cached = places * (prompt + float(np.mean(load.outputs)) / 2.0) * capacity.token_bytes
    bandwidth = gpu.memory_bandwidth_bytes_per_s / 1e9
    return {
        name: max(2e9 * active * tokens / peak, (capacity.weight_bytes + read_bytes) / bandwidth)
        for name, tokens, read_bytes in ((PER_TOKEN, places * plan.dp, cached), (FIRST, prompt, 0.0))
    }


def _point_of(row: Mapping[str, str], figures: LoadFigures, end_ns: float) -> ServingPoint:
    measured = {name: float(row[f"{name}_ms"]) * 1e6 for name in (FIRST, PER_TOKEN) if row[f"{name}_ms"]}
    predicted = {name: figures.latencies[name].within("mean") for name in measured}
    if row["latency_s"]:
        measured["latency"] = float(row["latency_s"]) * 1e9
        low, high = np.exp([-figures.step_half_width, figures.step_half_width])
        predicted["latency"] = (end_ns, end_ns * float(low), end_ns * float(high))
    return ServingPoint(
        row=row, measured=measured, predicted={name: np.array(found) for name, found in predicted.items()}
    )
