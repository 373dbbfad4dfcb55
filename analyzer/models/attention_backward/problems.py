"""Problems of attention's backward: those of the forward, and how the gradients are added up."""

from collections.abc import Sequence

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import AttentionDims, Work
from ..attention.problems import RATES, AttentionProblems, operand_bytes, problems_of as forward_problems_of, seen_pairs
from ..frame.problems import dims_of, problem_columns, rates_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BackwardProblems(AttentionProblems):
    """Hold the gradients of scaled dot-product attentions as columns."""

    is_deterministic: Codes
    """1: the queries' gradients are added up in the same order each time."""
    is_block_scaled: Codes
    """1: FP8 with a scale per 32 elements (MXFP8)."""
    lacks_clearing: Codes
    """1: the time leaves out what clears the queries' gradients, which are summed in fp32."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> BackwardProblems:
    """Return the problems of works with attention dims."""
    dims = dims_of(works, AttentionDims)
    return BackwardProblems(
        **problem_columns(forward_problems_of(works, rates)),
        is_deterministic=np.array([item.is_deterministic for item in dims], dtype=np.int64),
        is_block_scaled=np.zeros(len(dims), dtype=np.int64),
        lacks_clearing=np.zeros(len(dims), dtype=np.int64),
    )


def pair_flops(problems: AttentionProblems) -> Floats:
    """Return the FLOPs per pair of a query and a key: the scores again, then the gradients of all four operands."""
    return np.asarray(2.0 * (3.0 * problems.query_dim + 2.0 * problems.value_dim))


def least_work(problems: BackwardProblems) -> WorkTable:
    """Return the least that any kernel computes and moves: five products, every operand and gradient once."""
    p = problems
    dims, width = p.query_dim + p.value_dim, operand_bytes(p)
    queries = p.batch * p.heads * p.queries * (2.0 * p.query_dim + 2.0 * p.value_dim)
    keys = p.batch * p.kv_heads * p.keys * 2.0 * dims
    return WorkTable(
        flops=p.batch * p.heads * seen_pairs(p) * pair_flops(p),
        moved_bytes=(queries + keys) * width,
        rate=rates_of(p.arithmetic, RATES),
    )
