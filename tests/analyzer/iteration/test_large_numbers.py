"""Sizes that no GPU holds are refused by name, and no report holds a time that is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.iteration.analyze import check_times, report_on, run_analysis
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.page.encoding import encode_csv, encode_json
from wavecast.analyzer.questions.analyze.page.records import draw_report_json, gpu_table, op_table
from wavecast.analyzer.whatif.apply import change_trace
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision
from wavecast.errors import InputError, WavecastError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import MAX_INTEGER, build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Meta, OperandTable, OpTable, TensorTable, Trace, Workload
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
GPUS = [find_gpu(CATALOG, name) for name in ("GB300", "T4", "MI300X", "Tesla P4")]
SAMPLES = sorted(
    path.name
    for path in (Path(__file__).parents[3] / "samples").glob("*-shapes.json.gz")
    if "-rank" not in path.name  # of batch 1, which cannot be rescaled
)
EVERYTHING: dict[str, Any] = {
    "precision": TargetPrecision.FP8,
    "fuse_elementwise": True,
    "cuda_graph": True,
    "cpu_speed": 100.0,
}
HUGE = 2**31


def half(*shape: int) -> TensorSpec:
    return TensorSpec("bfloat16", shape)


def calls(*ops: tuple[str, Signature]) -> Trace:
    """Ops recorded for their shapes alone."""
    return Trace(
        meta=Meta(capture="shapes", has_shapes=True, workload=Workload(batch_size=2)),
        strings=tuple(name for name, _ in ops),
        signatures=tuple(signature for _, signature in ops),
        ops=build_table(OpTable, len(ops), name=range(len(ops)), signature=range(len(ops))),
    )


def product(m: int, k: int, n: int) -> tuple[str, Signature]:
    return "aten::mm", Signature((half(m, k), half(k, n)), (half(m, n),))


def rescaled(trace: Trace, size: int) -> Trace:
    return change_trace(trace, None, Library(fitted={}), Scenario(batch_size=size)).trace


def check_drawn(trace: Trace, scenario: Scenario) -> None:
    """Whatever is drawn holds finite times alone."""
    report = report_on(run_analysis(trace, CATALOG, targets=GPUS, scenario=scenario), op_limit=None)
    json.loads(draw_report_json(report, with_ops=True), parse_constant=pytest.fail)
    for text in (gpu_table(report).to_csv(), op_table(report).to_csv()):
        assert not {"nan", "inf", "-inf"} & set(text.replace("\n", ",").split(","))
    for row in report.predictions:
        assert np.isfinite([row.iteration_ns, row.gpu_busy_ns, *row.idle_ns.values(), *row.methods.values()]).all()
        assert row.iteration_ns > 0


@pytest.mark.parametrize("name", SAMPLES)
def test_a_batch_that_no_gpu_holds_is_refused_by_name(name: str, root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / name)
    for size in (10**7, 10**9, 10**12, MAX_INTEGER, 2**63 - 1, 10**30):
        if "dlrm" in name and size == 10**7:  # fits: its tensors have a few hundred bytes per sample
            check_drawn(trace, Scenario(batch_size=size))
            continue
        with pytest.raises(
            InputError, match=rf"a batch of {size:,}: aten::\w+ \(op \d+\): .*more than any GPU holds .*288 GiB"
        ):
            rescaled(trace, size)


@pytest.mark.parametrize(
    "name", [name for name in SAMPLES if "training-bf16" in name or "resnet50-inference-fp32" in name]
)
def test_the_largest_batch_that_is_not_refused_has_finite_times(name: str, root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / name)
    low, high = trace.meta.workload.batch_size or 1, 10**12
    while high - low > low // 8 + 1:
        middle = math.isqrt(low * high)
        try:
            rescaled(trace, middle)
            low = middle
        except InputError:
            high = middle
    check_drawn(trace, Scenario(batch_size=low))
    check_drawn(trace, Scenario(batch_size=low, **EVERYTHING))


@pytest.mark.parametrize("name", [name for name in SAMPLES if "training-fp32" in name])
def test_a_batch_of_one_has_finite_times(name: str, root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / name)
    check_drawn(trace, Scenario(batch_size=1))
    check_drawn(trace, Scenario(batch_size=1, **EVERYTHING))


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (product(HUGE, HUGE, 16), r"aten::mm \(op 0\): bfloat16\[2147483648,2147483648\] takes 8,589,934,592 GiB"),
        (product(2**62, 2**62, 2**62), r"aten::mm \(op 0\)"),
        (product(2**63 - 1, 1, 1), r"aten::mm \(op 0\)"),
        (("mylib::unknown", Signature((half(10**18),))), r"mylib::unknown \(op 0\)"),
    ],
)
@pytest.mark.parametrize("scenario", [{}, {"precision": TargetPrecision.FP8}, {"batch_size": 4}])
def test_a_recorded_tensor_that_no_gpu_holds_is_refused_by_name(
    op: tuple[str, Signature], said: str, scenario: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=said):
        run_analysis(calls(op), CATALOG, targets=GPUS, scenario=Scenario(**scenario))


def test_an_identified_tensor_that_no_gpu_holds_is_refused() -> None:
    trace = replace(
        calls(("aten::relu", Signature((half(8),), (half(8),)))),
        strings=("aten::relu", "bfloat16"),
        tensors=build_table(TensorTable, 1, storage=[0], element_count=[MAX_INTEGER], dtype=[1], device=[0]),
        operands=build_table(OperandTable, 1, op=[0], tensor=[0], is_output=[False]),
    )
    with pytest.raises(InputError, match=r"aten::relu \(op 0\): tensor 0 of 9,007,199,254,740,992 elements"):
        run_analysis(trace, CATALOG, targets=GPUS)


def test_a_gpu_of_ones_own_may_hold_more() -> None:
    trace = calls(product(2**19, 2**20, 16))
    own = replace(GPUS[0], name="Imagined", memory_bytes=2.0**41)
    run_analysis(trace, CATALOG, targets=[own])
    with pytest.raises(InputError, match=r"aten::mm \(op 0\): bfloat16\[524288,1048576\] takes 1,024 GiB"):
        run_analysis(trace, CATALOG, targets=GPUS)


@pytest.mark.parametrize("size", [MAX_INTEGER + 1, 10**40])
def test_a_batch_that_no_trace_can_say_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"batch size: expected at most {MAX_INTEGER}, got {size}"):
        rescaled(calls(product(3, 5, 7)), size)


def test_an_expanded_tensor_counts_what_it_was_expanded_from() -> None:
    wide = TensorSpec("bfloat16", (HUGE, 4096), (0, 1))
    view = ("aten::expand", Signature((half(4096), (HUGE, 4096)), (half(HUGE, 4096),)))
    check_drawn(calls(("aten::sum", Signature((wide,), (half(),))), view), Scenario())


@pytest.mark.parametrize(
    "op",
    [
        product(HUGE, 16, 16),
        product(16, HUGE, 16),
        product(16, 16, HUGE),
        product(HUGE, 1, 1),
        ("aten::bmm", Signature((half(HUGE, 1, 1), half(HUGE, 1, 1)))),
        ("aten::add", Signature((half(HUGE), half(HUGE), 1))),
        ("aten::_softmax", Signature((half(HUGE, 2), -1, False))),
        ("aten::native_layer_norm", Signature((half(2, HUGE), (HUGE,), half(HUGE), half(HUGE), 1e-5))),
        ("aten::convolution", Signature((half(1, 1, HUGE), half(1, 1, 1), None, (1,), (0,), (1,), False, (0,), 1))),
        (
            "aten::_scaled_dot_product_flash_attention",
            Signature((half(1, 1, HUGE, 8), half(1, 1, HUGE, 8), half(1, 1, HUGE, 8), 0.0, False)),
        ),
    ],
    ids=lambda op: op[0],
)
@pytest.mark.parametrize("scenario", [{}, {"precision": TargetPrecision.FP8, "fuse_elementwise": True}])
def test_products_past_two_to_the_31_have_finite_times(op: tuple[str, Signature], scenario: dict[str, Any]) -> None:
    check_drawn(calls(op, product(64, 64, 64)), Scenario(**scenario))


@pytest.mark.parametrize(
    "op",
    [
        product(0, 64, 64),
        product(64, 0, 64),
        product(1, 1, 1),
        ("aten::bmm", Signature((half(0, 4, 4), half(0, 4, 4)))),
        ("aten::add", Signature((half(0), half(0), 1))),
        ("aten::add", Signature((half(), half(), 1))),
        ("aten::_softmax", Signature((half(0, 8), -1, False))),
        ("aten::_softmax", Signature((half(8, 0), -1, False))),
        ("aten::native_layer_norm", Signature((half(0, 8), (8,), half(8), half(8), 1e-5))),
        ("aten::sum", Signature((half(0, 4),), (half(),))),
        ("aten::embedding", Signature((half(10, 0), TensorSpec("int64", (0,))))),
        (
            "aten::convolution",
            Signature((half(0, 3, 8, 8), half(4, 3, 3, 3), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            Signature((half(0, 1, 8, 8), half(0, 1, 8, 8), half(0, 1, 8, 8), 0.0, False)),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            Signature((half(1, 1, 8, 8), half(1, 1, 0, 8), half(1, 1, 0, 8), 0.0, True)),
        ),
    ],
    ids=lambda op: op[0],
)
@pytest.mark.parametrize("scenario", [{}, EVERYTHING, {"batch_size": 4}])
def test_tensors_without_elements_have_finite_times(op: tuple[str, Signature], scenario: dict[str, Any]) -> None:
    check_drawn(calls(op, product(64, 64, 64)), Scenario(**scenario))


def test_ops_without_a_formula_are_written_too() -> None:
    trace = calls(("mylib::unknown", Signature((half(8),))), product(64, 64, 64))
    report = report_on(run_analysis(trace, CATALOG, targets=GPUS), op_limit=None)
    _, op = json.loads(draw_report_json(report, with_ops=True))["ops"]
    assert (op["method"], op["predicted_ns"], op["predicted_low_ns"], op["share"]) == ("unmodelled", 0.0, None, 0.0)
    assert op_table(report).to_csv().count("\n") == 3


def test_a_model_that_gives_no_time_is_named(root_dir: Path) -> None:
    result = run_analysis(calls(product(64, 64, 64)), CATALOG, targets=GPUS)
    for value in (np.nan, np.inf, -1.0):
        time_ns = result.prediction.time_ns.copy()
        time_ns[0, 1] = value
        broken = replace(result, prediction=replace(result.prediction, time_ns=time_ns))
        with pytest.raises(WavecastError, match=rf"aten::mm \(op 0\) is predicted to take {value:g} ns on Tesla T4"):
            check_times(broken)
    forecast = replace(result.forecast, busy_ns=result.forecast.busy_ns * np.nan)
    with pytest.raises(WavecastError, match="the GPU's busy time comes to nan ns on GB300"):
        check_times(replace(result, forecast=forecast))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_time_that_is_none_is_encoded(value: float) -> None:
    for document in ({"a_ns": value}, {"idle_ns": {"host": value}}, {"rows": [{"x": 1, "low_ns": value}]}):
        with pytest.raises(WavecastError, match="_ns comes to"):
            encode_json(document)
    with pytest.raises(WavecastError, match="b_ns comes to"):
        encode_csv(("a", "b_ns"), [("x", 1.0), ("y", value)])


def test_ratios_that_are_not_known_are_null_and_empty() -> None:
    assert json.loads(encode_json({"ratio": float("nan")})) == {"ratio": None}
    assert encode_csv(("ratio", "b_ns"), [(float("nan"), None)]) == "ratio,b_ns\n,\n"


def test_expanded_tensors_of_more_elements_than_are_counted_are_refused() -> None:
    wide = TensorSpec("float16", (2**31, 2**31), (0, 0))
    for scenario in (Scenario(), Scenario(precision=TargetPrecision.FP8)):
        with pytest.raises(InputError, match=r"float16\[2147483648,2147483648\] has over 2\^53 elements"):
            run_analysis(calls(("aten::mm", Signature((wide, wide)))), CATALOG, targets=GPUS, scenario=scenario)
