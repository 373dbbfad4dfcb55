"""`wavecast.serve` and the `serve` command: latencies, rates and cost of a served model on GPUs, from its sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, parameter
from ....progress import progress_on_stderr
from ....records import dataclass, field, replace
from ...asking.answer import Drawn, Report, as_names
from ...asking.choice import GPU_NAMES, DatacenterOnly
from ...asking.command import WavecastCommand, output_options, write_answer
from ...asking.declared import COUNT, FILE, HelpPart, as_counts, asks, declare, option, options_of
from ...asking.inputs import AskedSource
from ...asking.keywords import read_duration_ns
from ...asking.machines import Machines
from ...asking.prices import Power, Prices
from ...asking.question import find_named
from ...page.formats import REPORT_FORMATS

if TYPE_CHECKING:
    from ...asking.question import Gpus
    from .report import ServeQuestion, ServeReport, Target

PRECISION_NAMES: Final = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
MEASURE_NAMES: Final = ("mean", "p50", "p90", "p99")
_COUNTED: Final = re.compile(r"(\d{1,4})\s*[x×*](?!tx?\b)\s*(\S.*)")
"""`2xH200`: so many of a GPU."""
_DRAFTS: Final = re.compile(r"(\d{1,2}):(\d(?:\.\d*)?|\.\d+)")
"""`3:0.7`: so many tokens, each right with this chance."""
_DRAWN: Final = 1024, 512, 0
"""Tokens of a prompt, tokens written and the seed where nothing is said."""
MOST_DRAFTED: Final = 16
MOST_USERS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ServeAnswer(Report):
    """Hold how a model is served: `report` has the figures. Its table is `gpus`: a row per GPU type."""

    report: ServeReport

    def _drawn(self) -> Drawn:
        from .page import describe_serving, draw_serving_json, serving_table

        return Drawn(
            page=lambda: describe_serving(self.report),
            json=lambda: draw_serving_json(self.report),
            tables={"gpus": lambda: serving_table(self.report)},
        )

    def _headline(self) -> str:
        best = self.report.rows[0]
        return (
            f"{self.report.question.sizes.name} on {best.gpus} × {best.gpu}: {best.output_tokens_per_s:,.0f} tokens/s"
        )


@dataclass(frozen=True, kw_only=True)
class ServeOptions(DatacenterOnly, Machines, Prices, Power, AskedSource):
    """Hold what may be asked of a served model."""

    to: str | Sequence[str] = field(
        default=(),
        metadata=declare(HelpPart.GPUS, "The GPUs; '2xH200' says how many. Default: all catalogued ones.", **GPU_NAMES),
    )
    precision: str | None = option(
        HelpPart.WHAT_IF,
        f"What weights are held in; of several the best: {', '.join(PRECISION_NAMES)}. Default: what the model says.",
        metavar="NAME,…",
    )
    kv: str | None = option(
        HelpPart.WHAT_IF, "What keys and values are cached in. Default: 16 bits.", type=click.Choice(("fp8", "bf16"))
    )
    engine: str = option(
        HelpPart.WHAT_IF,
        "vllm, sglang or trtllm, maybe with a version: vllm==0.19; or a .toml file as --trace and --calibrate print.",
        default="vllm",
        metavar="NAME",
    )
    trace: str | Path | None = option(
        HelpPart.INPUT, "Calibrate the engine by a server's steps that torch's profiler recorded.", **FILE
    )
    calibrate: str | Path | None = option(
        HelpPart.INPUT,
        "Fit the engine's times to a log of measured requests on the GPU of --to, and replay it.",
        **FILE,
    )
    prompt_tokens: int = option(HelpPart.WHAT_IF, "Tokens of a prompt, ± 10 %.", default=_DRAWN[0], **COUNT)
    output_tokens: int = option(HelpPart.WHAT_IF, "Tokens written, ± 10 %.", default=_DRAWN[1], **COUNT)
    concurrency: int | Sequence[int] | None = option(
        HelpPart.WHAT_IF,
        "Requests at all times; several as in 1,4,16,64. Default: 1 user.",
        "--concurrency",
        "--users",
        metavar="N,…",
        multiple=True,
        callback=as_counts("a number of requests"),
        default=(),
    )
    rate: float | None = option(
        HelpPart.WHAT_IF, "Requests per second, at random (Poisson): says how many GPUs.", type=float, metavar="N"
    )
    requests: str | Path | None = option(
        HelpPart.INPUT, "Replay these requests: CSV, JSON lines, a result of vllm bench or GuideLLM.", **FILE
    )
    ttft: str | None = option(HelpPart.WHAT_IF, "The longest time to the first token: 500ms.", metavar="TIME")
    tpot: str | None = option(HelpPart.WHAT_IF, "The longest time per token after it: 50ms.", metavar="TIME")
    percentile: str = option(
        HelpPart.WHAT_IF, "What of the requests the limits are of.", default="p90", type=click.Choice(MEASURE_NAMES)
    )
    tp: int | None = option(HelpPart.MANY, "GPUs that share each layer. Default: the best of 1, 2, 4, 8.", **COUNT)
    pp: int | None = option(
        HelpPart.MANY, "Stages with a part of the layers each. Default: 1; of 4xL40S the best of 1, 2, 4.", **COUNT
    )
    separate_prefill: bool = option(
        HelpPart.MANY,
        "Compute prompts on GPUs of their own, which send what they cached to those that write; with --rate.",
        default=False,
    )
    max_sequences: int | Sequence[int] | None = option(
        HelpPart.WHAT_IF,
        "Sequences of a step at most; of several the best. Default: 1,024 of vLLM from 70 GiB on (not A100), else 256.",
        metavar="N,…",
        multiple=True,
        callback=as_counts("a number of sequences"),
        default=(),
    )
    step_tokens: int | None = option(
        HelpPart.WHAT_IF,
        "Tokens of a step at most. Default: 8,192 from 70 GiB on (vLLM: not A100), else 2,048.",
        **COUNT,
    )
    memory_share: float | None = option(
        HelpPart.WHAT_IF,
        "Of a GPU's memory, what the engine uses: its gpu_memory_utilization. Default: the engine's own.",
        type=click.FloatRange(0.0, 1.0, min_open=True),
        metavar="SHARE",
    )
    shared_prompt: float = option(
        HelpPart.WHAT_IF,
        "Of each prompt, the beginning that the cache holds already, once for all: 0.6.",
        default=0.0,
        type=click.FloatRange(0.0, 1.0, max_open=True),
        metavar="SHARE",
    )
    speculate: str | None = option(
        HelpPart.WHAT_IF, "Draft so many tokens of which each is right with a chance: 3:0.7.", metavar="N:CHANCE"
    )
    seed: int = option(HelpPart.WHAT_IF, "Draws lengths and arrivals.", default=_DRAWN[2], type=click.IntRange(min=0))


@asks(ServeOptions)
def serve(model: str | Path, asked: ServeOptions) -> ServeAnswer:
    """Predict how a language model is served: latencies, rates, cost, how many GPUs; from its sizes alone.

    `model` is a Hugging Face config.json, a folder that holds one, or a short name such as "llama-3-70b". With `rate`
    it says how many GPUs, with `ttft` and `tpot` such that these hold at the upper end of the interval.
    Raises InputError for what cannot be read or asked, or is not modelled, UnknownGpuError for a GPU that is not
    catalogued.

    >>> answer = serve("llama-3-70b", precision="fp8", to=["2xH200"], concurrency=64, prompt_tokens=2000)
    >>> [(row["gpu"], row["gpus"], row["tp"]) for row in answer.to_records()]
    [('H200 SXM 141GB', 2, 2)]
    """
    from ...iteration.decision.electricity import Electricity
    from ...models.library import load_library
    from .engines import read_engine
    from .load import read_requests
    from .measured import calibrate
    from .report import ServeQuestion
    from .separate import report_serving
    from .sizes import read_model

    users, sequences = _counts("concurrency", asked.concurrency), _counts("max_sequences", asked.max_sequences)
    _check_load(asked, users, sequences)
    sizes = read_model(model)
    given = sizes.precision if asked.precision is None else asked.precision
    if asked.precision is None and not given:
        raise InputError(f"{sizes.name}: its quantization_config is not known: say {parameter('precision')}")
    precisions = tuple(dict.fromkeys(word.strip() for word in given.split(",")))
    if not set(precisions) <= set(PRECISION_NAMES):
        raise InputError(f"{parameter('precision', asked.precision)}: expected {', '.join(PRECISION_NAMES)}")
    limits = {name: read_duration_ns(name, getattr(asked, name)) for name in ("ttft", "tpot")}
    held = {name: limit for name, limit in limits.items() if limit is not None}
    log = asked.requests if asked.calibrate is None else asked.calibrate
    is_open = asked.rate is not None or (bool(held) and not users and log is None)
    drafted, acceptance = _speculation(asked.speculate)
    engine = replace(
        read_engine(asked.engine),
        budget=asked.step_tokens or 0,
        max_sequences=min(sequences, default=0),
        memory_share=asked.memory_share,
        shared_share=asked.shared_prompt,
        drafted=drafted,
        acceptance=acceptance,
    )
    named, targets = _targets(asked)
    question = ServeQuestion(
        sizes=sizes,
        precisions=precisions,
        engine=engine,
        sequences=sequences or (0,),
        cache_bytes=1.0 if asked.kv == "fp8" else 2.0,
        prompt=asked.prompt_tokens,
        output=asked.output_tokens,
        loads=() if is_open or log is not None else users or (1,),
        rate_per_s=asked.rate or 0.0,
        requests=None if log is None else read_requests(Path(log)),
        tp=asked.tp,
        pp=asked.pp,
        is_separate=asked.separate_prefill,
        limits=held,
        measure=asked.percentile,
        seed=asked.seed,
        electricity=asked.power() or Electricity(),
    )
    _check_lengths(question)
    catalog, cluster = named.catalog, asked.cluster(named.catalog, [item.gpu.name for item in targets])
    library = load_library()
    question = calibrate(question, (asked.trace, asked.calibrate), named, targets, library, cluster)
    return ServeAnswer(report=report_serving(question, targets, library, asked.book(catalog), cluster, catalog))


def _check_load(asked: ServeOptions, users: tuple[int, ...], sequences: tuple[int, ...]) -> None:
    """Raise InputError for what excludes each other, or what no load and no engine can be."""
    given = {"concurrency": users or None, "rate": asked.rate, "requests": asked.requests, "calibrate": asked.calibrate}
    loads = [name for name, value in given.items() if value is not None]
    if len(loads) > 1:
        raise InputError(f"{' and '.join(map(parameter, loads))} are {len(loads)} loads: give one")
    if asked.rate is not None and not 0 < asked.rate < 1e6:
        raise InputError(f"{parameter('rate', asked.rate)}: expected requests per second above 0 and under a million")
    if asked.trace is not None and asked.calibrate is not None:
        raise InputError(f"{parameter('trace')} and {parameter('calibrate')} both say the engine's times: give one")
    for name, share in (("memory_share", asked.memory_share), ("shared_prompt", asked.shared_prompt)):
        if share is not None and not 0.0 <= share <= 1.0:
            raise InputError(f"{parameter(name, share)}: expected a share from 0 to 1")
    if asked.step_tokens is not None and asked.step_tokens < (few := min(sequences, default=0)):
        tokens = parameter("step_tokens", asked.step_tokens)
        raise InputError(f"{tokens}: expected as many as sequences at least: {parameter('max_sequences', few)}")
    if loads in (["requests"], ["calibrate"]) and (asked.prompt_tokens, asked.output_tokens, asked.seed) != _DRAWN:
        unused = ", ".join(map(parameter, ("prompt_tokens", "output_tokens", "seed")))
        raise InputError(f"{parameter(loads[0])} says what is asked and when: it goes without {unused}")


def _check_lengths(question: ServeQuestion) -> None:
    """Raise InputError for requests that are longer than the model takes."""
    sizes, load = question.sizes, question.requests
    longest = question.prompt + question.output if load is None else int((load.prompts + load.outputs).max())
    if 0 < sizes.positions < longest:
        raise InputError(
            f"{sizes.name} takes {sizes.positions:,} tokens at most and engines refuse {longest:,}: ask for fewer, or "
            "give a config.json with a larger max_position_embeddings, or rope_scaling"
        )


def _counts(name: str, asked: int | Sequence[int] | None) -> tuple[int, ...]:
    counts = (asked,) if isinstance(asked, int) else tuple(asked or ())
    if not all(isinstance(count, int) and 0 < count < MOST_USERS for count in counts):
        given = parameter(name, ",".join(map(str, counts)))
        raise InputError(f"{given}: expected numbers from 1 to {MOST_USERS - 1:,}, or several as in 1,4,16")
    return counts


def _speculation(text: str | None) -> tuple[int, float]:
    """Return how many tokens are drafted, and the chance that one is right."""
    if text is None:
        return 0, 0.0
    found = _DRAFTS.fullmatch(text.strip())
    if not found or not 0 < int(found[1]) <= MOST_DRAFTED or not 0.0 <= float(found[2]) <= 1.0:
        expected = f"1 to {MOST_DRAFTED} tokens and a chance from 0 to 1, such as 3:0.7"
        raise InputError(f"{parameter('speculate', text)}: expected {expected}")
    return int(found[1]), float(found[2])


def _targets(asked: ServeOptions) -> tuple[Gpus, tuple[Target, ...]]:
    """Return the catalogue, and the GPUs with how many of each are asked for."""
    from .report import Target

    names = as_names(asked.to)
    named = asked.named()
    if not names:
        return named, tuple(Target(gpu=gpu) for gpu in asked.of_class(named) or named.catalog.gpus)
    targets = []
    for name in names:
        found = _COUNTED.fullmatch(name.strip())
        gpus = asked.of_class(find_named([found[2] if found else name], None, asked.gpu_file))
        targets += [Target(gpu=gpu, count=int(found[1]) if found else None) for gpu in gpus]
    if any(item.count == 0 for item in targets):
        raise InputError(f"{parameter('to')}: expected one GPU or more")
    return named, tuple(targets)


@click.command("serve", cls=WavecastCommand)
@click.argument("model")
@output_options(*REPORT_FORMATS)
@options_of(ServeOptions)
def serve_command(model: str, form: str | None, output: Path | None, **asked: Any) -> None:
    """Predict how the language model MODEL is served under load, from its sizes alone.

    MODEL is a Hugging Face config.json, a folder that holds one, or a short name (llama-3-70b,
    qwen3-32b, mixtral-8x7b, deepseek-v3, gpt-oss-20b). Says tokens per second, time to the first
    token and per token, cost, and with a rate how many GPUs of what; see docs/reference/serve.md.

    \b
    Examples:
      serve llama-3-70b --precision fp8 --to 2xH200,4xL40S --users 64
      serve llama-3-8b --rate 20 --tpot 50ms
      serve gpt-oss-20b --to 4090
    """
    with progress_on_stderr("Searching plans"):
        found = serve(model, **asked)
    write_answer(found, form, output)
