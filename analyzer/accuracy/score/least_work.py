"""The least work of measured problems, for their rooflines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats
from ....specs.gpu import Rate
from ...measurements.samples import Samples
from ...work.table import WorkTable


def least_work(samples: Samples[Any]) -> WorkTable | None:
    """Return the least work of each row; None where nobody knows it."""
    if samples.work is not None:
        return samples.work
    rule = WORKS.get(samples.model)
    return None if rule is None else rule(samples.problems)


def take_work(work: WorkTable, rows: npt.NDArray[Any]) -> WorkTable:
    """Return some rows of a table of work."""
    return WorkTable(flops=work.flops[rows], moved_bytes=work.moved_bytes[rows], rate=work.rate[rows])


def _matmul(problems: Any) -> WorkTable:
    """Each operand and the result once."""
    from ...models.matmul.problems import RATES

    m, n, k = problems.m, problems.n, problems.k
    moved = m * k * problems.left_bytes + k * n * problems.right_bytes + m * n * problems.out_bytes
    rate = _named(RATES, problems.rate)
    return WorkTable(flops=2.0 * problems.batch * m * n * k, moved_bytes=problems.batch * moved, rate=rate)


def _matmul_simt(problems: Any) -> WorkTable:
    """Each operand and the result once."""
    from ...models.matmul_simt.model import RATES

    m, n, k = problems.m, problems.n, problems.k
    moved = problems.batch * (m * k + k * n + m * n) * problems.element_bytes
    return WorkTable(flops=2.0 * problems.batch * m * n * k, moved_bytes=moved, rate=_named(RATES, problems.rate))


def _vector(problems: Any) -> WorkTable:
    """One operation per element, each tensor moved once."""
    return WorkTable(
        flops=problems.elements,
        moved_bytes=problems.read_bytes + problems.written_bytes,
        rate=_same(Rate.FP32, problems.elements),
    )


def _convolution(problems: Any) -> WorkTable:
    """The direct algorithm's operations; Winograd's and FFT kernels need fewer."""
    from ...models.convolution.problems import RATES

    products = problems.m * problems.n * problems.k * problems.groups
    return WorkTable(flops=2.0 * products, moved_bytes=problems.moved_bytes, rate=_named(RATES, problems.rate))


def _attention(problems: Any) -> WorkTable:
    """Both products over the keys that each query sees; queries, keys, values and output moved once."""
    from ...models.attention.problems import RATES, operand_bytes

    queries, keys = problems.queries, problems.keys
    most = np.where(problems.window > 0, np.minimum(problems.window, keys), keys)
    seen = np.where(problems.is_causal > 0, _causal_pairs(queries, keys, most), queries * most)
    width = problems.query_dim + problems.value_dim
    here = problems.batch * problems.heads
    cached = problems.batch * problems.kv_heads * np.minimum(keys, most + queries) * width * problems.kv_bytes
    return WorkTable(
        flops=2.0 * here * seen * width,
        moved_bytes=here * queries * width * operand_bytes(problems) + cached,
        rate=_named(RATES, problems.arithmetic),
    )


def _causal_pairs(queries: Floats, keys: Floats, most: Floats) -> Floats:
    """Return the pairs of a query and a key that it sees: the last `most` keys up to its own place."""
    first = keys - queries + 1.0
    growing = np.clip(most - first, 0.0, queries)
    return np.asarray(growing * first + growing * (growing - 1.0) / 2.0 + (queries - growing) * most)


def _named(rates: tuple[Rate, ...], codes: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
    table = np.empty(len(rates), dtype=object)
    table[:] = rates
    return np.asarray(table[codes.astype(np.int64)])


def _same(rate: Rate, like: Floats) -> npt.NDArray[np.object_]:
    found = np.empty(len(like), dtype=object)
    found[:] = rate
    return found


WORKS: Final[Mapping[str, Callable[[Any], WorkTable]]] = {
    "matmul": _matmul,
    "matmul_quantized": _matmul,
    "matmul_simt": _matmul_simt,
    "vector": _vector,
    "convolution": _convolution,
    "attention_prefill": _attention,
    "attention_decode": _attention,
}
"""By model."""
