"""Chooses the calls of a trace that can be re-run; runs them one by one, the heaviest first, then in their order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import Final

import numpy as np
import torch

from ...arrays import Floats, Rows
from ...formats.measured.rerun import LocalDevice, Rerun, WholePass
from ...formats.trace.signature import Signature
from ...formats.trace.tables import Trace
from ...progress import tell
from ...records import dataclass, field, replace
from ..description.device import describe_framework
from ..op_sweep.timing import GRAPH, recover, time_call
from .local import undisturbed
from .operands import TOO_LARGE, Call, Operands, TooLargeError, memory_limit
from .schema import Bound, UnfitError, bind, find_packet

SINGLE_SHARE: Final = 0.75
"""Of the time budget goes to the ops one by one, what is left to all of them together."""
LEAST_CALLS: Final = 7
"""Calls that timing one op makes at least (`op_sweep.timing`): a longer one is timed once."""
LONG_FIRST_NS: Final = 0.5e9
"""A first call of this length is not slow for loading its kernels alone."""
WHOLE_PASSES: Final = 5
WARM_SHARE: Final = 0.2
"""Of the time left: a whole pass that is expected to take more gets no warm-up; its ops have all run before."""
ONCE: Final = "once"
"""Timing of a call that is too long to repeat within the budget."""
OUT_OF_TIME: Final = "the time budget was over"
BROKEN: Final = "the device failed at an op before it"
LONGEST_REASON: Final = 160
WARM_UP_S: Final = 0.3
"""An idle GPU takes this long to raise its clocks."""


def rerun_ops(trace: Trace, leaves: Rows, weights: Floats, local: LocalDevice, *, seconds: float = 60.0) -> Rerun:
    """Re-run the ops of a trace that put work on the device and return how long each takes here.

    `leaves` are rows of the trace's ops in order of launch (-1: work without an op) and `weights` what each counts in
    the iteration, in any unit: where `seconds` do not suffice, the heaviest calls are run. Only PyTorch's own ops run,
    on made-up tensors, and the caller's random numbers and precision switches stay as they were.
    """
    device = torch.device(local.torch_name)
    calls = choose_calls(trace, leaves, device.type)
    session = _Session(device=device, deadline_s=time.monotonic() + SINGLE_SHARE * seconds)
    with undisturbed(device, trace.meta.precision):
        known = calls.call_of_leaf >= 0
        of_leaf = calls.problem_of_call[calls.call_of_leaf[known]]
        order = np.argsort(-np.bincount(of_leaf, weights=weights[known], minlength=len(calls.problems)), kind="stable")
        results = session.time_problems(calls.problems, order)
        session.deadline_s += (1 - SINGLE_SHARE) * seconds
        whole = session.time_whole(calls, results)
    return Rerun(
        device=local.device,
        is_gpu=local.is_gpu,
        framework=describe_framework(),
        call_of_leaf=calls.call_of_leaf,
        op_of_call=calls.op_of_call,
        problem_of_call=calls.problem_of_call,
        op=np.array([problem.op for problem in calls.problems], dtype=np.int64),
        time_ns=np.array([item.time_ns for item in results], dtype=np.float64),
        timing=tuple(item.timing for item in results),
        reason=tuple(item.reason for item in results),
        whole=whole,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    time_ns: float = float("nan")
    timing: str = ""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Session:
    """Own the operands and the time of one re-run."""

    device: torch.device
    deadline_s: float
    is_warm: bool = False
    is_broken: bool = False
    """The device failed and takes no more calls."""
    operands: Operands = field(init=False)

    def __post_init__(self) -> None:
        self.operands = Operands(self.device, memory_limit(self.device))

    @property
    def left_s(self) -> float:
        """Return the time left."""
        return self.deadline_s - time.monotonic()

    def time_problems(self, problems: Sequence[Problem], order: Rows) -> list[_Result]:
        """Time the problems in the given order; the results are in their own."""
        results = [_Result(reason=problem.reason) for problem in problems]
        for done, at in enumerate(order.tolist()):
            if problems[at].bound is not None:
                results[at] = self._time_problem(problems[at])
            tell("", done + 1, len(problems))
        return results

    def _time_problem(self, problem: Problem) -> _Result:
        if self.is_broken or self.left_s <= 0:
            return _Result(reason=BROKEN if self.is_broken else OUT_OF_TIME)
        try:
            try:
                return self._time_call(self._prepare(problem))
            except torch.OutOfMemoryError:  # again, without the tensors of earlier ops
                self.operands.clear()
            return self._time_call(self._prepare(problem))
        except torch.OutOfMemoryError:
            self.operands.clear()
            return _Result(reason=TOO_LARGE)
        except UnfitError as error:
            return _Result(reason=str(error))
        except (RuntimeError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
            self.is_broken = not recover(self.device)
            return _Result(reason=f"failed: {' '.join(str(error).partition(chr(10))[0].split())[:LONGEST_REASON]}")

    def _prepare(self, problem: Problem) -> Call:
        if problem.bound is None:
            raise UnfitError(problem.reason)
        self.operands.check_size(problem.bound, self.left_s)
        try:
            return self.operands.prepare(problem.bound)
        except TooLargeError:  # beside the tensors of earlier ops
            self.operands.clear()
            return self.operands.prepare(problem.bound)

    def _time_call(self, call: Call) -> _Result:
        if self.device.type == "cuda" and not self.is_warm:
            end_s = min(time.monotonic() + WARM_UP_S, self.deadline_s)
            while time.monotonic() < end_s:
                self._elapsed_ns(call)
            self.is_warm = True
        once_ns = self._elapsed_ns(call)
        if once_ns < LONG_FIRST_NS:
            once_ns = self._elapsed_ns(call)
        if once_ns * LEAST_CALLS > self.left_s * 1e9:
            return _Result(time_ns=once_ns, timing=ONCE)
        timed = time_call(call, self.device.type)
        return _Result(time_ns=timed.latency_us * 1e3, timing=timed.timing)

    def time_whole(self, calls: Calls, results: Sequence[_Result]) -> WholePass | None:
        """Time all calls that were timed one by one, in their order; None where that is none, or takes too long."""
        if self.is_broken:
            return None
        prepared = dict(self._prepare_together(calls.problems, results))
        kept = [at for at in calls.problem_of_call.tolist() if at in prepared]
        parts_ns = sum(results[at].time_ns for at in kept)
        if not kept or parts_ns > self.left_s * 1e9:
            return None
        sequence = [prepared[at] for at in kept]

        def run() -> None:
            for call in sequence:
                call()

        if parts_ns < WARM_SHARE * self.left_s * 1e9:
            run()
        elapsed, between = list[float](), list[float]()
        while len(elapsed) < WHOLE_PASSES and (not elapsed or elapsed[-1] < self.left_s * 1e9):
            host_ns, device_ns = self._pass_ns(run)
            elapsed.append(host_ns)
            between.append(device_ns)
        is_gpu = self.device.type == "cuda"
        is_capturable = is_gpu and all(results[at].timing == GRAPH for at in prepared)
        return WholePass(
            call_count=len(kept),
            parts_ns=parts_ns,
            elapsed_ns=median(elapsed),
            device_ns=median(between) if is_gpu else None,
            graph_ns=_graph_ns(run, self.device) if is_capturable else None,
        )

    def _prepare_together(self, problems: Sequence[Problem], results: Sequence[_Result]) -> Iterator[tuple[int, Call]]:
        """Yield the calls that were timed, as far as the tensors of all of them fit in memory."""
        for at, (problem, result) in enumerate(zip(problems, results, strict=True)):
            if problem.bound is not None and np.isfinite(result.time_ns):
                with suppress(UnfitError, torch.OutOfMemoryError):
                    yield at, self.operands.prepare(problem.bound)

    def _pass_ns(self, run: Call) -> tuple[float, float]:
        if self.device.type != "cuda":
            elapsed_ns = self._elapsed_ns(run)
            return elapsed_ns, elapsed_ns
        torch.cuda.synchronize(self.device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin_ns = time.perf_counter_ns()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(time.perf_counter_ns() - begin_ns), float(start.elapsed_time(end)) * 1e6

    def _elapsed_ns(self, call: Call) -> float:
        begin_ns = time.perf_counter_ns()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return float(time.perf_counter_ns() - begin_ns)


def _graph_ns(run: Call, device: torch.device) -> float | None:
    """Return how long all calls take as one graph; None where one waits for the host or the memory does not suffice."""
    try:
        timed = time_call(run, device.type)
    except RuntimeError:
        recover(device)
        return None
    return timed.latency_us * 1e3 if timed.timing == GRAPH else None


CPU_CAPTURE = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Hold a distinct op and signature; `bound` is None where it cannot be called, for the `reason`."""

    op: int
    """The first op of the trace that asks for it."""
    bound: Bound | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Hold what is to be re-run; see `Rerun`."""

    call_of_leaf: Rows
    op_of_call: Rows
    problem_of_call: Rows
    problems: tuple[Problem, ...]


def choose_calls(trace: Trace, leaves: Rows, device_type: str) -> Calls:
    """Return the calls that `leaves`, ops in order of launch, belong to; -1 stands for work without an op."""
    resolver = _Resolver(trace, device_type)
    unit_of = {leaf: resolver.unit(leaf) for leaf in np.unique(leaves).tolist() if leaf >= 0}
    units = np.array([unit_of.get(leaf, -1) for leaf in leaves.tolist()], dtype=np.int64)
    known = units >= 0
    ops, first, inverse = np.unique(units[known], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    call_of_leaf = np.full(len(leaves), -1)
    call_of_leaf[known] = rank[inverse]
    op_of_call = ops[order]
    numbers: dict[tuple[int, int], int] = {}
    keys = list(zip(trace.ops.name[op_of_call].tolist(), trace.ops.signature[op_of_call].tolist(), strict=True))
    problem_of_call = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    leaders = np.unique(problem_of_call, return_index=True)[1] if keys else np.zeros(0, dtype=np.int64)
    return Calls(
        call_of_leaf=call_of_leaf,
        op_of_call=op_of_call,
        problem_of_call=problem_of_call,
        problems=tuple(resolver.problem(int(op)) for op in op_of_call[leaders]),
    )


class _Resolver:
    """Look up once per name and signature whether an op can be called."""

    def __init__(self, trace: Trace, device_type: str) -> None:
        self._trace = trace
        self._device_type = device_type
        self._names, self._signatures = trace.ops.name.tolist(), trace.ops.signature.tolist()
        self._parents = trace.ops.parent.tolist()
        inner = np.flatnonzero(trace.ops.parent >= 0)
        outer = trace.ops.parent[inner]
        self._casting = frozenset(outer[trace.ops.name[outer] == trace.ops.name[inner]].tolist())
        """Ops that called themselves: autocast's, with what is converted for the inner one."""
        self._known: dict[tuple[int, int], Bound | str] = {}

    def unit(self, leaf: int) -> int:
        """Return the outermost op at or around `leaf` that can be called as it ran, else the leaf."""
        found, row = leaf, leaf
        while row >= 0 and row not in self._casting:
            if isinstance(self._look_up(row), Bound):
                found = row
            row = self._parents[row]
        return found

    def problem(self, op: int) -> Problem:
        """Return the problem that an op stands for."""
        found = self._look_up(op)
        if isinstance(found, Bound):
            return Problem(op=op, bound=found, reason="")
        return Problem(op=op, bound=None, reason=found)

    def _look_up(self, row: int) -> Bound | str:
        key = (self._names[row], self._signatures[row])
        if key not in self._known:
            signature = self._trace.signatures[key[1]] if key[1] >= 0 else None
            self._known[key] = self._resolve(self._trace.strings[key[0]], signature)
        return self._known[key]

    def _resolve(self, name: str, signature: Signature | None) -> Bound | str:
        try:
            if signature is None:
                find_packet(name)
                return "its shapes were not recorded"
            from_cpu = self._trace.meta.capture == CPU_CAPTURE
            bound = bind(name, signature.arguments, device_type=self._device_type, from_cpu=from_cpu)
            return replace(bound, results=signature.results)
        except UnfitError as error:
            return str(error)
