"""The op models, one row each: what it predicts, and where its parts are.

A family of models is one folder here: `problems.py` turns works into problems and says their least work, another module
holds the `Model`. The rooms above have a module of the family's name: `measurements/` what reads its measurements,
`mlp_weights/train/` how it is trained. A row names the parts; each room looks up its own when it is asked for.

`assign_models` groups an iteration's works by these rows.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...records import dataclass, replace
from ...specs.fleet import Fleet
from ...specs.generations import is_amd
from ...specs.gpu import Rate
from ..work import Family, Work
from ..work.communication import CollectiveDims
from ..work.embedding_dims import EmbeddingDims
from ..work.indices import Spread
from ..work.table import WorkTable
from ..work.work import (
    AttentionDims,
    ConvolutionDims,
    Direction,
    ExpertsDims,
    LatentAttentionDims,
    MatmulDims,
    RecurrentDims,
    RowDims,
    StateSpaceDims,
)
from .embedding.problems import with_distinct, with_indices
from .frame.model import Model
from .frame.problems import Problems
from .matmul.problems import MatmulKernel, kernel_of

VECTOR_UNITS: Final = frozenset({Rate.FP32, Rate.MATRIX_FP32, Rate.FP64, Rate.MATRIX_FP64})
"""Products in these formats run on vector units on most GPUs, with kernels of their own."""
UNLIKE_COPIES: Final = frozenset(
    {
        *(Family.ATTENTION, Family.CONVOLUTION, Family.STATE_SPACE, Family.EXPERTS),
        *(Family.COLLECTIVE, Family.SORT, Family.VIEW),
    }
)
"""Families of which, without their sizes, bytes alone tell nothing. Recurrent ones are layers, on matrix units, or a
fused cell's gates, which are elementwise."""
FEW_QUERIES: Final = 8
KEYS_PER_QUERY: Final = 32
"""Up to so many queries, on a cache so many times as long, are speculative decoding: too few rows for blocks of queries
to fill a GPU, so that kernels split the keys, as for one query. No measurement tells where they stop to."""


def _is_any(_work: Work, _rate: Rate) -> bool:
    return True


def _is_plain_product(work: Work, rate: Rate) -> bool:
    return rate not in VECTOR_UNITS and kernel_of(work, rate) is MatmulKernel.PLAIN


def _is_on_matrix_units(_work: Work, rate: Rate) -> bool:
    return rate not in VECTOR_UNITS


def _is_gradient(work: Work, _rate: Rate) -> bool:
    return isinstance(work.dims, AttentionDims) and work.dims.direction is not Direction.FORWARD


def _has_many_queries(work: Work, _rate: Rate) -> bool:
    dims = work.dims
    if not isinstance(dims, AttentionDims):
        return False
    return dims.keys <= 1 or dims.queries > FEW_QUERIES or dims.queries > max(dims.keys / KEYS_PER_QUERY, 1)


def _walks_over_rows(work: Work, _rate: Rate) -> bool:
    return isinstance(work.dims, RowDims) and work.dims.kernel is not None


def _is_mostly_moves(work: Work, _rate: Rate) -> bool:
    waits = isinstance(work.dims, RowDims) and work.dims.is_by_list
    return not work.is_matrix and not waits and work.family not in UNLIKE_COPIES


@dataclass(frozen=True, slots=True, kw_only=True)
class OpModel:
    """Name one op model and its parts."""

    name: str
    """Also the name of its weights file."""
    family: str
    """Its folder here, and its module in `measurements/`."""
    dims: type | None
    """The sizes of the works that it predicts; None: works of sizes that no model names, and without any."""
    covers: Callable[[Work, Rate], bool] = _is_any
    """Says which of these works it predicts, on the unit of that rate, beside those that an earlier row does."""
    model: str = "model.MODEL"
    """Its `Model`, by module and name in the family's folder."""
    is_measured: bool = True
    """Whether there are measurements of it: without, it has no reader, recipe and least work, and keeps its priors."""
    reader: str = "load_samples"
    """The function that reads its measurements."""
    amd: str | None = None
    """The model of the same works on AMD's GPUs, which run another library; None: this one."""


_ROWS: Final = (
    OpModel(name="matmul", family="matmul", dims=MatmulDims, covers=_is_plain_product),
    OpModel(
        name="matmul_quantized",
        family="matmul",
        dims=MatmulDims,
        covers=_is_on_matrix_units,
        model="quantized.QUANTIZED",
        reader="load_quantized_samples",
    ),
    OpModel(name="matmul_simt", family="matmul_simt", dims=MatmulDims),
    OpModel(name="attention_backward", family="attention_backward", dims=AttentionDims, covers=_is_gradient),
    OpModel(
        name="attention_prefill",
        family="attention",
        dims=AttentionDims,
        covers=_has_many_queries,
        model="prefill.PREFILL",
        reader="load_prefill",
    ),
    OpModel(
        name="attention_decode", family="attention", dims=AttentionDims, model="decode.DECODE", reader="load_decode"
    ),
    OpModel(name="reduction", family="reduction", dims=None, covers=_walks_over_rows),
    OpModel(name="vector", family="vector", dims=None, covers=_is_mostly_moves),
    OpModel(name="convolution", family="convolution", dims=ConvolutionDims, amd="convolution_miopen"),
    OpModel(name="convolution_miopen", family="convolution", dims=ConvolutionDims, model="amd.MODEL"),
    OpModel(name="recurrent", family="recurrent", dims=RecurrentDims),
    OpModel(name="latent_attention", family="latent_attention", dims=LatentAttentionDims, reader="load_scored"),
    OpModel(name="state_space", family="state_space", dims=StateSpaceDims),
    OpModel(name="experts", family="experts", dims=ExpertsDims),
    OpModel(name="collective", family="collective", dims=CollectiveDims),
    OpModel(name="embedding", family="embedding", dims=EmbeddingDims, is_measured=False),
)
OP_MODELS: Final[Mapping[str, OpModel]] = {row.name: row for row in _ROWS}
"""By name; in this order measurements are read and models trained."""
_BY_DIMS: Final = {dims: tuple(row for row in _ROWS if row.dims is dims) for dims in {row.dims for row in _ROWS}}


def model_of(work: Work, rate: Rate) -> OpModel | None:
    """Return the model that covers a work, on AMD's GPUs by its `amd`; None where there is none."""
    for row in _BY_DIMS.get(type(work.dims), _BY_DIMS[None]):
        if row.covers(work, rate):
            return row
    return None


def columns_of(model: str, fleet: Fleet) -> npt.NDArray[np.int64]:
    """Return which GPUs of a fleet run the kernels of a model, as indices.

    >>> columns_of("convolution", fleet), columns_of("convolution_miopen", fleet)
    (array([0, 1]), array([], dtype=int64))
    """
    is_of_amd, is_for_amd = is_amd(fleet), any(row.amd == model for row in _ROWS)
    return np.flatnonzero(is_of_amd if is_for_amd else ~is_of_amd | (OP_MODELS[model].amd is None))


def load_model(row: OpModel) -> Model[Any]:
    """Import the simulator of a model and what is fitted in it."""
    module, name = row.model.split(".")
    model: Model[Any] = getattr(import_module(f".{row.family}.{module}", __package__), name)
    return model


def problems_of(row: OpModel, works: Sequence[Work], rates: Sequence[Rate]) -> Problems:
    """Return works that a model covers as its problems.

    >>> problems_of(OP_MODELS["vector"], [], []).kind.shape
    (0,)
    """
    problems: Problems = _problems_module(row).problems_of(works, rates)
    return problems


def least_work(row: OpModel, problems: Problems) -> WorkTable:
    """Return the least that any kernel computes and moves for problems of a measured model.

    >>> least_work(OP_MODELS["matmul"], problems).moved_bytes.shape
    (5,)
    """
    found: WorkTable = _problems_module(row).least_work(problems)
    return found


def _problems_module(row: OpModel) -> Any:
    return import_module(f".{row.family}.problems", __package__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Hold the rows that one model predicts, on the GPUs of `columns_of`, as its problems: columns [n]."""

    model: str
    rows: npt.NDArray[np.int64]
    problems: Problems


def assign_models(
    works: Sequence[Work | None],
    rates: npt.NDArray[np.object_],
    available: Container[str],
    indices: Spread | None = None,
) -> list[Assignment]:
    """Group works by the model that covers them; works without a model, or whose model is not at hand, are left out.

    `indices` says how lookups in embedding tables are spread over rows, where that is known.

    >>> assigned = assign_models(workload.works, workload.work.rate, library.fitted)
    >>> [(found.model, len(found.rows)) for found in assigned]
    [('vector', 5), ('reduction', 2), ('matmul', 5), ('attention_prefill', 1)]
    """
    works = [work and with_distinct(with_indices(work, indices), indices) for work in works]
    rows_of: dict[str, list[int]] = {}
    for row, (work, rate) in enumerate(zip(works, rates.tolist(), strict=True)):
        # Where some dimension is 0, an op launches a kernel that does nothing, if any.
        model = None if work is None or (work.is_matrix and work.flops <= 0) else model_of(work, rate)
        if model is not None and model.name in available:
            rows_of.setdefault(model.name, []).append(row)
    found = [_assign(OP_MODELS[name], rows, works, rates) for name, rows in rows_of.items()]
    pairs = ((item, OP_MODELS[item.model].amd) for item in found)
    return [*found, *(replace(item, model=amd) for item, amd in pairs if amd and amd in available)]


def _assign(
    model: OpModel, rows: Sequence[int], works: Sequence[Work | None], rates: npt.NDArray[np.object_]
) -> Assignment:
    chosen = [work for row in rows if (work := works[row]) is not None]
    problems = problems_of(model, chosen, [rates[row] for row in rows])
    return Assignment(model=model.name, rows=np.array(rows, dtype=np.int64), problems=problems)
