"""How many tokens a GPU's memory caches beside the weights."""

from __future__ import annotations

from typing import Final

from ....records import dataclass
from ....specs.gpu import Gpu, is_hbm
from ...memory.fit import UNREPORTED_RATIO
from .engines import Engine
from .formats import weight_bytes
from .ops import ServePlan
from .sizes import ModelSizes

CONTEXT_BYTES: Final = 0.55e9
"""What driver, kernels and graphs take on each GPU."""
ACTIVATION_COPIES: Final = 4.0
"""Widest activations of a whole budget that are alive at once, in 16 bits."""
LOGIT_BYTES: Final = 16.0
"""Per sequence and word: logits, and what sampling copies of them, four times 32 bits."""
REST_LOW, REST_HIGH = 0.6, 2.5
"""The rest beside weights and cache, between these times what is taken: declared. One measured value is known: vLLM
0.19 on an RTX 4090 (LLMServingSim's log) keeps 1.24 GB beside weights and cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Hold what one replica's GPUs can cache; bytes are of one GPU."""

    memory_bytes: float
    """Of which the engine may use its share."""
    weight_bytes: float
    rest_bytes: float
    """Activations, logits, context."""
    token_bytes: float
    tokens: int
    """That are cached at most, of a replica of attention; negative where the weights alone do not fit."""
    low_tokens: int
    high_tokens: int


def capacity_of(
    sizes: ModelSizes, plan: ServePlan, precision: str, gpu: Gpu, engine: Engine, *, cache_bytes: float, context: float
) -> Capacity:
    """Return the cache that is left. `context`: tokens of a usual sequence, which layers with windows keep less of.

    tokens = (share * memory - weights - rest) / bytes of a token
    """
    memory = float(gpu.reported_memory_bytes or gpu.memory_bytes * _reported_ratio(gpu))
    blocks, experts, tables = weight_bytes(sizes, precision)
    weights = blocks / plan.tp + experts / plan.gpus + tables / plan.tp
    widest = max(2 * sizes.intermediate, 2 * sizes.shared_intermediate, sizes.top_k * sizes.hidden) / plan.tp
    activations = ACTIVATION_COPIES * engine.budget * (sizes.hidden + widest / 2.0)
    logits = engine.max_sequences * sizes.vocab * LOGIT_BYTES
    rest = CONTEXT_BYTES + activations + logits
    kept = 1.0 - sizes.window_share * (1.0 - min(1.0, sizes.window / max(context, 1.0))) if sizes.window else 1.0
    # Heads of keys are shared out among ranks as far as there are any; a latent is kept whole by each.
    split = 1.0 if sizes.is_latent else min(float(plan.tp), float(sizes.kv_heads))
    token = sizes.layers * sizes.cached_elements * cache_bytes * kept / split
    left = engine.memory_share * memory - weights
    return Capacity(
        memory_bytes=memory,
        weight_bytes=weights,
        rest_bytes=rest,
        token_bytes=token,
        tokens=int((left - rest) // token),
        low_tokens=int((left - REST_HIGH * rest) // token),
        high_tokens=int((left - REST_LOW * rest) // token),
    )


def _reported_ratio(gpu: Gpu) -> float:
    if gpu.vendor in ("AMD", "Intel"):
        return UNREPORTED_RATIO[gpu.vendor.casefold()].typical
    return UNREPORTED_RATIO["hbm" if is_hbm(gpu.memory_type) else "gddr with ecc" if gpu.has_ecc else "gddr"].typical
