"""What ops cost on the host, per op name: measured on eager traces by mlp_weights/train/host_costs.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from ...formats.files.constants import read_constants
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass, fields, replace
from ..work import family_of

CONSTANTS: Final = "host_costs"
SPEEDS: Final = "host_speeds"
ATEN: Final = "aten::"
LEAD_PHASES: Final = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}
"""Phases whose leads differ; any other phase counts as forward."""
LEAD_PLACES: Final = ("inside", "opens", "any")
"""Whether an op stays in the module (in backward: the autograd node) of the op before it, opens another, or unknown."""
COMPILED_CALL_NS: Final = 35_000.0
"""Entering compiled code: guards, and torch's wrappers around the generated function. A call of a compiled function
whose kernel does nothing takes 42.4-44.3 us, 9.1-6.8 of them the kernel's: meta-pytorch/tritonbench pull request 1017
(2026), on a GB200 node, without a profiler."""
COMPILED_KERNEL_NS: Final = 9_100.0
"""Launching a generated kernel: 6.8 us without arguments and 9.1 with 19 (the same). Fewer arguments are usual, and
allocating the result is not in it."""
COMPILED_BACKWARD_NS: Final = 5_500.0
"""Entering a compiled backward pass, which has no guards: what torch's wrappers add to a kernel's launch (12 us against
6.5 in pull request 1016 there)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Hold host costs in ns of one named host, without a profiler.

    An op takes its lead (Python, the autograd engine and wrapper ops since the op before), then its own time, and
    `launch_ns` per kernel. Names are those of a dispatch-level recording: what runs inside an op is in its cost.
    """

    host: str
    op_ns: Mapping[str, float]
    """By op name; launches, copies and syncs not included."""
    family_op_ns: Mapping[str, float]
    """By family, for names never seen."""
    other_op_ns: float
    """For torch's own ops of no such family."""
    custom_op_ns: float
    """For ops that another library adds, never seen."""
    lead_ns: Mapping[str, float]
    """By the keys of `lead_keys`."""
    launch_ns: float
    copy_ns: float
    """Of cudaMemcpyAsync."""
    sync_ns: float
    """Of cudaStreamSynchronize when there is nothing left to wait for."""
    before_launch_ratio: float
    """Share of an op's own time that passes before its first launch."""
    kernel_count: Mapping[str, float]
    """Mean launches per call, by op name."""
    compiled_call_ns: float = COMPILED_CALL_NS
    compiled_backward_ns: float = COMPILED_BACKWARD_NS
    compiled_kernel_ns: float = COMPILED_KERNEL_NS
    """Of one generated kernel, its launch call included."""
    speed_ratio: float = 1.0
    """How fast that host is, relative to the reference host."""

    def op_cost_ns(self, name: str) -> float:
        """Return the op's own time: by name, else its functional form, else its family, else the overall mean.

        The families are of torch's own ops; another library's are fused ones, which take longer.
        """
        for known in spellings(name):
            if known in self.op_ns:
                return self.op_ns[known]
        if not name.startswith(ATEN):
            return self.custom_op_ns
        family = family_of(name)
        return self.other_op_ns if family is None else self.family_op_ns.get(family.value, self.other_op_ns)

    def lead_cost_ns(self, before: str, name: str, phase: int, place: str) -> float:
        """Return the host time from op `before` (empty: none) to op `name`; `place` is one of LEAD_PLACES."""
        return next(self.lead_ns[key] for key in lead_keys(before, name, phase, place) if key in self.lead_ns)

    def at_speed(self, speed_ratio: float) -> HostCosts:
        """Return the costs on a host `speed_ratio` times as fast."""
        scaled = {
            item.name: _divide(getattr(self, item.name), speed_ratio)
            for item in fields(self)
            if item.name.endswith("_ns")
        }
        return replace(self, speed_ratio=self.speed_ratio * speed_ratio, **scaled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerShares:
    """Hold unprofiled over profiled host time, of leads and of ops' own time."""

    lead: float
    own: float

    @property
    def mean(self) -> float:
        """Return the share of both together, which take about alike."""
        return 0.5 * (self.lead + self.own)


def lead_keys(before: str, name: str, phase: int, place: str) -> tuple[str, ...]:
    """Return the kinds that a lead belongs to, most specific first.

    What came before tells most: a `view` that opens a linear layer follows Python, one that ends it does not.
    """
    kind, first, second = LEAD_PHASES.get(Phase(phase), "forward"), spellings(before)[-1], spellings(name)[-1]
    places = tuple(dict.fromkeys((place, "any")))
    return (
        *(f"{kind}/{where}/{first}>{second}" for where in places),
        *(f"{kind}/{where}/{second}" for where in places),
        *(f"{kind}/{where}" for where in places),
        kind,
    )


def spellings(name: str) -> tuple[str, ...]:
    """Return the names under which an op's cost may be listed, most specific first."""
    plain = name.split(".", maxsplit=1)[0]
    return tuple(dict.fromkeys((name, plain, plain.removesuffix("_"), _SAME_HOST_WORK.get(plain, plain))))


_SAME_HOST_WORK: Final = {
    "aten::_scaled_dot_product_efficient_attention": "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention": "aten::_scaled_dot_product_flash_attention",
    "aten::cudnn_batch_norm": "aten::native_batch_norm",
    "aten::miopen_batch_norm": "aten::native_batch_norm",
    "aten::_native_batch_norm_legit": "aten::native_batch_norm",
    "aten::cudnn_batch_norm_backward": "aten::native_batch_norm_backward",
    "aten::miopen_batch_norm_backward": "aten::native_batch_norm_backward",
    "aten::cudnn_convolution": "aten::convolution",
    "aten::miopen_convolution": "aten::convolution",
    "aten::cudnn_convolution_backward": "aten::convolution_backward",
    "aten::miopen_convolution_backward": "aten::convolution_backward",
    "aten::_cat": "aten::cat",
}
"""Ops that are one op to a shape-only recording, or whose code on the host is alike."""


@cache
def load_host_costs() -> HostCosts:
    """Return the shipped costs, on the reference host.

    >>> round(load_host_costs().op_cost_ns("aten::mm") / 1e3)  # µs
    6
    """
    return costs_of_table(read_constants(CONSTANTS))


def unknown_host_half_width() -> float:
    """Return how far off, natural log, the costs are of a host that was not measured: what 90 % of traces lie within.

    Every trace of their host was left out.

    >>> 0.05 < unknown_host_half_width() < 1.0
    True
    """
    return float(read_constants(CONSTANTS)["unknown_host_half_width"])


def known_host_half_width() -> float:
    """Return how far off, natural log, the host's times are of a trace whose host's speed its CPU ops tell.

    What 90 % of traces lie within that were left out, with all others of their host.

    >>> known_host_half_width() < unknown_host_half_width()
    True
    """
    return float(read_constants(SPEEDS)["known_host_half_width"])


def profiler_shares(trace: Trace) -> ProfilerShares:
    """Return what is usually left of a measured trace's host time without the profiler, by what that recorded.

    >>> profiler_shares(trace).mean < 1.0
    True
    """
    mode = "stacks" if trace.meta.has_stacks else "shapes" if trace.meta.has_shapes else "plain"
    row = read_constants(CONSTANTS)["unprofiled_over_profiled"][mode]
    return ProfilerShares(lead=row["lead"], own=row["own"])


def costs_of_table(table: Mapping[str, Any]) -> HostCosts:
    """Read the costs on the reference host from the layout of the file of constants; sample counts are left out."""
    op_ns, lead_ns = ({key: row[0] for key, row in table[part].items()} for part in ("op_ns", "lead_ns"))
    names = ("other_op_ns", "custom_op_ns", "launch_ns", "copy_ns", "sync_ns", "before_launch_ratio")
    return HostCosts(
        host=table["reference_host"],
        op_ns=MappingProxyType(op_ns),
        lead_ns=MappingProxyType(lead_ns),
        family_op_ns=MappingProxyType(table["family_op_ns"]),
        kernel_count=MappingProxyType(table["kernel_count"]),
        **{name: table[name] for name in names},
    )


def _divide(cost: Any, ratio: float) -> Any:
    return cost / ratio if isinstance(cost, float | int) else {key: item / ratio for key, item in cost.items()}
