"""GPUs as columns, so that one expression covers every op on every GPU."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..arrays import Codes, Floats, Mask
from ..records import dataclass, fields, replace
from .fabric import Fabric, build_fabric, take_fabric
from .generation_rows import generation_code
from .gpu import Gpu, Rate, clock_headroom, has_inline_ecc, is_hbm, memory_kind
from .nodes import Node

FALLBACKS: Final[Mapping[Rate, tuple[Rate, ...]]] = {
    Rate.MATRIX_FP4: (Rate.MATRIX_FP8, Rate.MATRIX_BF16, Rate.MATRIX_FP16, Rate.FP16, Rate.FP32),
    Rate.MATRIX_FP8: (Rate.MATRIX_BF16, Rate.MATRIX_FP16, Rate.FP16, Rate.FP32),
    Rate.MATRIX_BF16: (Rate.FP32,),
    Rate.MATRIX_FP16: (Rate.FP16, Rate.FP32),
    Rate.MATRIX_TF32: (Rate.MATRIX_FP32, Rate.FP32),
    Rate.MATRIX_FP32: (Rate.FP32,),
    Rate.MATRIX_INT8: (Rate.FP32,),
    Rate.MATRIX_FP64: (Rate.FP64, Rate.FP32),
    Rate.FP16: (Rate.FP32,),
    Rate.FP64: (Rate.FP32,),
}
"""What runs instead where a GPU lacks the unit: libraries widen to the next format that the GPU has.

bfloat16 on GPUs before Ampere runs through FP32 arithmetic in cuBLAS, not through the FP16 units.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Hold the GPUs that are predicted, one array element each; rates have their fallbacks filled in."""

    gpus: tuple[Gpu, ...]
    bandwidth_bytes_per_s: Floats
    l2_cache_bytes: Floats
    sm_count: Floats
    clock_hz: Floats
    """Boost clock."""
    clock_headroom: Floats
    """The highest clock over the boost clock."""
    base_clock_hz: Floats
    """The boost clock where no base clock is known."""
    matrix_clock_hz: Floats
    """The clock at which matrix rates are stated."""
    fp32_lanes_per_sm: Floats
    threads_per_sm: Floats
    shared_memory_per_sm_bytes: Floats
    registers_per_sm: Floats
    tdp_w: Floats
    power_ratio: Floats
    """What the board is held to over its power; 1 where nothing caps it."""
    drawn_ratio: Floats
    """What is drawn at full clock over it; NaN where only the usual is known."""
    capability: Floats
    """CUDA compute capability as a number, e.g. 9.0; 0 for other vendors."""
    generation: Codes
    """Index into `GENERATIONS`."""
    has_hbm: Mask
    """HBM rather than GDDR or LPDDR."""
    memory_kind: Codes
    """`MemoryKind`."""
    has_inline_ecc: Mask
    """Error correction is on and lies in the same memory as the data."""
    l2_ratio: Floats
    """What measurements found of the rate of the second-level cache over what the models take it to be; 1: nothing."""
    launch_ratio: Floats
    """The same of what a kernel takes beside its work."""
    warp_size: Floats
    pcie_bytes_per_s: Floats
    link_bytes_per_s: Floats
    fabric: Fabric
    """Links within and between machines."""
    flops_per_s: Mapping[Rate, Floats]


def build_fleet(gpus: Sequence[Gpu], nodes: Sequence[Node] | None = None) -> Fleet:
    """Turn catalogue entries into columns, each in its node (default: the usual one).

    >>> build_fleet([h100, a100]).bandwidth_bytes_per_s / 1e9
    array([3352.3, 2039. ])
    """

    def values(name: str) -> Floats:
        return np.array([getattr(gpu, name) for gpu in gpus], dtype=np.float64)

    same = "l2_cache_bytes sm_count fp32_lanes_per_sm shared_memory_per_sm_bytes registers_per_sm tdp_w warp_size"
    return Fleet(
        **{name: values(name) for name in same.split()},
        gpus=tuple(gpus),
        bandwidth_bytes_per_s=values("memory_bandwidth_bytes_per_s"),
        clock_hz=values("boost_clock_hz"),
        clock_headroom=np.array([clock_headroom(gpu) for gpu in gpus], dtype=np.float64),
        base_clock_hz=np.array([gpu.base_clock_hz or gpu.boost_clock_hz for gpu in gpus], dtype=np.float64),
        matrix_clock_hz=np.array([gpu.matrix_clock_hz or gpu.boost_clock_hz for gpu in gpus], dtype=np.float64),
        threads_per_sm=values("max_threads_per_sm"),
        power_ratio=np.array([(gpu.power_cap_w or gpu.tdp_w) / gpu.tdp_w for gpu in gpus], dtype=np.float64),
        drawn_ratio=np.array([np.nan if gpu.drawn_ratio is None else gpu.drawn_ratio for gpu in gpus]),
        capability=np.array([float(gpu.compute_capability) if gpu.vendor == "NVIDIA" else 0.0 for gpu in gpus]),
        generation=np.array([generation_code(gpu) for gpu in gpus], dtype=np.int64),
        has_hbm=np.array([is_hbm(gpu.memory_type) for gpu in gpus], dtype=bool),
        memory_kind=np.array([memory_kind(gpu.memory_type) for gpu in gpus], dtype=np.int64),
        has_inline_ecc=np.array([has_inline_ecc(gpu) for gpu in gpus], dtype=bool),
        l2_ratio=np.ones(len(gpus)),
        launch_ratio=np.ones(len(gpus)),
        pcie_bytes_per_s=values("pcie_bandwidth_bytes_per_s"),
        link_bytes_per_s=values("link_bandwidth_bytes_per_s"),
        fabric=build_fabric(gpus, nodes),
        flops_per_s={rate: np.array([_effective_rate(gpu, rate) for gpu in gpus]) for rate in Rate},
    )


def take_gpus(fleet: Fleet, columns: npt.NDArray[np.int64]) -> Fleet:
    """Return the fleet with its GPUs picked (and repeated) by index: one GPU per row pairs a fleet with n problems.

    >>> [gpu.name for gpu in take_gpus(build_fleet([h100, a100]), np.array([1, 1, 0])).gpus]
    ['A100 SXM4 80GB', 'A100 SXM4 80GB', 'H100 SXM5 80GB']
    """
    chosen: dict[str, Any] = {}
    for item in fields(fleet):
        value = getattr(fleet, item.name)
        if item.name == "gpus":
            chosen[item.name] = tuple(value[column] for column in columns.tolist())
        elif item.name == "flops_per_s":
            chosen[item.name] = {rate: rates[columns] for rate, rates in value.items()}
        elif item.name == "fabric":
            chosen[item.name] = take_fabric(value, columns)
        else:
            chosen[item.name] = value[columns]
    return Fleet(**chosen)


def scale_rates(fleet: Fleet, clock: Floats, bandwidth: Floats, l2: Floats, launch: Floats) -> Fleet:
    """Return the fleet with each GPU's clock, bandwidth, cache rate and launch time multiplied by its own ratio, [m].

    With the clock go all rates of arithmetic, and the power that limits it.

    >>> half, one = np.full(2, 0.5), np.ones(2)
    >>> scale_rates(fleet, clock=half, bandwidth=one, l2=one, launch=one).clock_hz / 1e6
    array([990., 705.])
    """
    clocks = {name: getattr(fleet, name) * clock for name in ("clock_hz", "base_clock_hz", "matrix_clock_hz", "tdp_w")}
    return replace(
        fleet,
        **clocks,
        bandwidth_bytes_per_s=fleet.bandwidth_bytes_per_s * bandwidth,
        l2_ratio=fleet.l2_ratio * l2,
        launch_ratio=fleet.launch_ratio * launch,
        flops_per_s={rate: flops * clock for rate, flops in fleet.flops_per_s.items()},
    )


def _effective_rate(gpu: Gpu, rate: Rate) -> float:
    """Return the rate of the first unit that can do it; half-precision products go to the faster vector units.

    Consumer Pascal's FP16 units run at 1/64 of FP32: libraries compute such products in FP32.
    """
    for candidate in (rate, *FALLBACKS.get(rate, (Rate.FP32,))):
        if candidate in gpu.peak_flops_per_s:
            found = gpu.peak_flops_per_s[candidate]
            is_vector = candidate is Rate.FP16 and rate is not Rate.FP16
            return max(found, gpu.peak_flops_per_s.get(Rate.FP32, 0.0)) if is_vector else found
    return float("nan")
