"""Layers of experts as columns."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import ExpertsDims, ExpertsFormat, Work
from ..frame.problems import copies_between, dims_of, element_bytes, rate_codes, rates_of
from .routing import HEIGHTS, UNKNOWN, RankLoad, rank_load

ANY_KERNEL: Final = -1
"""`kernel` of a problem that takes each GPU's default."""
COLD_COPIES: Final = 6.0
"""Working sets between two uses of the same weights in traces, where nothing tells: all other layers'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatBytes:
    """Hold what a format's elements take, with their scales, and on which unit it is computed."""

    inputs: float
    weights: float
    rate: Rate | None
    """None: the one of the op's own dtype."""


FORMAT_BYTES: Final[Mapping[ExpertsFormat, FormatBytes]] = {
    ExpertsFormat.PLAIN: FormatBytes(inputs=2.0, weights=2.0, rate=None),
    ExpertsFormat.FP8: FormatBytes(inputs=1.0, weights=1.0, rate=Rate.MATRIX_FP8),
    ExpertsFormat.FP8_BLOCK: FormatBytes(inputs=1.03, weights=1.0, rate=Rate.MATRIX_FP8),
    ExpertsFormat.FP4: FormatBytes(inputs=0.5625, weights=0.5625, rate=Rate.MATRIX_FP4),
    ExpertsFormat.W4A8: FormatBytes(inputs=1.03, weights=0.53125, rate=Rate.MATRIX_FP8),
    ExpertsFormat.W4A16: FormatBytes(inputs=2.0, weights=0.53125, rate=None),
    ExpertsFormat.W8A16: FormatBytes(inputs=2.0, weights=1.0, rate=None),
}
"""A scale of fp32 per 128 elements of a row, of 8 bits per 16 (nvfp4) or 32 (mxfp4) elements."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertsProblems:
    """Hold layers of experts as columns."""

    tokens: Floats
    """That enter the layer."""
    choices: Floats
    """Pairs of a token and any expert, of other ranks too."""
    rows: Floats
    """Pairs of a token and one of this rank's experts."""
    busy: Floats
    """Experts that have rows."""
    most: Floats
    """Rows of the busiest."""
    blocks_16: Floats
    """Tiles of so many rows that all experts' rows fill."""
    blocks_32: Floats
    blocks_64: Floats
    blocks_128: Floats
    blocks_256: Floats
    hidden: Floats
    """Depth of the first product."""
    columns: Floats
    """Of the first product: twice the intermediate size where it is gated."""
    intermediate: Floats
    """Depth of the second product."""
    experts: Floats
    """That the routing chooses among."""
    local_experts: Floats
    input_bytes: Floats
    """Per element, with scales."""
    weight_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/problems."""
    format: Codes
    """`ExpertsFormat`."""
    kernel: Codes
    """`ExpertsKernel`, or `ANY_KERNEL`."""
    quantized: Codes
    """Whether the layer converts its 16-bit inputs itself."""
    copies: Floats
    """Sets of weights between two uses of the same ones."""


_SIZES: Final = ("tokens", "hidden", "intermediate", "experts", "local_experts")


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> ExpertsProblems:
    """Return the problems of layers of experts on the units of `rates`."""
    dims = dims_of(works, ExpertsDims)
    formats = [item.weights for item in dims]
    found = [FORMAT_BYTES[item] for item in formats]
    own = element_bytes(rates)
    is_plain = np.array([item is ExpertsFormat.PLAIN for item in formats], dtype=bool)
    kernels = [ANY_KERNEL if item.kernel is None else int(item.kernel) for item in dims]
    return ExpertsProblems(
        **{name: np.array([float(getattr(item, name)) for item in dims]) for name in _SIZES},
        choices=np.array([float(item.tokens * item.top_k) for item in dims]),
        columns=np.array([float(item.intermediate * (2 if item.is_gated else 1)) for item in dims]),
        **load_columns([_load(item) for item in dims]),
        input_bytes=np.where(is_plain, own, [item.inputs for item in found]),
        weight_bytes=np.where(is_plain, own, [item.weights for item in found]),
        rate=rate_codes([item.rate or rate for item, rate in zip(found, rates, strict=True)]),
        format=np.array([int(item) for item in formats], dtype=np.int64),
        kernel=np.array(kernels, dtype=np.int64),
        quantized=np.array([item.is_quantized for item in dims], dtype=np.int64),
        copies=np.array([copies_between(work, COLD_COPIES) for work in works]),
    )


def load_columns(loads: Sequence[RankLoad]) -> dict[str, Floats]:
    """Return loads as columns by the names of `ExpertsProblems`.

    >>> from wavecast.analyzer.models.experts.routing import rank_load
    >>> load_columns([rank_load(tokens=4096, top_k=8, experts=256, ranks=32, skew=0.0)])["rows"]
    array([1024.])
    """
    blocks = np.array([item.blocks for item in loads], dtype=np.float64).reshape(len(loads), len(HEIGHTS))
    return {
        "rows": np.array([item.rows for item in loads], dtype=np.float64),
        "busy": np.array([item.busy for item in loads], dtype=np.float64),
        "most": np.array([item.most for item in loads], dtype=np.float64),
        **{f"blocks_{height}": blocks[:, row].copy() for row, height in enumerate(HEIGHTS)},
    }


def _load(dims: ExpertsDims) -> RankLoad:
    ranks = max(dims.experts // max(dims.local_experts, 1), 1)
    skew = UNKNOWN if dims.skew is None else dims.skew
    return rank_load(dims.tokens, dims.top_k, dims.experts, ranks, skew)


def least_work(problems: ExpertsProblems) -> WorkTable:
    """Return the least that any kernel computes and moves: busy experts' weights and the tokens, once.

    Tokens come and go in 16 bits.
    """
    p = problems
    weights = p.busy * (p.hidden * p.columns + p.intermediate * p.hidden)
    flops = 2.0 * p.rows * (p.hidden * p.columns + p.intermediate * p.hidden)
    ends = 2.0 * np.minimum(p.rows, p.tokens) * p.hidden * 2.0
    return WorkTable(flops=flops, moved_bytes=weights * p.weight_bytes + ends, rate=rates_of(p.rate))
