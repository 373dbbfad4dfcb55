"""Multi-head latent attention: all heads read one short latent per token (DeepSeek-V2, arXiv 2405.04434, section 2.1).

Absorbed, the projection of keys multiplies the queries instead: d = 512 + 64 dims per key, of which the first e = 512
are the values, the same for all heads. Else each head has its own keys (d = 128 + 64) and values (e = 128).
"""

from __future__ import annotations

from typing import Final

from ...formats.trace.signature import DTYPE_BYTES
from .work import Family, LatentAttentionDims, Work

DEFAULT_BYTES: Final = 2


def latent_attention_work(dims: LatentAttentionDims, dtype: str) -> Work:
    """Return 2·b·h·q·k·(d + e) FLOPs, and the bytes of queries, keys and values, and results.

    The projections before and after, and what builds keys and values from the latent, are products of their own.

    >>> dims = LatentAttentionDims(batch=64, heads=128, queries=1, keys=8192)
    >>> latent_attention_work(dims, "bfloat16").read_bytes / 1e6
    613.41696
    """
    width = DTYPE_BYTES.get(dtype, DEFAULT_BYTES)
    rows = dims.batch * dims.heads * dims.queries
    return Work(
        family=Family.ATTENTION,
        flops=2 * rows * dims.keys * (dims.query_dim + dims.value_dim),
        read_bytes=rows * dims.query_dim * width + dims.batch * dims.keys * key_elements(dims) * dims.cache_bytes,
        written_bytes=rows * dims.value_dim * width,
        dtype=dtype,
        is_matrix=True,
        dims=dims,
    )


def key_elements(dims: LatentAttentionDims) -> int:
    """Return the elements that keys and values have per token: one latent, or those of every head."""
    return dims.query_dim if dims.is_absorbed else dims.heads * (dims.query_dim + dims.value_dim)
