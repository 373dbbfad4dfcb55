"""How many rows each expert multiplies: what the choice of experts leaves to one expert-parallel rank.

Three ways of choosing, by `skew`:

- 0, *balanced*: each token's choices lie at equal strides, the next token's one further. All experts take alike.
- a power law: the shares of experts are those of a density p(x) ~ x^-skew on [1, 0.8 T], T tokens (on [0.01, 2] while
  there are fewer choices than experts), no expert more than T rows. Which rank an expert is on is drawn (seeded), and
  the busiest rank counts. This is how the collector of `ops/moe.parquet` draws them (ai-dynamo/aiconfigurator).
- unknown: each token takes its experts at random, all alike likely, so that an expert's rows are binomial.
"""

from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

from ....arrays import Floats
from ....records import dataclass

HEIGHTS: Final = (16, 32, 64, 128, 256)
"""Rows of the tiles to which experts' rows are padded."""
UNKNOWN: Final = -1.0
"""`skew` of tokens that choose experts at random."""
DRAWS: Final = 6
"""Placements of experts on ranks that a load is the mean of; the collector draws five."""
SEED: Final = 20260101
MOST_SHARE: Final = 0.8
"""Of all tokens, the upper end of the power law."""
FEW_RANGE: Final = (0.01, 2.0)
"""Its ends while there are fewer choices than experts."""
SMALL_MEAN: Final = 40.0
"""Rows per expert up to which they are counted from the Poisson distribution; the normal one beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """Hold what one rank multiplies; numbers are means over placements, hence no whole ones."""

    rows: float
    """Pairs of a token and one of this rank's experts."""
    busy: float
    """Experts that have a row: their weights are read."""
    most: float
    """Rows of the busiest expert."""
    blocks: tuple[float, ...]
    """Tiles that all experts' rows fill, per height of `HEIGHTS`."""


@lru_cache(maxsize=65536)
def rank_load(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> RankLoad:
    """Return the load of the busiest of `ranks` that share out the experts, for tokens of all ranks together.

    >>> load = rank_load(tokens=4096, top_k=8, experts=256, ranks=32, skew=0.0)
    >>> load.rows, load.busy, load.blocks[3]
    (1024.0, 8.0, 8.0)
    >>> rank_load(tokens=4096, top_k=8, experts=256, ranks=32, skew=1.2).rows > 2 * load.rows
    True
    """
    here = max(experts // max(ranks, 1), 1)
    if tokens <= 0 or top_k <= 0:
        return RankLoad(rows=0.0, busy=0.0, most=0.0, blocks=(0.0,) * len(HEIGHTS))
    if skew == 0.0:
        counts = balanced_rows(tokens, top_k, experts)[None, :here]
    elif skew < 0.0:
        counts = random_rows(tokens, top_k, experts, here)[None]
    else:
        counts = _busiest(power_law_rows(tokens, top_k, experts, skew), tokens * top_k, tokens, here)
    return load_of(counts)


def load_of(counts: Floats) -> RankLoad:
    """Return the load of experts' rows [placements, experts]."""
    blocks = tuple(float(np.ceil(counts / height).sum(axis=1).mean()) for height in HEIGHTS)
    return RankLoad(
        rows=float(counts.sum(axis=1).mean()),
        busy=float((counts > 0).sum(axis=1).mean()),
        most=float(counts.max(axis=1).mean()),
        blocks=blocks,
    )


def balanced_rows(tokens: int, top_k: int, experts: int) -> Floats:
    """Return each expert's rows where choices lie at equal strides, [experts]."""
    stride = -(-experts // top_k)
    first = np.arange(tokens) if tokens >= stride else np.arange(tokens) * stride // tokens
    starts = np.bincount(first % experts, minlength=experts)
    return np.asarray(sum(np.roll(starts, choice * stride % experts) for choice in range(top_k)), dtype=np.float64)


def power_law_rows(tokens: int, top_k: int, experts: int, skew: float) -> Floats:
    """Return experts' rows under a power law, [experts]: its quantiles, rounded, not yet of the right sum."""
    chosen = tokens * top_k
    low, high = (1.0, max(tokens * MOST_SHARE, 1.0)) if chosen > experts else FEW_RANGE
    middle = (np.arange(experts) + 0.5) / experts
    exponent = 1.0 - skew
    if abs(exponent) < 1e-9:
        drawn = low * (high / low) ** middle
    else:
        drawn = (low**exponent + (high**exponent - low**exponent) * middle) ** (1.0 / exponent)
    return np.asarray(np.minimum(np.round(drawn / drawn.sum() * chosen), tokens))


def _busiest(rows: Floats, total: int, most: int, here: int) -> Floats:
    """Return the rows of the busiest rank's experts, [draws, here], for rows of all experts and what they sum to.

    What rounding took off or added is made good rank by rank in turn, at their least or largest experts.
    """
    ranks = len(rows) // here
    generator = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWS if ranks > 1 else 1):
        placed = np.sort(generator.permutation(rows)[: ranks * here].reshape(ranks, here), axis=1)
        missing = int(total - placed.sum())
        per_rank = abs(missing) // ranks + (np.arange(ranks) < abs(missing) % ranks)
        each, more = per_rank // here, per_rank % here
        if missing > 0:
            placed += each[:, None] + (np.arange(here) < more[:, None])
        else:
            placed -= each[:, None] + (np.arange(here)[::-1] < more[:, None])
        found.append(np.clip(placed[placed.sum(axis=1).argmax()], 0.0, most))
    return np.stack(found)


def random_rows(tokens: int, top_k: int, experts: int, here: int) -> Floats:
    """Return quantiles of the rows of one rank's experts where tokens choose at random, [here]."""
    mean = tokens * top_k / experts
    middle = (np.arange(here) + 0.5) / here
    if mean > SMALL_MEAN:
        normal = _normal_quantiles(here) * np.sqrt(mean * (1.0 - top_k / experts))
        return np.asarray(np.clip(np.round(mean + normal), 0, tokens), dtype=np.float64)
    counts = np.arange(int(mean + 12.0 * np.sqrt(mean) + 12.0))
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(mean, 1e-300) / counts[1:]))]) - mean
    return np.asarray(np.minimum(np.searchsorted(np.cumsum(np.exp(logs)), middle), tokens), dtype=np.float64)


@lru_cache(maxsize=64)
def _normal_quantiles(count: int) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf((row + 0.5) / count) for row in range(count)])
