"""Serving engines as data: what one adds to its kernels' times, how it batches, and which formats it runs parts in."""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError, parameter
from ....records import dataclass, replace
from ....specs.attention_kernels import AttentionKernel
from ....specs.documents import check_keys, read_table, read_toml
from ....specs.experts_kernels import ExpertsKernel
from ....specs.fleet import build_fleet
from ....specs.generation_rows import generation_at
from ....specs.generations import has_serving_kernels
from ....specs.gpu import Gpu, Rate
from ...models.attention.kernels import served_kernel
from ...models.experts.problems import ANY_KERNEL, FORMAT_BYTES
from ...models.matmul.problems import FORMATS
from ...work.communication import Implementation
from ...work.work import ExpertsFormat
from .sizes import ModelSizes

TENSORRT_LLM, SGLANG = "trtllm", "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFormats:
    """Name what products and experts are computed in: a key of `FORMATS`, and a format of experts."""

    products: str
    experts: ExpertsFormat


PRECISIONS: Final[Mapping[str, PartFormats]] = {
    "bf16": PartFormats(products="bf16", experts=ExpertsFormat.PLAIN),
    "fp16": PartFormats(products="fp16", experts=ExpertsFormat.PLAIN),
    "fp8": PartFormats(products="fp8_static", experts=ExpertsFormat.FP8),
    "fp8_block": PartFormats(products="fp8_block", experts=ExpertsFormat.FP8_BLOCK),
    "nvfp4": PartFormats(products="nvfp4", experts=ExpertsFormat.FP4),
    "mxfp4": PartFormats(products="bf16", experts=ExpertsFormat.W4A16),
    "int8": PartFormats(products="sq", experts=ExpertsFormat.W8A16),
    "int4": PartFormats(products="int4_wo", experts=ExpertsFormat.W4A16),
}
"""By what `--precision` calls them. mxfp4 is gpt-oss's: experts alone. The output product stays in 16 bits."""
WEIGHT_BYTES: Final[Mapping[str, float]] = {
    **{"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int8": 1.0, "int4": 0.53125},
    "mxfp4": 0.53125,
}
"""Per weight with scales, of the parts that are quantised."""
TENSORRT_LLM_KERNELS: Final[Mapping[ExpertsFormat, ExpertsKernel]] = {
    ExpertsFormat.PLAIN: ExpertsKernel.CUTLASS,
    **dict.fromkeys((ExpertsFormat.FP8, ExpertsFormat.FP8_BLOCK, ExpertsFormat.FP4), ExpertsKernel.TRTLLM_GEN),
}
"""Of its own; generated ones are CUTLASS's before data-centre Blackwell."""
QUANTIZED: Final = frozenset(PRECISIONS) - {"bf16", "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStack:
    """Hold what GPUs that run alike have in common: formats of the parts, and whose attention."""

    precision: str
    products: str
    experts: ExpertsFormat
    attention: AttentionKernel
    decode_attention: AttentionKernel
    """On AMD engines' own, which share out keys as composable kernels do: vLLM's paged attention."""
    experts_kernel: int = ANY_KERNEL
    """`ExpertsKernel`; else what engines would take."""
    all_reduce: Implementation = Implementation.FRAMEWORK
    fallback: str = ""
    """What the GPU lacks, and what it does instead; empty where it lacks nothing."""


def stack_of(gpu: Gpu, precision: str, engine: str) -> EngineStack:
    """Return how a GPU runs a precision. Raises InputError for an engine or a precision that does not run there.

    Where a GPU has no units for a format, engines hold the weights in it and widen them (Marlin): `weight only`.

    >>> stack_of(h100, "nvfp4", "vllm").fallback
    'no units for nvfp4: weights are widened to 16 bits'
    """
    why = why_not(gpu, engine)
    if why is not None:
        raise InputError(f"{gpu.name}: {why}")
    parts, rates = PRECISIONS[precision], gpu.peak_flops_per_s
    products, experts, lacks = parts.products, parts.experts, ""
    is_blackwell = generation_at(gpu.compute_capability).has_tensor_memory
    if precision == "nvfp4" and Rate.MATRIX_FP4 not in rates:
        products, experts, lacks = "int4_wo", ExpertsFormat.W4A16, precision
    elif precision in ("fp8", "fp8_block") and Rate.MATRIX_FP8 not in rates:
        products, experts, lacks = "int8_wo", ExpertsFormat.W8A16, precision
    elif precision == "int8" and Rate.MATRIX_INT8 not in rates:
        products, lacks = "int8_wo", precision
    elif precision == "mxfp4" and is_blackwell:
        experts = ExpertsFormat.W4A8
    if products == "bf16" and Rate.MATRIX_BF16 not in rates:
        products, lacks = "fp16", "bf16"
    fleet = build_fleet([gpu])
    chosen = served_kernel(np.array([[2.0], [1.0]]), fleet)[:, 0].tolist()
    prefill, decode = [AttentionKernel.TENSORRT_LLM] * 2 if engine == TENSORRT_LLM else map(AttentionKernel, chosen)
    fallback = "bf16 runs as fp16" if lacks == "bf16" else f"no units for {lacks}: weights are widened to 16 bits"
    return EngineStack(
        precision=precision,
        products=products,
        experts=experts,
        attention=prefill,
        decode_attention=decode,
        experts_kernel=TENSORRT_LLM_KERNELS.get(experts, ANY_KERNEL) if engine == TENSORRT_LLM else ANY_KERNEL,
        all_reduce=Implementation.TENSORRT_LLM if engine == TENSORRT_LLM else Implementation.FRAMEWORK,
        fallback=fallback if lacks else "",
    )


def why_not(gpu: Gpu, engine: str) -> str | None:
    """Return why an engine does not run on a GPU; None where it does.

    >>> why_not(h100, "trtllm") is None
    True
    """
    if engine == TENSORRT_LLM and gpu.vendor != "NVIDIA":
        return "TensorRT-LLM runs on NVIDIA's GPUs alone"
    if not {Rate.MATRIX_FP16, Rate.MATRIX_BF16} & set(gpu.peak_flops_per_s):
        return "has no matrix units that serving engines use"
    if not has_serving_kernels(build_fleet([gpu]))[0]:
        return f"{engine} has no kernels for {gpu.architecture}"
    return None


def weight_bytes(sizes: ModelSizes, precision: str) -> tuple[float, float, float]:
    """Return the bytes of attention and dense blocks, of experts, and of embedding and output tables.

    >>> from .sizes import read_model
    >>> [round(part / 1e9, 1) for part in weight_bytes(read_model("gpt-oss-20b"), "mxfp4")]
    [1.3, 10.2, 2.3]
    """
    wide, narrow = 2.0, WEIGHT_BYTES[precision]
    dense_layers = sizes.layers - sizes.expert_layers
    blocks = (
        sizes.layers * sizes.attention_elements + dense_layers * sizes.block_weights * sizes.hidden * sizes.intermediate
    )
    blocks += sizes.expert_layers * 3 * sizes.hidden * sizes.shared_intermediate
    routers = sizes.expert_layers * sizes.hidden * sizes.experts
    experts = sizes.expert_layers * 3 * sizes.hidden * sizes.expert_intermediate * sizes.experts
    per_block = wide if FORMATS[PRECISIONS[precision].products].right_bytes == wide else narrow
    tables = sizes.vocab * sizes.hidden * (1 if sizes.is_tied else 2)
    return blocks * per_block + routers * wide, experts * narrow, tables * wide


def experts_bytes(kind: ExpertsFormat) -> tuple[float, float]:
    """Return bytes per element of experts' inputs and weights, with scales."""
    found = FORMAT_BYTES[kind]
    return found.inputs, found.weights


ENGINES_FILE: Final = Path(__file__).with_name("engines.toml")
NAMES: Final = ("vllm", "sglang", "trtllm")
NEWEST: Final = (999,)
UNSTATED_SPREAD: Final = 0.20
"""90 % half-width, natural log, of a step where no version is given; with one it is the row's `spread`."""
LARGE_BUDGET, LARGE_SEQUENCES = 8192, 1024
SMALL_BUDGET, SMALL_SEQUENCES = 2048, 256
"""Tokens and sequences of a step: of a server with 70 GiB or more, and of others. vLLM's arg_utils.py says so, but of
A100 by name; of sequences other engines, and versions before 0.9, take the smaller number."""
LARGE_MEMORY_BYTES: Final = 70.0 * 2**30
FULL_EFFECT: Final = 256.0
NO_EFFECT: Final = 1024.0
"""Tokens of a step up to which small products count as in `engines.toml`, and from which on not."""
MS: Final = 1e6
_MEASURED: Final = ("step_ms", "sequence_ms", "prefill_ratio", "decode_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Hold what an engine of a version adds, ns, and its limits."""

    name: str
    version: str
    """As asked for; empty where the newest is taken."""
    step_ns: float
    sequence_ns: float
    first_ns: float
    first_per_token_ns: float
    spread: float
    """90 % half-width of a step's time, natural log."""
    source: str
    budget: int = 0
    """Tokens of a step; 0: by the GPU's memory."""
    max_sequences: int = 0
    """Of a step; 0: by the engine and the GPU's memory."""
    memory_share: float | None = None
    """Of a GPU's memory; None: 0.9, and SGLang leaves what its chunks and graphs take."""
    reserves: bool = False
    """Whether a request starts only where all that it writes will have room."""
    splits_prompts: bool = True
    """Whether prompts' chunks run beside sequences that decode; else in steps of their own."""
    keeps_prompts_whole: bool = False
    """Whether a prompt that a step's tokens can hold waits for one that has room for all of it."""
    held_steps: int = 0
    """After which results are seen: an engine that schedules beside the GPU has launched the next step by then."""
    ratio: float = 1.0
    """Of small steps' products to their own times."""
    prefill_ratio: float = 1.0
    decode_ratio: float = 1.0
    """Of measured kernels to these, in steps with prompts and without, where a recording tells."""
    measured_on: str = ""
    """The GPU of that recording."""
    shared_share: float = 0.0
    """Of each prompt, its beginning: the cache holds it already, once for all."""
    drafted: int = 0
    """Tokens that a head of one layer proposes for each sequence of a step, which the model checks at once."""
    acceptance: float = 0.0
    """The chance of each of them to be right, given that those before it are."""

    @property
    def tokens_per_step(self) -> float:
        """Return what a sequence gets of a step in the mean: (1 - a^(k+1)) / (1 - a), Leviathan et al., ICML 2023.

        >>> round(replace(read_engine("vllm"), drafted=3, acceptance=0.7).tokens_per_step, 2)
        2.53
        """
        return sum(self.acceptance**count for count in range(self.drafted + 1))

    def products_ratio(self, tokens: Floats) -> Floats:
        """Return by what products differ from their times alone, in steps of so many tokens.

        >>> replace(read_engine("vllm"), ratio=0.8).products_ratio(np.array([1, 512, 1024])).round(2).tolist()
        [0.8, 0.9, 1.0]
        """
        fade = np.log(tokens / FULL_EFFECT) / log(NO_EFFECT / FULL_EFFECT)
        return self.ratio + (1.0 - self.ratio) * np.clip(fade, 0.0, 1.0)

    def as_file(self) -> str:
        """Return what is measured of it as a file that `read_engine` takes."""
        named = f"{self.name}=={self.version}" if self.version else self.name
        values = (self.step_ns / MS, self.sequence_ns / MS, self.prefill_ratio, self.decode_ratio)
        numbers = (f"{name} = {value:.5g}" for name, value in zip(_MEASURED, values, strict=True))
        return "\n".join((f'engine = "{named}"', f'measured_on = "{self.measured_on}"', *numbers))


def read_engine(text: str) -> Engine:
    """Return the engine that `vllm`, `vllm==0.12` or a TOML file names. Raises InputError for another.

    >>> read_engine("vllm==0.12").sequence_ns, read_engine("vllm").sequence_ns
    (30000.0, 6000.0)
    """
    if text.strip().casefold().endswith(".toml"):
        return _read_file(Path(text.strip()))
    name, _, version = text.strip().casefold().replace("@", "==").partition("==")
    name = {"tensorrt-llm": "trtllm", "tensorrtllm": "trtllm"}.get(name.strip(), name.strip())
    if name not in NAMES:
        expected = f"{', '.join(NAMES)}, maybe with a version: vllm==0.19, or a .toml file"
        raise InputError(f"{parameter('engine', text)}: expected {expected}")
    asked = _numbers(version) if version else NEWEST
    if version and not asked:
        raise InputError(f"{parameter('engine', text)}: expected a version such as {name}==0.19")
    rows = [row for row in _document()["engine"] if row["name"] == name and _numbers(row["since"]) <= asked]
    row = rows[-1]
    return Engine(
        name=name,
        version=version,
        step_ns=row.get("a_ms", 0.0) * MS,
        sequence_ns=row["b_ms"] * MS,
        first_ns=row["f0_ms"] * MS,
        first_per_token_ns=_document()["text_ms"] * MS / 1e3,
        spread=max(row.get("spread", _document()["spread"]), 0.0 if version else UNSTATED_SPREAD),
        source=row["source"],
        splits_prompts=row.get("splits_prompts", True),
        keeps_prompts_whole=name == TENSORRT_LLM,
        held_steps=row.get("held_steps", 0),
        reserves=name == TENSORRT_LLM,
    )


def _read_file(path: Path) -> Engine:
    """Return the engine that a file of `as_file`'s keys names, with its numbers. Raises InputError for another file."""
    found = read_toml(path)
    texts = read_table({key: found.pop(key, "") for key in ("engine", "measured_on")}, dict[str, str], path.name)
    check_keys(found, _MEASURED, path.name)
    numbers = read_table(found, dict[str, float], path.name)
    if set(_MEASURED) - set(numbers) or (texts["engine"] not in NAMES and "==" not in texts["engine"]):
        raise InputError(f'{path.name}: expected engine = "vllm==0.19", and numbers {", ".join(_MEASURED)}')
    for key, value in numbers.items():
        low, high = (0.0, 1e4) if key.endswith("_ms") else (0.1, 10.0)
        if not low <= value <= high:
            raise InputError(f"{path.name}: {key}: expected a number from {low:g} to {high:g}, found {value:g}")
    ours: dict[str, Any] = {
        key.replace("_ms", "_ns"): value * (MS if key.endswith("_ms") else 1.0) for key, value in numbers.items()
    }
    return replace(read_engine(texts["engine"]), **ours, measured_on=texts["measured_on"], source=f"from {path.name}")


def engine_on(engine: Engine, gpu: Gpu, sizes: ModelSizes, precision: str) -> Engine:
    """Return the engine as it runs on a GPU: its limits there, and what data-centre Blackwell's hosts and kernels take.

    TensorRT-LLM's latent attention has no such correction.
    """
    memory = gpu.reported_memory_bytes or gpu.memory_bytes
    is_vllm = engine.name == "vllm"
    is_large = memory >= LARGE_MEMORY_BYTES and not (is_vllm and "A100" in gpu.name)
    has_many = is_large and is_vllm and (_numbers(engine.version) or NEWEST) >= (0, 9)
    budget = engine.budget or (LARGE_BUDGET if is_large else SMALL_BUDGET)
    sequences = engine.max_sequences or min(LARGE_SEQUENCES if has_many else SMALL_SEQUENCES, budget)
    engine = replace(engine, budget=budget, max_sequences=sequences)
    if not generation_at(gpu.compute_capability).has_tensor_memory:
        return engine
    known: Mapping[str, Any] = _document()["blackwell"]
    is_spared = engine.name == "trtllm" and sizes.is_latent
    ratio = 1.0 if is_spared else known[engine.name].get(precision.removesuffix("_block"), 1.0)
    return replace(engine, ratio=ratio, sequence_ns=engine.sequence_ns * known["host_ratio"])


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    return tomllib.loads(ENGINES_FILE.read_text(encoding="utf-8"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
