"""The error that all times from shapes alone share on one GPU, by precision and kind of iteration.

The board, its clocks under load, the software, and what ops in a network do otherwise than alone in a loop.
mlp_weights/train/network_widths.py learns it from whole networks. Where networks were measured on a GPU's own chip,
its half-width comes from those on the other chips, where weights that never saw it are judged. Weights that saw it
take no less than every chip's. But on a GPU that our own recordings ran on, they say what these are off by there.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from ...arrays import Floats
from ...formats.files.constants import read_constants
from ...formats.trace.tables import Meta
from ...records import dataclass, replace
from ...specs.generations import why_untested
from ...specs.gpu import Gpu, Rate, chip_of, listed_name
from ..work import Family
from .workload import GpuWorkload

CONSTANTS: Final = "network_widths"
JOBS: Final = "job_widths"
TRAINING: Final = "training"
COMPILED_HALF_WIDTH: Final = 0.3
"""Half-width of what a compiler does beyond merging pointwise ops (other layouts, other kernels), where no compiled
network tells. Declared, looking at RTX 4090, where it makes networks shorter by a quarter."""
_PRODUCTS: Final = frozenset({Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT, Family.EXPERTS})
_WIDE: Final = (Rate.FP64, Rate.MATRIX_FP64, Rate.FP32, Rate.MATRIX_FP32, Rate.MATRIX_TF32)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationKind:
    """Say what kind of iteration runs."""

    is_half: bool
    """Most of its products' arithmetic is on 16-bit numbers or narrower ones."""
    is_training: bool
    is_compiled: bool

    @property
    def name(self) -> str:
        """Return the name under which its half-widths are stored, e.g. `16-bit inference, eager`."""
        mode, run = "training" if self.is_training else "inference", "compiled" if self.is_compiled else "eager"
        return f"{'16-bit' if self.is_half else 'fp32'} {mode}, {run}"


ANY_KIND: Final = IterationKind(is_half=False, is_training=False, is_compiled=False)


def iteration_kind(workload: GpuWorkload, meta: Meta, *, is_compiled: bool) -> IterationKind:
    """Return the kind of an iteration whose kernels or ops these are.

    >>> iteration_kind(workload, trace.meta, is_compiled=False)
    IterationKind(is_half=True, is_training=False, is_compiled=False)
    """
    is_product = np.array([family in _PRODUCTS for family in workload.family], dtype=bool)
    flops = np.where(is_product, workload.work.flops * workload.count, 0.0)
    narrow = ~np.isin(workload.work.rate.tolist(), _WIDE)
    is_half = bool(flops @ narrow > flops.sum() / 2)
    return IterationKind(is_half=is_half, is_training=meta.workload.mode == TRAINING, is_compiled=is_compiled)


def shared_half_widths(kind: IterationKind, gpus: Sequence[Gpu], trained: Set[str] = frozenset()) -> Floats:
    """Return the half-width of the 90 % interval of the shared error on each GPU, natural log, [m].

    `trained` holds the chips that the models which predict the iteration have seen. The widest of any kind and chip
    where nothing like the GPU was measured. Compiled iterations of a kind that was measured eagerly alone have
    `COMPILED_HALF_WIDTH` beside that.

    >>> kind = IterationKind(is_half=True, is_training=False, is_compiled=False)
    >>> shared_half_widths(kind, [h100, a100]).shape
    (2,)
    """
    constants: Mapping[str, Any] = read_constants(CONSTANTS)
    shared = constants.get("shared", {})
    is_guessed = kind.is_compiled and kind.name not in shared
    name = (replace(kind, is_compiled=False) if is_guessed else kind).name
    known = shared.get(name, {})
    every = float(known.get("every", constants["gpu_half_width"]))
    without, widest = known.get("without", {}), _widest(constants)
    seen = {gpu: kinds[name] for gpu, kinds in constants.get("seen", {}).items() if name in kinds}
    blind = {chip: width for chip, width in without.items() if chip not in trained or width > every}
    found = [
        (seen if chip_of(gpu) in trained else {}).get(listed_name(gpu), blind.get(chip_of(gpu), every)) for gpu in gpus
    ]
    beside = COMPILED_HALF_WIDTH if is_guessed else 0.0
    return np.array(
        [
            widest if why_untested(gpu) is not None else float(np.hypot(width, beside))
            for gpu, width in zip(gpus, found, strict=True)
        ]
    )


def job_half_widths(
    kind: IterationKind,
    families: Sequence[Family | None],
    gpus: Sequence[Gpu],
    trained: Set[str] = frozenset(),
    *,
    without: str | None = None,
) -> Floats:
    """Return the same for an iteration under a parallel plan, [m].

    Jobs that trained in 16 bits or fewer without convolutions were measured (mlp_weights/train/job_widths.py): their
    half-width is that of jobs, of all sources but `without` where one is named. That of other iterations is as on one
    GPU.

    >>> kind = IterationKind(is_half=True, is_training=True, is_compiled=False)
    >>> job_half_widths(kind, [], [h100]).shape
    (1,)
    """
    widths = shared_half_widths(kind, gpus, trained)
    if not (kind.is_half and kind.is_training) or Family.CONVOLUTION in families:
        return widths
    known: Mapping[str, Any] = read_constants(JOBS)
    found = float(known["without"].get(without, known["every"]))
    return np.array([width if why_untested(gpu) else found for gpu, width in zip(gpus, widths, strict=True)])


def recommender_half_width(without: str = "") -> float:
    """Return the half-width of what recommenders' whole iterations differ by beside their kernels, natural log.

    Input, storage and libraries, as MLPerf's submitters show it: all but `without`.

    >>> recommender_half_width() > 0
    True
    """
    known: Mapping[str, Any] = read_constants(JOBS)["recommenders"]
    return float(known["without"].get(without, known["every"]))


def _widest(constants: Mapping[str, Any]) -> float:
    """Return the widest half-width of any kind of iteration on any chip."""
    kinds = constants.get("shared", {}).values()
    widths = [float(width) for kind in kinds for width in (kind["every"], *kind.get("without", {}).values())]
    return max(widths, default=float(constants["gpu_half_width"]))
