"""Convolutions: cuDNN's kernels, the least or the usual one of those that it has, and what MIOpen's share with it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....specs.fleet import Fleet, take_gpus
from ....specs.generations import is_async, is_before_volta
from ....specs.gpu import Rate
from ...work.work import Direction
from ..frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, POWER_PARAMETERS, event_time_ns
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from ..frame.problems import HALF_BYTES, RATES, take_problems
from .clustered import CLUSTERED_PARAMETERS, FEW_CHANNELS, clustered_time
from .nvidia import nvidia_time
from .problems import VOLUME, ConvolutionProblems, ConvolutionTiming, kernel_kind

CLASS_NAMES: Final = ("before Volta", "Volta and later", "asynchronous")
EARLY_CLASS, LATE_CLASS, ASYNC_CLASS = range(3)
PassTime = Callable[[ConvolutionProblems, Fleet, Values, Codes | None], tuple[Floats, Codes]]
"""(problems, fleet, parameters, choice or None) -> ns of one pass, of both gradients the data's, and the tile."""


def gpu_class(fleet: Fleet) -> Codes:
    """Return which kernels of cuDNN run: those for Maxwell, for Volta, or for Hopper."""
    late = np.where(is_before_volta(fleet), EARLY_CLASS, LATE_CLASS)
    return np.where(is_async(fleet), ASYNC_CLASS, late).astype(np.int64)


FIXED_POWER: Final = tuple(replace(item, spread=0.0) for item in POWER_PARAMETERS)
PARAMETERS: Final = (
    *priors("convolution"),
    *DRAM_PARAMETERS,
    *(replace(item, spread=0.0) if item.name.startswith("amd") else item for item in L2_PARAMETERS),
    *FIXED_POWER,
    *priors("convolution, kernels"),
    *CLUSTERED_PARAMETERS,
    *priors("convolution, other libraries"),
)
CALL_OVERLAP: Final = 1.0
"""No kernel starts before cuDNN has chosen it: all of a call's host time comes before the kernels."""


def simulate(problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return kernel times (times of a call between events where the problems say so); `choice` holds the tiles."""
    kernel_ns, tile = both_gradients(_pass_time, problems, fleet, values, choice)
    time_ns = _as_timed(problems, kernel_ns, values)
    features, is_paired, library = np.zeros((*time_ns.shape, 0)), problems.batch.ndim == 1, gpu_class(fleet)
    return Estimate(
        time_ns=time_ns,
        features=features,
        sizes=_known_sizes(problems, library if is_paired else np.arange(len(CLASS_NAMES))),
        size_column=None if is_paired else library,
        choice=tile,
    )


LOGARITHMS: Final = ("batch", "groups", "c_in", "c_out", "input_pixels", "output_pixels", "taps", "stride")
SIZE_NAMES: Final = (
    *(f"log2 of {name}" for name in LOGARITHMS),
    *("log2 of pixels of the batch", "forward", "data gradient", "weight gradient", "three dimensions", "dilated"),
    *("channels last", "Winograd", "half precision", "bfloat16", "ragged channels in", "ragged channels out"),
)
RAGGED: Final = 8.0
"""Channels that are no multiple of this are filled up, or run in other kernels."""


def correction_sizes(problems: ConvolutionProblems, is_last: Mask) -> Floats:
    """Return what the learned correction sees, [..., s]: the op, and where the library's kernels differ by layout."""
    columns: list[Floats | Mask] = [np.log2(np.asarray(getattr(problems, name))) for name in LOGARITHMS]
    columns.append(np.log2(problems.batch * problems.output_pixels))
    columns += [problems.direction == code for code in list(Direction)[:3]]
    columns += [problems.spatial == VOLUME, problems.dilated_reach > 0, is_last, problems.tiles > 0]
    columns += [problems.element_bytes == HALF_BYTES, problems.rate == RATES.index(Rate.MATRIX_BF16)]
    columns += [problems.c_in % RAGGED > 0, problems.c_out % RAGGED > 0]
    return np.stack(columns, axis=-1).astype(np.float64)


def _known_sizes(problems: ConvolutionProblems, library: Codes) -> Floats:
    """Return what cuDNN's correction sees of the kernels of a class (`CLASS_NAMES`), [..., s].

    Nothing (NaN: no correction) of what one source alone shows: groups, volumes, int8, TensorRT. Nor of half precision
    before Volta, of TF32, and of Hopper and later, which run other kernels than it speaks of.
    """
    is_half = problems.element_bytes == HALF_BYTES
    is_apart = (problems.groups > 1) | (problems.spatial == VOLUME) | (problems.timing == ConvolutionTiming.TENSORRT)
    is_apart = is_apart | np.isin(problems.rate, [RATES.index(rate) for rate in (Rate.MATRIX_INT8, Rate.MATRIX_TF32)])
    is_apart = is_apart | (library == ASYNC_CLASS) | (is_half & (library == EARLY_CLASS))
    return np.where(is_apart[..., None], np.nan, correction_sizes(problems, is_half))


def _as_timed(problems: ConvolutionProblems, kernel_ns: Floats, values: Values) -> Floats:
    """Return what a measurement reads of the kernels' time."""
    call_ns = event_time_ns(kernel_ns, 1e3 * (values["call_floor_us"] + values["call_delay_us"]), CALL_OVERLAP)
    time_ns = np.where(problems.timing == ConvolutionTiming.CALL, call_ns, kernel_ns)
    for timing, name in ((ConvolutionTiming.TENSORRT, "tensorrt_us"), (ConvolutionTiming.HOST_MEAN, "host_us")):
        time_ns = time_ns + np.where(problems.timing == timing, 1e3 * values[name], 0.0)
    return time_ns


def both_gradients(
    timed: PassTime, problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None
) -> tuple[Floats, Codes]:
    """Return kernels' times, of both gradients that of the weights added, and the tiles."""
    time_ns, tile = timed(problems, fleet, values, choice)
    rows = np.flatnonzero((problems.direction == Direction.BOTH_GRADIENTS).ravel())
    if len(rows):
        part = take_problems(problems, rows)
        part = replace(part, direction=np.full(part.direction.shape, int(Direction.WEIGHT_GRADIENT)))
        if problems.batch.ndim == 1:
            fleet, values = take_gpus(fleet, rows), {name: value[rows] for name, value in values.items()}
        time_ns[rows] += timed(part, fleet, values, None)[0]
    return time_ns, tile


def _pass_time(
    problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None
) -> tuple[Floats, Codes]:
    """Return each pair's time by its generation's kernels."""
    is_clustered = is_async(fleet)
    is_paired = problems.batch.ndim == 1
    shape = np.broadcast_shapes(problems.batch.shape, is_clustered.shape)
    time_ns, tile = np.empty(shape), np.zeros(shape, dtype=np.int64)
    for mask, timed in ((~is_clustered, nvidia_time), (is_clustered, clustered_time)):
        at = np.flatnonzero(mask)
        if len(at):
            part = take_problems(problems, at) if is_paired else problems
            known = {name: value[at] for name, value in values.items()}
            chosen = None if choice is None else choice[..., at]
            time_ns[..., at], tile[..., at] = timed(part, take_gpus(fleet, at), known, chosen)
    return time_ns, tile


def group(problems: ConvolutionProblems) -> Codes:
    """Return the kind of problem whose errors are alike.

    No shape tells which kernel weight gradients of groups and volumes run. By weights that never saw the chip, 90 % lie
    within a factor of 2.2 to 2.3 on three chips. Other groups, volumes and dilated filters lie within 1.5 to 1.9.
    Groups on vector units run other algorithms, which err more.
    """
    is_vector = (problems.element_bytes > HALF_BYTES) & (problems.rate != RATES.index(Rate.MATRIX_TF32))
    is_grouped, is_volume = problems.groups > 1, problems.spatial == VOLUME
    is_apart = (problems.direction == Direction.WEIGHT_GRADIENT) & (is_grouped & (problems.c_in > 1) | is_volume)
    usual = np.where(problems.c_in <= FEW_CHANNELS, 3, problems.direction != Direction.FORWARD)
    special = is_grouped | is_volume | (problems.dilated_reach > 0)
    kind = np.where(is_apart, 4, np.where(special, 2, usual))
    return np.where(is_vector & is_grouped & (problems.c_in > 1), 5, kind).astype(np.int64)


MODEL: Final = Model(
    name="convolution",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    simulate=simulate,
    group_names=(
        *("forward", "gradients", "grouped, deep or dilated", "few channels", "weights, grouped or deep"),
        "grouped, vector units",
    ),
    group=group,
    size_names=SIZE_NAMES,
    kind=kernel_kind,
)
