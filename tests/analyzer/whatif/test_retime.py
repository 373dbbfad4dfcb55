"""Durations of a changed trace on the GPU of the recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast import load_trace
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.analyzer.whatif.change import Whatif
from wavecast.analyzer.whatif.precision.precision import with_precision
from wavecast.analyzer.whatif.retiming.kernels import cast_times_ns, retime, shift_timeline
from wavecast.analyzer.whatif.scenario import TargetPrecision
from wavecast.arrays import Rows, share_busy_time
from wavecast.errors import InputError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import IterationTable, KernelTable, Meta, OpTable, Trace, Workload
from wavecast.formats.trace.validate import validate
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

A100 = "A100 SXM4 80GB"
PRODUCT, NORM, SORT, COLLECTIVE = range(4)
WIDTH, ROWS = 2048, 64


@pytest.fixture(scope="module")
def a100() -> Gpu:
    return find_gpu(load_catalog(), A100)


@pytest.fixture(scope="module")
def library() -> Any:
    return load_library()


def wide(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape)


def build(**changes: Any) -> Trace:
    """A linear layer, a normalisation, an op that nothing models, and a collective; 8 samples of 64 rows."""
    data, weight = wide(8 * ROWS, WIDTH), wide(WIDTH, WIDTH)
    values: dict[str, Any] = {
        "meta": Meta(workload=Workload(batch_size=8, samples_per_iteration=8)),
        "strings": (
            "aten::addmm",
            "aten::native_layer_norm",
            "mine::sort",
            "c10d::allreduce_",
            "ampere_sgemm_128x64_nn",
            "vectorized_layer_norm_kernel",
            "my_sort",
            "ncclDevKernel_AllReduce",
        ),
        "signatures": (
            Signature((wide(WIDTH), data, weight, 1, 1)),
            Signature((data, (WIDTH,), wide(WIDTH), wide(WIDTH), 1e-5)),
            Signature((data,)),
        ),
        "iterations": build_table(IterationTable, 1, start_ns=[0], end_ns=[900_000]),
        "ops": build_table(
            OpTable,
            4,
            name=[0, 1, 2, 3],
            signature=[0, 1, 2, -1],
            start_ns=[0, 100, 200, 300],
            duration_ns=[90] * 4,
            phase=[0] * 4,
        ),
        "kernels": build_table(
            KernelTable,
            4,
            name=[4, 5, 6, 7],
            kind=[0, 0, 0, 3],
            start_ns=[1_000, 501_000, 601_000, 701_000],
            duration_ns=[450_000, 50_000, 60_000, 100_000],
            op=[0, 1, 2, 3],
        ),
    }
    return Trace(**(values | changes))


def busy_ns(trace: Trace) -> float:
    rows = select_window(trace).kernel_rows
    return float(share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows]).sum())


def test_what_does_not_change_keeps_its_time(a100: Gpu, library: Any) -> None:
    trace = build()
    for same in (Whatif(trace=trace), with_batch(trace, 8), Whatif(trace=replace(trace))):
        changed = retime(trace, same, a100, library).trace
        assert np.array_equal(changed.kernels.duration_ns, trace.kernels.duration_ns)
        assert np.array_equal(changed.kernels.start_ns, trace.kernels.start_ns)
        assert changed.iterations.end_ns.tolist() == trace.iterations.end_ns.tolist()


def test_times_follow_the_models_ratio(a100: Gpu, library: Any) -> None:
    trace = build()
    changed = retime(trace, with_batch(trace, 32), a100, library)
    ratio = changed.trace.kernels.duration_ns / trace.kernels.duration_ns
    assert 3.0 < ratio[PRODUCT] < 4.5
    assert 2.0 < ratio[NORM] < 4.5
    assert ratio[SORT] == ratio[COLLECTIVE] == 1.0
    assert any("1 kernels (9% of the GPU time) belong to ops without" in item for item in changed.warnings)
    validate(changed.trace)


def test_gaps_stay_and_the_iteration_grows_by_what_the_kernels_grow(a100: Gpu, library: Any) -> None:
    trace = build()
    changed = retime(trace, with_batch(trace, 32), a100, library).trace

    def gaps(item: Trace) -> list[int]:
        kernels = item.kernels
        between = kernels.start_ns[1:] - kernels.start_ns[:-1] - kernels.duration_ns[:-1]
        return [int(gap) for gap in between]

    assert gaps(changed) == pytest.approx(gaps(trace), abs=2)
    grown = changed.iterations.end_ns[0] - trace.iterations.end_ns[0]
    assert grown == pytest.approx(busy_ns(changed) - busy_ns(trace), abs=2)
    assert select_window(changed).op_rows.tolist() == select_window(trace).op_rows.tolist()


def test_iterations_without_profiler_grow_alike(a100: Gpu, library: Any) -> None:
    iterations = build_table(
        IterationTable, 3, start_ns=[-1_600_000, -800_000, 0], end_ns=[-800_000, 0, 900_000], profiled=[0, 0, 1]
    )
    trace = build(iterations=iterations)
    changed = retime(trace, with_batch(trace, 32), a100, library).trace
    before, after = select_window(trace).duration_ns, select_window(changed).duration_ns
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(busy_ns(changed) - busy_ns(trace), abs=2)


def test_lower_precision_shortens_products_and_conversions_lengthen_them(a100: Gpu, library: Any) -> None:
    trace = build()
    whatif = with_precision(trace, TargetPrecision.BF16)
    changed = retime(trace, whatif, a100, library).trace
    without = retime(trace, replace(whatif, casts=Whatif(trace=trace).casts), a100, library).trace
    at_product = whatif.casts.op == PRODUCT
    assert at_product.any()
    added = changed.kernels.duration_ns[PRODUCT] - without.kernels.duration_ns[PRODUCT]
    times = cast_times_ns(whatif.casts, build_fleet([a100]), library)[:, 0]
    assert added == pytest.approx(times[at_product].sum(), abs=2)
    assert without.kernels.duration_ns[PRODUCT] < 0.4 * trace.kernels.duration_ns[PRODUCT]


def test_tf32_shortens_float32_products_alone(a100: Gpu, library: Any) -> None:
    trace = build()
    changed = retime(trace, with_precision(trace, TargetPrecision.TF32), a100, library).trace
    assert changed.kernels.duration_ns[PRODUCT] < 0.6 * trace.kernels.duration_ns[PRODUCT]
    assert changed.kernels.duration_ns[NORM:].tolist() == trace.kernels.duration_ns[NORM:].tolist()


def test_a_conversion_to_the_type_that_a_tensor_has_takes_no_time(a100: Gpu, library: Any) -> None:
    # A copy into a bf16 buffer: its float32 source is bf16 under autocast, because a product made it.
    half = TensorSpec("bfloat16", (8 * ROWS, WIDTH))
    base = build()
    trace = replace(
        base,
        strings=(*base.strings[:2], "aten::copy_", *base.strings[3:]),
        signatures=(base.signatures[0], base.signatures[0], Signature((half, wide(8 * ROWS, WIDTH), False))),
        ops=replace(base.ops, name=np.array([0, 0, 2, 3], dtype=np.int32)),
    )
    changed = retime(trace, with_precision(trace, TargetPrecision.BF16), a100, library).trace
    assert changed.kernels.duration_ns[2] == 0


intervals = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100), st.integers(0, 400)), min_size=1, max_size=30)


def kernels_alone(start_ns: Rows, duration_ns: Rows) -> Trace:
    names = np.zeros(len(start_ns), dtype=np.int32)
    table = build_table(KernelTable, len(start_ns), name=names, start_ns=start_ns, duration_ns=duration_ns)
    return Trace(strings=("k",), kernels=table)


@given(intervals)
def test_the_timeline_keeps_order_and_gaps(rows: list[tuple[int, int, int]]) -> None:
    gap, before, after = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    start = np.cumsum(gap + np.concatenate([[0], before[:-1]]))
    moved = shift_timeline(kernels_alone(start, before), after).kernels
    expected = np.cumsum(gap + np.concatenate([[0], after[:-1]]))
    assert moved.start_ns.tolist() == pytest.approx(expected.tolist(), abs=1)
    assert moved.duration_ns.tolist() == after.tolist()


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 100), st.integers(0, 300)), min_size=1, max_size=30))
def test_overlapping_kernels_keep_their_order(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows)
    start, before, after = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    moved = shift_timeline(kernels_alone(start, before), after).kernels
    assert (np.diff(moved.start_ns) >= 0).all()


@pytest.mark.parametrize("name", ["a100_80gb_training", "v100_dlrm_training_rank0", "b200_eager_inference"])
@pytest.mark.parametrize("precision", list(TargetPrecision))
def test_real_traces_stay_valid(
    data_dir: Path, library: Any, name: str, precision: TargetPrecision, request: pytest.FixtureRequest
) -> None:
    trace: Trace = request.getfixturevalue("real_trace")(data_dir / "traces" / f"{name}.json.gz")
    gpu = find_gpu(load_catalog(), {"a": A100, "v": "V100 SXM2 16GB", "b": "B200"}[name[0]])
    try:
        whatif = with_precision(trace, precision)
    except InputError:
        assert name.startswith("b200") or "weights" in precision
        return
    changed = retime(trace, whatif, gpu, library).trace
    validate(changed)
    assert np.array_equal(changed.kernels.op, trace.kernels.op)
    assert (np.diff(changed.kernels.start_ns) >= 0).all()


@pytest.fixture(scope="module")
def real_trace() -> Callable[[Path], Trace]:
    kept: dict[Path, Trace] = {}

    def load(path: Path) -> Trace:
        if path not in kept:
            kept[path] = load_trace(path)
        return kept[path]

    return load
