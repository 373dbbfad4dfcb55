"""What a short sweep measures, by family, until its time is over."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final

import torch

from ...progress import tell
from ...records import dataclass, field, replace
from ..hooks.patches import interrupts_deferred
from .cases import DTYPES, HALVES, Case, attention_cases, convolution_cases, matmul_cases
from .timing import Timed, own_stream, recover, time_calls
from .vector_cases import recurrent_cases, training_cases, vector_cases

FAMILIES: Final[Mapping[str, Callable[[Sequence[str]], Iterator[Case]]]] = {
    "matmul": matmul_cases,
    "attention": attention_cases,
    "convolution": convolution_cases,
    "vector": vector_cases,
    "training": training_cases,
    "recurrent": recurrent_cases,
}
MOST_FLOPS: Final = 2e12
"""Larger calls are left out: they say nothing that smaller ones do not."""
MOST_ELEMENTS: Final = 1 << 30
COPIED_BYTES: Final = 2 << 30
"""Copies of operands take at most this; a single one that is larger outlasts every L2 anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """Say when a family is done, and which of its calls are too large."""

    seconds: float = inf
    flops: float = MOST_FLOPS
    elements: float = MOST_ELEMENTS
    row_count: int | None = None


@dataclass(slots=True, kw_only=True)
class Sweep:
    """Collect the rows of one family, by table, and count what was left out and why."""

    gpu: str
    device: str
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    left_out: Counter[str] = field(default_factory=Counter)
    is_broken: bool = False
    """The device failed and takes no more calls."""

    def measure(self, case: Case) -> None:
        """Add one row, or count why there is none."""
        try:
            timed = time_case(case, self.device)
        except (RuntimeError, NotImplementedError) as error:  # out of memory is a RuntimeError
            text = str(error).lower()
            lacks_memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in text
            self.left_out["out_of_memory" if lacks_memory or "not enough memory" in text else "unsupported"] += 1
            self.is_broken = not recover(torch.device(self.device))
            return
        self.rows[case.table].append({**case.row, **timed._asdict()})


def run_cases(cases: Iterable[Case], sweep: Sweep, limits: SweepLimits) -> Sweep:
    """Measure cases until the time is over, the device fails, or as many as are wanted were tried.

    A Ctrl-C waits for the end of the call that is being timed: what it
    would break is the capture of a CUDA graph.
    """
    torch.manual_seed(0)
    end = time.monotonic() + limits.seconds
    count = 0
    for case in cases:
        if count == limits.row_count or time.monotonic() >= end or sweep.is_broken:
            break
        if case.flops <= limits.flops and case.elements <= limits.elements:
            with interrupts_deferred():
                sweep.measure(case)
            count += 1
            tell(f"{case.table}: calls measured", count)
    return sweep


def time_case(case: Case, device: str) -> Timed:
    """Build a case's operands, as often as they are to be taken in turn, and time its call."""
    dtype = case.row["dtype"]
    operand_bytes = max(1.0, case.elements * DTYPES[dtype].itemsize)
    copies = int(min(case.copies, max(1.0, COPIED_BYTES // operand_bytes))) if device == "cuda" else 1
    with tf32_switched(dtype), own_stream(device):
        return time_calls([case.build(torch.device(device)) for _ in range(copies)], device)


@contextmanager
def tf32_switched(dtype: str) -> Iterator[None]:
    """Switch TF32 on for `tf32` and off otherwise, for matrix products and cuDNN alike."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def describe(sweep: Sweep) -> str:
    """Say how many rows of which table were measured, and what was left out."""
    rows = ", ".join(f"{len(found)} rows of {table}" for table, found in sorted(sweep.rows.items())) or "no rows"
    left = ", ".join(f"{count} left out ({reason})" for reason, count in sorted(sweep.left_out.items()))
    return f"{rows}; {left}" if left else rows


LEAST_ROWS: Final = 50
"""Calls of a family that is measured for a workload, its own included: what a correction needs to be worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Hold calls that are measured one after another until their limits end them."""

    cases: Iterator[Case]
    limits: SweepLimits


def plan_sizes(families: Sequence[str], dtypes: Sequence[str], limits: SweepLimits) -> dict[str, tuple[Stage, ...]]:
    """Return calls whose every beginning is spread over the sizes, by family."""
    return {family: (Stage(cases=_spread(family, dtypes), limits=limits),) for family in families}


def plan_workload(
    own_cases: Mapping[str, Sequence[Case]],
    families: Sequence[str],
    dtypes: Sequence[str] | None,
    limits: SweepLimits,
    *,
    is_limited: bool,
) -> dict[str, tuple[Stage, ...]]:
    """Return a workload's own calls by family, then other sizes where these are few.

    `dtypes` None: those of its calls. Only with `is_limited` do the limits hold for its own calls too.
    """
    plan = {}
    for family, own in own_cases.items():
        wanted = [case for case in own if dtypes is None or case.row["dtype"] in dtypes]
        if family not in families or not wanted:
            continue
        found = sorted({case.row["dtype"] for case in wanted})
        own_limits = limits if is_limited else replace(limits, flops=inf, elements=inf)
        plan[family] = (
            Stage(cases=iter(wanted), limits=own_limits),
            Stage(cases=_spread(family, found), limits=replace(limits, row_count=max(0, LEAST_ROWS - len(wanted)))),
        )
    return {family: plan[family] for family in families if family in plan}


def _spread(family: str, dtypes: Sequence[str]) -> Iterator[Case]:
    """Return the calls whose times models read: attention's in half precision alone, which may leave none."""
    chosen = [dtype for dtype in dtypes if dtype in HALVES] if family == "attention" else dtypes
    return (case for case in FAMILIES[family](chosen) if case.table == family) if chosen else iter(())
