"""Coverage of the public traces: the share of aten GPU time whose work is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from wavecast.analyzer.work import has_formula, work_of
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace

SHAPED = (
    "h100_bert_small_inference",
    "h100_vit_small_inference",
    "mi300x_bert_small_inference",
    "mi300x_vit_small_inference",
    "mi300x_resnet_checkpointed_training",
    "mi300x_torch_compile_triton",
    "b200_eager_inference",
)
LISTS_NOT_RECORDED = ("a100_80gb_training", "v100_dlrm_training_rank0", "v100_dlrm_training_rank1")
"""Files of older profilers, which hold no shapes of tensor lists: their `cat` and `index` cannot be counted."""
UNSHAPED = (
    "a100_alexnet_inference",
    "v100_convnet_ddp_training",
    "v100_training_memory_events",
    "rtx2080ti_resnet_training",
)


def aten_time(trace: Trace) -> tuple[int, Counter[str]]:
    """Return the GPU time of kernels launched by aten ops: all, and that without work by op name."""
    known = 0
    unknown: Counter[str] = Counter()
    parents = trace.ops.parent.tolist()
    for op, duration in zip(trace.kernels.op.tolist(), trace.kernels.duration_ns.tolist(), strict=True):
        name = trace.strings[trace.ops.name[op]] if op >= 0 else ""
        if not name.startswith("aten::"):
            continue
        row = op
        while row >= 0 and not has_work(trace, row):
            row = parents[row]
        if row >= 0:
            known += duration
        else:
            unknown[name] += duration
    return known, unknown


def has_work(trace: Trace, row: int) -> bool:
    signature = trace.ops.signature[row]
    work = work_of(trace.strings[trace.ops.name[row]], trace.signatures[signature] if signature >= 0 else None)
    return work is not None and work.moved_bytes > 0


@pytest.mark.data
@pytest.mark.parametrize("name", SHAPED)
def test_shaped_traces_are_covered(data_dir: Path, name: str) -> None:
    known, unknown = aten_time(load_trace(data_dir / "traces" / f"{name}.json.gz"))
    assert known >= 0.99 * (known + unknown.total()) > 0, unknown


@pytest.mark.data
@pytest.mark.parametrize("name", LISTS_NOT_RECORDED)
def test_older_traces_lack_only_lists(data_dir: Path, name: str) -> None:
    known, unknown = aten_time(load_trace(data_dir / "traces" / f"{name}.json.gz"))
    assert known > 0.9 * (known + unknown.total()) > 0
    assert set(unknown) <= {"aten::cat", "aten::index"}


@pytest.mark.data
@pytest.mark.parametrize("name", [*SHAPED, *LISTS_NOT_RECORDED, *UNSHAPED])
def test_every_aten_op_that_launches_a_kernel_has_a_family(data_dir: Path, name: str) -> None:
    trace = load_trace(data_dir / "traces" / f"{name}.json.gz")
    names = {trace.strings[trace.ops.name[op]] for op in trace.kernels.op.tolist() if op >= 0}
    assert {name for name in names if name.startswith("aten::") and not has_formula(name)} == set()
