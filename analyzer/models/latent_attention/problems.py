"""Latent attentions as columns."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import LatentAttentionDims, Work
from ..frame.problems import RATES, copies_between, dims_of, element_bytes, rate_codes, rates_of, shared_columns

COLD_COPIES: Final = 6.0
"""Working sets between two uses of the same one, as for attention: in a step the rest of the model lies between."""
FP8_RATE: Final = RATES.index(Rate.MATRIX_FP8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatentAttentionProblems:
    """Hold latent attentions as columns."""

    batch: Floats
    heads: Floats
    queries: Floats
    keys: Floats
    query_dim: Floats
    value_dim: Floats
    is_absorbed: Codes
    """1: all heads read one latent per token, whose first dims are the values."""
    is_causal: Codes
    kernel: Codes
    """`LatentKernel`."""
    rate: Codes
    """Index into `RATES` of frame/problems."""
    element_bytes: Floats
    cache_bytes: Floats
    """Per element of the latent, or of keys and values."""
    copies: Floats
    """Working sets of this size between two uses of the same one; 1: the same tensors again and again."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> LatentAttentionProblems:
    """Return the problems of works with the sizes of latent attention, on the units of `rates`."""
    dims = dims_of(works, LatentAttentionDims)

    return LatentAttentionProblems(
        **shared_columns(LatentAttentionProblems, dims, LatentAttentionDims),
        rate=rate_codes(rates),
        element_bytes=element_bytes(rates),
        copies=np.array([copies_between(work, COLD_COPIES) for work in works], dtype=np.float64),
    )


def cached_elements(p: LatentAttentionProblems) -> Floats:
    """Return the elements of keys and values of all sequences."""
    per_key = np.where(p.is_absorbed == 1, p.query_dim, p.heads * (p.query_dim + p.value_dim))
    return np.asarray(p.batch * p.keys * per_key)


def seen_share(p: LatentAttentionProblems) -> Floats:
    """Return the share of the scores that a causal mask leaves, aligned at the end."""
    return np.where(p.is_causal == 1, 1.0 - (np.minimum(p.queries, p.keys) - 1.0) / (2.0 * p.keys), 1.0)


def least_work(p: LatentAttentionProblems) -> WorkTable:
    """Return the least that any kernel of the form computes and moves; FP8 caches may be multiplied as they are."""
    rows = p.batch * p.heads * p.queries
    dims = p.query_dim + p.value_dim
    return WorkTable(
        flops=2.0 * rows * p.keys * seen_share(p) * dims,
        moved_bytes=rows * dims * np.minimum(p.element_bytes, p.cache_bytes) + cached_elements(p) * p.cache_bytes,
        rate=rates_of(np.where(p.cache_bytes == 1.0, FP8_RATE, p.rate)),
    )
