"""Re-runs the ops of a trace one by one, the most important first, and then all in their order."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np
import torch

from ...errors import InputError
from ...formats.trace import Device, Precision, Trace
from ..device import describe_device, describe_framework
from ..measure.timing import GRAPH, time_call
from .calls import Calls, Problem, choose_calls
from .operands import Call, Operands, TooLargeError, memory_limit
from .record import ONCE, Floats, LocalDevice, Rerun, Rows, WholePass
from .schema import UnfitError

SINGLE_SHARE: Final = 0.75
"""Of the time budget goes to the ops one by one, what is left to all of them together."""
LEAST_CALLS: Final = 7
"""Calls that timing one op makes at least (`measure.timing`): a longer one is timed once."""
LONG_FIRST_NS: Final = 0.5e9
"""A first call of this length is not slow for loading its kernels alone."""
WHOLE_PASSES: Final = 5
WARM_SHARE: Final = 0.2
"""Of the time left: a whole pass that is expected to take more gets no warm-up; its ops have all run before."""
OUT_OF_TIME: Final = "the time budget was over"
NOT_REPEATABLE: Final = "failed: "

Progress = Callable[[int, int], None]


def find_device(name: str | None) -> LocalDevice:
    """Return the device that a name means: `cuda`, `cuda:N` or `cpu`; without one, the GPU if there is one.

    Raises InputError for a device that is not here.
    """
    device = _choose_device(name)
    if device.type == "cuda":
        return LocalDevice(torch_name=str(device), device=describe_device(device.index), is_gpu=True)
    found = Device(name=platform.processor() or platform.machine() or "CPU")
    return LocalDevice(torch_name="cpu", device=found, is_gpu=False)


def rerun_ops(
    trace: Trace,
    leaves: Rows,
    weights: Floats,
    local: LocalDevice,
    *,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> Rerun:
    """Re-run the ops of a trace that put work on the device and return how long each takes here.

    `leaves` are rows of the trace's ops in order of launch (-1: work without an op) and `weights` what each counts in
    the iteration, in any unit: where `seconds` do not suffice, the heaviest calls are run. Only PyTorch's own ops run,
    on made-up tensors, and the caller's random numbers and precision switches stay as they were.
    """
    device = torch.device(local.torch_name)
    calls = choose_calls(trace, leaves, device.type)
    session = _Session(device=device, deadline_s=time.monotonic() + SINGLE_SHARE * seconds)
    with _undisturbed(device, trace.meta.precision):
        order = np.argsort(-_problem_weights(calls, weights), kind="stable")
        results = session.time_problems(calls.problems, order, progress)
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
    is_broken: bool = False
    """The device failed and takes no more calls."""
    operands: Operands = field(init=False)

    def __post_init__(self) -> None:
        self.operands = Operands(self.device, memory_limit(self.device))

    @property
    def left_s(self) -> float:
        """Return the time left."""
        return self.deadline_s - time.monotonic()

    def time_problems(self, problems: Sequence[Problem], order: Rows, progress: Progress | None) -> list[_Result]:
        """Time the problems in the given order; the results are in their own."""
        results = [_Result(reason=problem.reason) for problem in problems]
        for done, at in enumerate(order.tolist()):
            if problems[at].bound is not None:
                results[at] = self._time_problem(problems[at])
            if progress is not None:
                progress(done + 1, len(problems))
        return results

    def _time_problem(self, problem: Problem) -> _Result:
        if self.is_broken:
            return _Result(reason="the device failed at an op before it")
        if self.left_s <= 0:
            return _Result(reason=OUT_OF_TIME)
        try:
            return self._time_call(self._prepare(problem))
        except torch.OutOfMemoryError:
            self.operands.clear()
            return _Result(reason="does not fit in memory")
        except UnfitError as error:
            return _Result(reason=str(error))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
            self.is_broken = not _recover(self.device)
            return _Result(reason=f"{NOT_REPEATABLE}{' '.join(str(error).partition(chr(10))[0].split())[:160]}")

    def _prepare(self, problem: Problem) -> Call:
        if problem.bound is None:
            raise UnfitError(problem.reason)
        self.operands.check_size(problem.bound)
        try:
            return self.operands.prepare(problem.bound)
        except TooLargeError:  # beside the tensors of earlier ops
            self.operands.clear()
            return self.operands.prepare(problem.bound)

    def _time_call(self, call: Call) -> _Result:
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
        prepared: dict[int, Call] = {}
        expected_ns = 0.0
        sequence = list[Call]()
        for at in calls.problem_of_call.tolist():
            if not np.isfinite(results[at].time_ns):
                continue
            try:
                sequence.append(prepared.setdefault(at, prepared.get(at) or self._prepare_kept(calls.problems[at])))
            except (UnfitError, torch.OutOfMemoryError):
                continue
            expected_ns += results[at].time_ns
        if not sequence or expected_ns > self.left_s * 1e9:
            return None
        return self._time_sequence(sequence, expected_ns)

    def _prepare_kept(self, problem: Problem) -> Call:
        if problem.bound is None:
            raise UnfitError(problem.reason)
        return self.operands.prepare(problem.bound)

    def _time_sequence(self, sequence: Sequence[Call], expected_ns: float) -> WholePass | None:
        def run() -> None:
            for call in sequence:
                call()

        if expected_ns < WARM_SHARE * self.left_s * 1e9:
            run()
        elapsed, between = list[float](), list[float]()
        while len(elapsed) < WHOLE_PASSES and (not elapsed or elapsed[-1] < self.left_s * 1e9):
            host_ns, device_ns = self._pass_ns(run)
            elapsed.append(host_ns)
            between.append(device_ns)
        is_gpu = self.device.type == "cuda"
        return WholePass(
            call_count=len(sequence),
            elapsed_ns=median(elapsed),
            device_ns=median(between) if is_gpu else None,
            graph_ns=_graph_ns(run, self.device) if is_gpu else None,
        )

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
        _recover(device)
        return None
    return timed.latency_us * 1e3 if timed.timing == GRAPH else None


def _problem_weights(calls: Calls, weights: Floats) -> Floats:
    """Return the summed weight of each problem."""
    known = calls.call_of_leaf >= 0
    problems = calls.problem_of_call[calls.call_of_leaf[known]]
    return np.bincount(problems, weights=weights[known], minlength=len(calls.problems)).astype(np.float64)


def _choose_device(name: str | None) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: expected cuda, cuda:N or cpu") from None
    if device.type not in ("cuda", "cpu"):
        raise InputError(f"--device {name}: expected cuda, cuda:N or cpu")
    if device.type == "cpu":
        return torch.device("cpu")
    if not has_gpu:
        raise InputError(f"--device {name}: torch {torch.__version__} sees no GPU here; --device cpu runs on the CPU")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise InputError(f"--device {name}: this machine has {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


@contextmanager
def _undisturbed(device: torch.device, precision: Precision) -> Iterator[None]:
    """Run without autograd, in the recorded precision; leave random numbers and switches as they were."""
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(_precision(precision))
            stack.callback(torch.cuda.empty_cache)
        devices = [device.index] if device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.no_grad())
        yield


@contextmanager
def _precision(precision: Precision) -> Iterator[None]:
    """Set the TF32 switches as they were recorded; unknown ones stay."""
    before = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.flags(allow_tf32=precision.cudnn_tf32) if precision.cudnn_tf32 is not None else None
    try:
        if precision.matmul_tf32 is not None:
            torch.set_float32_matmul_precision("high" if precision.matmul_tf32 else "highest")
        with cudnn if cudnn is not None else ExitStack():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _recover(device: torch.device) -> bool:
    """Say whether the device still works after an error: an assertion in a kernel ends its context for good."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
