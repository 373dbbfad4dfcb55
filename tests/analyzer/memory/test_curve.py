"""Memory over an iteration: what the curve's highest point holds is what the report says of the peak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.memory.curve import MemoryCurve, trace_memory
from wavecast.analyzer.memory.describe import describe_memory
from wavecast.analyzer.memory.use import MemoryUse
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace


def curve_of(path: Path) -> tuple[MemoryUse, MemoryCurve]:
    trace = load_trace(path)
    window = select_window(trace)
    use = describe_memory(trace, window)
    assert use is not None
    return use, trace_memory(trace, window, use)


def assert_peak_agrees(use: MemoryUse, curve: MemoryCurve) -> None:
    total = curve.held_bytes.sum(axis=1)
    at = int(total.argmax())
    held = dict(zip(curve.categories, curve.held_bytes[at].tolist(), strict=True))
    assert total[at] == use.peak_bytes
    assert {category: int(size) for category, size in held.items() if size} == dict(use.held)
    assert (curve.held_bytes >= 0).all()
    assert (np.diff(curve.at) >= 0).all()


@pytest.mark.parametrize("name", ["gpt2_small-training-fp32-b4", "resnet50-inference-fp32-b32"])
def test_the_course_of_lifetimes_has_the_known_peak(root_dir: Path, name: str) -> None:
    use, curve = curve_of(root_dir / "samples" / f"{name}-shapes.json.gz")
    assert not curve.is_timed
    assert_peak_agrees(use, curve)
    assert len(curve.at) > 100


def test_the_course_of_recorded_allocations_has_the_known_peak(root_dir: Path) -> None:
    use, curve = curve_of(root_dir / "samples" / "vit_small-inference-bf16-b4-h100.json.gz")
    assert curve.is_timed
    assert_peak_agrees(use, curve)
