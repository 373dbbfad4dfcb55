"""A captured iteration that is unlike the timed ones: what ran in it besides a step is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wavecast.analyzer.iteration.analyze import analyze_trace
from wavecast.errors import InputError
from wavecast.specs.gpu import Catalog, Gpu

MS = 1_000_000
TIMED_MS = 40


@pytest.mark.parametrize(
    ("captured_ms", "busy_ms", "op", "said"),
    [
        (90, 38, "aten::mm", None),  # the profiler's overhead
        (41, 41, "aten::mm", None),
        (90, 38, "PythonDispatchMode", "torch compiled code in the captured iteration (90.0 ms; 40.0 ms without"),
        (100, 38, "entire_frame_compile (dynamo_timed)", "torch compiled code"),
        (200, 38, "aten::mm", "5.0 times as long as the timed ones"),
        (100, 61, "aten::mm", "the GPU is busy for 61.0 ms in the captured iteration"),
    ],
)
def test_what_ran_beside_a_step_is_said(
    recording: Any, gpu: Callable[..., Gpu], captured_ms: int, busy_ms: int, op: str, said: str | None
) -> None:
    fill(recording, captured_ms, busy_ms, op)
    report = analyze_trace(recording.trace(), Catalog(gpus=(gpu(),)), source=gpu())
    found = [sentence for sentence in report.warnings if "captured iteration" in sentence or "timed ones" in sentence]
    assert bool(found) == (said is not None)
    assert all(said in sentence for sentence in found if said)


def test_an_iteration_that_is_mostly_compiling_is_refused(recording: Any, gpu: Callable[..., Gpu]) -> None:
    fill(recording, 6_790, 38, "PythonDispatchMode")
    with pytest.raises(InputError, match=r"compiled code .* \(6\.79 s; 40\.0 ms without .*; record again"):
        analyze_trace(recording.trace(), Catalog(gpus=(gpu(),)), source=gpu())


def fill(recording: Any, captured_ms: int, busy_ms: int, op: str) -> None:
    """Record three timed iterations and a captured one."""
    for at in range(3):
        recording.iteration((at - 3) * TIMED_MS * MS, (at - 2) * TIMED_MS * MS, profiled=False)
    recording.iteration(0, captured_ms * MS, 0, captured_ms * MS)
    recording.op(1_000, 20_000, name=op)
    recording.launch(2_000, 5_000, 10_000, busy_ms * MS - 20_000)
