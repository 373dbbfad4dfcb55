"""Times calls on a GPU by CUDA-graph replay, where they can be captured, or between events; on a CPU by its clock.

The methods are those of the public measurement tables: `graph_mean` replays three times, then takes the mean of six
replays; `event_min5` and `host_min5` take the mean of the 5 fastest of 25 single launches.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

GRAPH, EVENTS, HOST = "graph_mean", "event_min5", "host_min5"
CALLS_PER_GRAPH = 6
WARM_REPLAYS, REPLAYS = 3, 6
LAUNCHES, FASTEST = 25, 5
LONG_CALL_US = 5e3
"""Longer calls stand alone in their graph and are replayed half as often: they outlast the caches and the jitter."""
LONG_HOST_CALL_US = 20e3

Call = Callable[[], object]


class Timed(NamedTuple):
    """Hold the mean time of a call, and the method that it was timed by."""

    latency_us: float
    timing: str


def time_call(call: Call, device: str) -> Timed:
    """Return the mean time of one call on `device` (`cuda` or `cpu`), whose operands it finds in the caches.

    Raises RuntimeError (or torch.OutOfMemoryError) where the call does. A backward pass is to be timed within
    `own_stream`, its forward pass included.
    """
    with own_stream(device):
        return time_calls([call], device)


def time_calls(calls: Sequence[Call], device: str) -> Timed:
    """Return the mean time of one call; `calls` do the same on operands of their own, and are taken in turn.

    On `cuda`, run within `own_stream`: the default stream cannot be captured. Raises RuntimeError (or
    torch.OutOfMemoryError) where a call does.
    """
    if device == "cpu":
        calls[0]()
        count = LAUNCHES if _host_us(calls[0]) < LONG_HOST_CALL_US else FASTEST  # of long ones fewer
        return Timed(_fastest_mean([_host_us(calls[0]) for _ in range(count)]), HOST)
    for call in calls:
        call()
    once_us = _event_us(calls[0])
    try:
        return Timed(_replayed_us(calls, once_us), GRAPH)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # some ops wait for the device or allocate: they cannot be captured
        torch.cuda.synchronize()
    count = LAUNCHES if once_us < LONG_CALL_US else FASTEST
    return Timed(_fastest_mean([_event_us(calls[0]) for _ in range(count)]), EVENTS)


def _replayed_us(calls: Sequence[Call], once_us: float) -> float:
    is_long = once_us >= LONG_CALL_US
    captured = [calls[0]] if is_long else [calls[at % len(calls)] for at in range(CALLS_PER_GRAPH)]
    warm, replays = (1, REPLAYS // 2) if is_long else (WARM_REPLAYS, REPLAYS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for call in captured:
            call()
    for _ in range(warm):
        graph.replay()

    def replay() -> None:
        for _ in range(replays):
            graph.replay()

    return _event_us(replay) / (replays * len(captured))


def _event_us(call: Call) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _host_us(call: Call) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) * 1e-3


def _fastest_mean(times_us: Sequence[float]) -> float:
    fastest = sorted(times_us)[:FASTEST]
    return sum(fastest) / len(fastest)


_STREAMS: dict[int, torch.cuda.Stream] = {}


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """Run on one side stream: backward passes run where their forward pass did, and only there can be captured."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    index = torch.cuda.current_device()
    if index not in _STREAMS:
        _STREAMS[index] = torch.cuda.Stream()
    with torch.cuda.stream(_STREAMS[index]):
        yield
    torch.cuda.synchronize()


def recover(device: torch.device) -> bool:
    """Say whether the device still works after an error: an assertion in a kernel ends its context for good."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
