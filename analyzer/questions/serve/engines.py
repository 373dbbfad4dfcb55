"""Serving engines as data: what one adds to its kernels' times, by version, and how it batches."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any, Final

from ....errors import InputError, parameter
from ....records import dataclass, replace
from ....specs.generations import generation_at
from ....specs.gpu import Gpu
from .sizes import ModelSizes

ENGINES_FILE: Final = Path(__file__).with_name("engines.toml")
NAMES: Final = ("vllm", "sglang", "trtllm")
NEWEST: Final = (999,)
UNSTATED_SPREAD: Final = 0.20
"""90 % half-width, natural log, of a step where no version is given; with one it is the row's `spread`."""
LARGE_BUDGET: Final = 8192
SMALL_BUDGET: Final = 2048
"""Tokens of a step: vLLM's `max_num_batched_tokens` of a server with 70 GiB or more, and of smaller ones."""
LARGE_MEMORY_BYTES: Final = 70.0 * 2**30
FULL_EFFECT: Final = 256.0
NO_EFFECT: Final = 1024.0
"""Tokens of a step up to which small products count as in `engines.toml`, and from which on not."""
MS: Final = 1e6


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
    first_steps: float
    spread: float
    """90 % half-width of a step's time, natural log."""
    source: str
    budget: int = 0
    """Tokens of a step; 0: by the GPU's memory."""
    max_sequences: int = 256
    memory_share: float = 0.9
    splits_prompts: bool = True
    """Whether prompts' chunks run beside sequences that decode; else in steps of their own."""
    ratio: float = 1.0
    """Of small steps to the kernels' own times."""

    def kernel_ratio(self, tokens: float) -> float:
        """Return by what a step's kernels differ from their times alone."""
        if self.ratio == 1.0 or tokens >= NO_EFFECT:
            return 1.0
        fade = max(log(tokens / FULL_EFFECT), 0.0) / log(NO_EFFECT / FULL_EFFECT) if tokens > 0 else 0.0
        return self.ratio + (1.0 - self.ratio) * fade


def read_engine(text: str) -> Engine:
    """Return the engine that `vllm`, or `vllm==0.12`, names. Raises InputError for another.

    >>> read_engine("vllm==0.12").sequence_ns, read_engine("vllm").sequence_ns
    (44000.0, 6000.0)
    """
    name, _, version = text.strip().casefold().replace("@", "==").partition("==")
    name = {"tensorrt-llm": "trtllm", "tensorrtllm": "trtllm"}.get(name.strip(), name.strip())
    if name not in NAMES:
        raise InputError(f"{parameter('engine', text)}: expected {', '.join(NAMES)}, maybe with a version: vllm==0.19")
    asked = _numbers(version) if version else NEWEST
    if version and not asked:
        raise InputError(f"{parameter('engine', text)}: expected a version such as {name}==0.19")
    rows = [row for row in _document()["engine"] if row["name"] == name and _numbers(row["since"]) <= asked]
    row = rows[-1]
    return Engine(
        name=name,
        version=version,
        step_ns=row["a_ms"] * MS,
        sequence_ns=row["b_ms"] * MS,
        first_ns=row["f0_ms"] * MS,
        first_per_token_ns=row["f1_ms"] * MS / 1e3,
        first_steps=row["w_steps"],
        spread=row["spread"] if version else max(UNSTATED_SPREAD, row["spread"]),
        source=row["source"],
        splits_prompts=row.get("splits_prompts", True),
    )


def engine_on(engine: Engine, gpu: Gpu, sizes: ModelSizes, precision: str) -> Engine:
    """Return the engine as it runs on a GPU: its budget there, and what data-centre Blackwell's hosts and kernels take.

    TensorRT-LLM's latent attention has no such correction.
    """
    memory = gpu.reported_memory_bytes or gpu.memory_bytes
    budget = engine.budget or (LARGE_BUDGET if memory >= LARGE_MEMORY_BYTES else SMALL_BUDGET)
    if not generation_at(gpu.compute_capability).has_tensor_memory:
        return replace(engine, budget=budget)
    known: Mapping[str, Any] = _document()["blackwell"]
    is_spared = engine.name == "trtllm" and sizes.is_latent
    ratio = 1.0 if is_spared else known[engine.name].get(precision, 1.0)
    return replace(engine, budget=budget, ratio=ratio, sequence_ns=engine.sequence_ns * known["host_ratio"])


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    return tomllib.loads(ENGINES_FILE.read_text(encoding="utf-8"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
