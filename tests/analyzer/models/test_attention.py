"""Attention models: bounds kept, more hardware never slower, and one problem alike however it is broadcast."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.models.attention.decode import DECODE, SPLITS, flash2_parts
from wavecast.analyzer.models.attention.prefill import PREFILL
from wavecast.analyzer.models.attention.problems import (
    ArithmeticFormat,
    AttentionProblems,
    Dispatch,
    least_work,
    problems_of,
    seen_pairs,
)
from wavecast.analyzer.models.frame.model import Estimate, Model
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import take_problems
from wavecast.analyzer.prediction.bounds import bound_ops
from wavecast.analyzer.work.work import AttentionDims, Family, Work
from wavecast.arrays import Floats
from wavecast.specs.attention_kernels import AttentionKernel
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
NAMES = ("A100 SXM4 80GB", "H100 SXM5 80GB", "L40S", "B200 SXM (HGX, 180GB)", "Tesla V100 PCIe 32GB")
FLEET = build_fleet([find_gpu(CATALOG, name) for name in NAMES])


def problems(**columns: Any) -> AttentionProblems:
    """Return problems of one column each, scalars repeated; a causal prefill of 1,024 tokens unless said otherwise."""
    defaults = {
        **{"batch": 4.0, "heads": 32.0, "kv_heads": 8.0, "queries": 1024.0, "keys": 1024.0},
        **{"query_dim": 128.0, "value_dim": 128.0, "window": 0.0, "is_causal": 1, "has_dropout": 0},
        **{
            "kernel": int(AttentionKernel.FLASH2),
            "arithmetic": int(ArithmeticFormat.BF16),
            "kv_bytes": 2.0,
            "dispatch": int(Dispatch.FIXED),
            "planned_kv_heads": 0.0,
            "copies": 1.0,
        },
    }
    chosen = defaults | columns
    names = [item.name for item in fields(AttentionProblems)]
    arrays = np.broadcast_arrays(*(np.atleast_1d(chosen[name]) for name in names))
    return AttentionProblems(**dict(zip(names, arrays, strict=True)))


def run(model: Model[AttentionProblems], given: AttentionProblems, fleet: Fleet) -> Estimate:
    """Simulate with the priors, every problem on every GPU."""
    values = prior_values(model.parameters, len(fleet.gpus))
    return model.simulate(take_problems(given, (slice(None), None)), fleet, values, None)  # type: ignore[arg-type]


def times(model: Model[AttentionProblems], fleet: Fleet = FLEET, **columns: Any) -> Floats:
    """Return simulated times of one problem, per GPU."""
    return np.asarray(run(model, problems(**columns), fleet).time_ns[0])


def test_fp32_on_amd_is_no_tf32() -> None:
    """MI355X, of less TF32 and more of all else, took four times as long as MI300X."""
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("Instinct MI300X", "Instinct MI355X")])
    older, newer = times(PREFILL, fleet, arithmetic=int(ArithmeticFormat.FP32), kernel=int(AttentionKernel.TRITON))
    assert newer < 1.1 * older


def test_dropout_costs_cycles_on_amd() -> None:
    fleet, kernel = build_fleet([find_gpu(CATALOG, "Instinct MI300X")]), int(AttentionKernel.TRITON)
    without, dropped = (times(PREFILL, fleet, kernel=kernel, has_dropout=item)[0] for item in (0, 1))
    assert without < dropped < 2.0 * without


def test_few_blocks_do_not_fill_the_multiprocessors_that_they_could_share() -> None:
    fleet = build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")])
    sizes = {"heads": 16.0, "kv_heads": 16.0, "queries": 512.0, "keys": 512.0, "query_dim": 64.0, "value_dim": 64.0}
    sizes |= {"kernel": int(AttentionKernel.EFFICIENT), "is_causal": 0}
    few, many = (times(PREFILL, fleet, batch=batch, **sizes)[0] for batch in (1.0, 4.0))
    assert few < many < 2.6 * few


decodes: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    batch=st.sampled_from([1.0, 16.0, 512.0]),
    kv_heads=st.sampled_from([1.0, 8.0]),
    group=st.sampled_from([1.0, 8.0, 24.0, 64.0]),
    keys=st.sampled_from([2.0, 300.0, 4096.0, 65536.0]),
    kv_bytes=st.sampled_from([1.0, 2.0]),
    kernel=st.sampled_from([int(item) for item in AttentionKernel]),
    window=st.sampled_from([0.0, 128.0]),
)


def decode_columns(drawn: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a drawn decode."""
    rest = {name: value for name, value in drawn.items() if name != "group"}
    return rest | {"heads": drawn["group"] * drawn["kv_heads"], "queries": 1.0}


@given(decodes)
@settings(max_examples=40, deadline=None)
def test_decode_reads_its_cache_no_faster_than_the_memory(drawn: dict[str, Any]) -> None:
    given_problems = problems(**decode_columns(drawn))
    bounds = bound_ops(least_work(given_problems), FLEET)
    assert (run(DECODE, given_problems, FLEET).time_ns >= 0.9 * bounds.lower_ns).all()


@pytest.mark.parametrize("kernel", list(AttentionKernel))
@pytest.mark.parametrize("queries", [16.0, 700.0, 16384.0])
@pytest.mark.parametrize("causal", [0, 1])
def test_prefill_stays_above_its_bound(kernel: AttentionKernel, queries: float, causal: int) -> None:
    given_problems = problems(kernel=int(kernel), queries=queries, keys=queries, is_causal=causal)
    bounds = bound_ops(least_work(given_problems), FLEET)
    assert (run(PREFILL, given_problems, FLEET).time_ns >= bounds.lower_ns).all()


@pytest.mark.parametrize("kernel", [AttentionKernel.CUDNN, AttentionKernel.FLASH2, AttentionKernel.EFFICIENT])
def test_dropping_a_score_takes_the_same_whatever_the_head_dim(kernel: AttentionKernel) -> None:
    fleet = build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")])
    narrow, wide = (
        np.diff(
            [
                times(
                    PREFILL, fleet, kernel=int(kernel), queries=4096.0, query_dim=dim, value_dim=dim, has_dropout=item
                )[0]
                for item in (0, 1)
            ]
        )
        for dim in (64.0, 128.0)
    )
    assert narrow > 0
    assert 0.7 < wide / narrow < 1.6


@pytest.mark.parametrize("kernel", [AttentionKernel.FLASH2, AttentionKernel.EFFICIENT])
@pytest.mark.parametrize("dim", [64.0, 128.0])
def test_half_rate_units_hide_more_of_what_is_not_a_product(kernel: AttentionKernel, dim: float) -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("RTX 3090@1695MHz", "A100 SXM4 80GB")])
    columns = {"queries": 8192.0, "keys": 8192.0, "query_dim": dim, "value_dim": dim, "is_causal": 0}
    time = times(PREFILL, fleet, kernel=int(kernel), **columns)
    bound = bound_ops(least_work(problems(kernel=int(kernel), **columns)), fleet).lower_ns[0]
    half, full = time / bound
    assert 1.0 < half < 0.8 * full


def test_wide_heads_on_blackwell_of_consumers_take_whole_tiles() -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("RTX PRO 6000 Blackwell Server", "L40S")])
    columns = {"kernel": int(AttentionKernel.TENSORRT_LLM), "batch": 1.0, "heads": 8.0, "kv_heads": 8.0}
    one, many = (times(PREFILL, fleet, **columns, queries=count, keys=count) for count in (1.0, 128.0))
    assert one[0] == pytest.approx(many[0], rel=0.1)
    assert one[1] < 0.9 * many[1]


def test_encoders_on_blackwell_of_data_centres_have_no_pass_beside_them() -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("B200 SXM (HGX, 180GB)", "H100 SXM5 80GB", "L40S")])
    given = problems(kernel=int(AttentionKernel.TENSORRT_LLM), batch=512.0, is_causal=np.array([0, 1]))
    values = prior_values(PREFILL.parameters, len(fleet.gpus))
    more = {**values, "extra_passes": 2.0 * values["extra_passes"]}
    pair = take_problems(given, (slice(None), None))  # type: ignore[arg-type]
    once, twice = (PREFILL.simulate(pair, fleet, item, None).time_ns for item in (values, more))
    assert (twice > 1.001 * once).tolist() == [[False, True, True], [True, True, True]]


def test_a_window_costs_cudnn_comparisons_of_each_score_that_it_leaves() -> None:
    fleet = build_fleet([find_gpu(CATALOG, "H200 SXM 141GB")])
    columns = {"kernel": int(AttentionKernel.CUDNN), "heads": 64.0, "queries": 8192.0, "keys": 8192.0}
    narrow = {"query_dim": 64.0, "value_dim": 64.0}
    wide_open, all_keys = (times(PREFILL, fleet, **columns, **narrow, window=window)[0] for window in (8191.0, 0.0))
    assert 1.1 < wide_open / all_keys < 1.5


@pytest.mark.parametrize(("dtype", "least", "most"), [("FP8", 1.0, 1.3), ("BF16", 1.7, 3.0)])
def test_a_window_slows_hopper_s_kernels_of_fp8_caches_whose_results_are_wider(
    dtype: str, least: float, most: float
) -> None:
    fleet = build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")])
    columns = {"kernel": int(AttentionKernel.TENSORRT_LLM), "queries": 10240.0, "keys": 10240.0, "kv_bytes": 1.0}
    given = {**columns, "arithmetic": int(ArithmeticFormat[dtype])}
    within, all_keys = (times(PREFILL, fleet, **given, window=window)[0] for window in (8192.0, 0.0))
    assert least < within / all_keys < most


def test_fp8_that_is_widened_starts_more_kernels_than_fp8_that_is_not() -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("L40S", "RTX PRO 6000 Blackwell Server")])
    columns = {"kernel": int(AttentionKernel.TENSORRT_LLM), "arithmetic": int(ArithmeticFormat.FP8), "kv_bytes": 1.0}
    one = {"batch": 1.0, "heads": 1.0, "kv_heads": 1.0, "queries": 1.0, "keys": 1.0}
    own, widened = (times(PREFILL, fleet, **columns, **one, query_dim=dim, value_dim=dim) for dim in (128.0, 64.0))
    assert (widened - own > 3e3).all()


@pytest.mark.parametrize(("kernel", "late_us"), [("TENSORRT_LLM", 1.0), ("FLASH2", 0.0), ("MATH", 0.0)])
def test_served_calls_alone_end_late_on_all_of_blackwell(
    kernel: str, late_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("B200 SXM (HGX, 180GB)", "RTX 5090", "L40S")])
    late = times(PREFILL, fleet, kernel=int(AttentionKernel[kernel]))
    for module in ("frame.gpu_physics", "attention.kernels"):
        monkeypatch.setattr(f"wavecast.analyzer.models.{module}.STEP_US", 0.0)
    added_us = (late - times(PREFILL, fleet, kernel=int(AttentionKernel[kernel]))) / 1e3
    assert added_us == pytest.approx([late_us, late_us, 0.0], abs=0.05)


def test_the_correction_speaks_of_measured_kinds_alone() -> None:
    kernels = np.array([AttentionKernel.PAGED, AttentionKernel.PAGED, AttentionKernel.TENSORRT_LLM], dtype=np.int64)
    sizes = run(PREFILL, problems(kernel=kernels, is_causal=np.array([1, 0, 0])), FLEET).sizes
    assert sizes is not None
    assert np.isnan(sizes).all(axis=-1).reshape(3, -1)[:, 0].tolist() == [False, True, False]


def test_no_higher_matrix_rate_is_slower() -> None:
    base = build_fleet([find_gpu(CATALOG, "RTX 3090")])
    factors = (1.0, 1.1, 1.5, 2.0, 4.0)
    rates = [{rate: flops * factor for rate, flops in base.flops_per_s.items()} for factor in factors]
    time = np.array([times(PREFILL, replace(base, flops_per_s=item), is_causal=0)[0] for item in rates])
    assert (time[1:] <= time[:-1]).all()


@pytest.mark.parametrize("model", [PREFILL, DECODE], ids=lambda model: model.name)
def test_every_catalogued_gpu_gets_a_sane_time(model: Model[AttentionProblems]) -> None:
    fleet = build_fleet(CATALOG.gpus)
    queries = 1.0 if model is DECODE else 4096.0
    time = times(model, fleet, batch=8.0, queries=queries, keys=4096.0)
    estimate = run(model, problems(batch=8.0, queries=queries, keys=4096.0), fleet)
    assert np.isfinite(estimate.described()).all()
    assert estimate.described().shape[-1] == len(model.feature_names)
    assert ((time > 1e3) & (time < 5e9)).all()


@pytest.mark.parametrize("model", [PREFILL, DECODE], ids=lambda model: model.name)
def test_pairs_equal_the_table_of_all(model: Model[AttentionProblems]) -> None:
    queries = np.array([1.0, 1.0, 1.0]) if model is DECODE else np.array([1.0, 100.0, 5000.0])
    given_problems = problems(queries=queries, keys=np.array([64.0, 3000.0, 9000.0]), kernel=np.array([0, 1, 2]))
    table = run(model, given_problems, FLEET)
    rows, columns = (index.ravel() for index in np.indices(table.time_ns.shape))
    paired = take_gpus(FLEET, columns)
    values = prior_values(model.parameters, len(paired.gpus))
    free = model.simulate(take_problems(given_problems, rows), paired, values, None)
    frozen = model.simulate(take_problems(given_problems, rows), paired, values, free.choice)
    np.testing.assert_allclose(free.time_ns, table.time_ns.ravel())
    np.testing.assert_allclose(frozen.time_ns, free.time_ns)
    np.testing.assert_allclose(free.described(), table.described().reshape(len(rows), -1))


@pytest.mark.parametrize("name", ["bandwidth_bytes_per_s", "l2_cache_bytes"])
@given(drawn=decodes)
@settings(max_examples=30, deadline=None)
def test_more_memory_speed_is_never_slower(name: str, drawn: dict[str, Any]) -> None:
    better = replace(FLEET, **{name: getattr(FLEET, name) * 1.5})
    columns = decode_columns(drawn)
    # Parts are chosen by a cheaper norm than the time's: within its slack another number may cost a little more.
    assert (times(DECODE, better, **columns) <= times(DECODE, FLEET, **columns) * (1 + 2e-2)).all()
    assert (times(PREFILL, better, kernel=drawn["kernel"]) <= times(PREFILL, kernel=drawn["kernel"]) + 1e-6).all()


def test_prefill_grows_with_its_square_and_halves_under_a_causal_mask() -> None:
    short, long = (times(PREFILL, queries=size, keys=size) for size in (8192.0, 16384.0))
    assert ((long / short > 3.3) & (long / short < 4.3)).all()
    full = times(PREFILL, queries=16384.0, keys=16384.0, is_causal=0)
    assert ((full / long > 1.7) & (full / long < 2.2)).all()
    assert (times(PREFILL, queries=16384.0, keys=16384.0, window=1024.0) < 0.3 * long).all()


def test_heads_one_by_one_start_slower_on_all_of_blackwell_where_caches_have_16_bits() -> None:
    fleet = build_fleet(
        [find_gpu(CATALOG, name) for name in ("RTX PRO 6000 Blackwell Server", "B200", "H100 SXM5 80GB")]
    )
    columns = {"kernel": int(AttentionKernel.TENSORRT_LLM), "batch": 2048.0, "heads": 96.0, "kv_heads": 1.0}
    wide, narrow = (times(DECODE, fleet, **columns, queries=1.0, keys=4.0, kv_bytes=size) for size in (2.0, 1.0))
    assert (wide[:2] > 1.2 * narrow[:2]).all()
    assert wide[2] == pytest.approx(narrow[2], rel=0.01)


def test_large_groups_fall_to_the_kernel_that_takes_heads_one_by_one() -> None:
    columns: dict[str, Any] = {
        "batch": 512.0,
        "queries": 1.0,
        "keys": 16.0,
        "kv_heads": 1.0,
        "kernel": int(AttentionKernel.TENSORRT_LLM),
    }
    shared, apart = (times(DECODE, heads=heads, **columns) for heads in (32.0, 64.0))
    assert (apart > 4 * shared)[:4].all()  # Volta has no such kernel


@pytest.mark.parametrize("kernel", [AttentionKernel.FLASH2, AttentionKernel.PAGED, AttentionKernel.TENSORRT_LLM])
@pytest.mark.parametrize("queries", [2.0, 4.0, 8.0])
def test_a_few_queries_cost_little_more_than_one(kernel: AttentionKernel, queries: float) -> None:
    columns: dict[str, Any] = {"batch": 8.0, "kv_heads": 32.0, "keys": 16384.0, "kernel": int(kernel), "copies": 6.0}
    one, few = (times(DECODE, queries=count, **columns)[:4] for count in (1.0, queries))
    assert (few >= one).all()
    assert (few < queries * one).all()


def test_seen_pairs_count_the_staircase() -> None:
    counted = seen_pairs(problems(queries=5.0, keys=np.array([5.0, 8.0, 8.0]), window=np.array([0.0, 0.0, 3.0])))
    mask = [[sum(1 for key in range(keys) if row + keys - 5 - window < key <= row + keys - 5) for row in range(5)]
            for keys, window in ((5, 99), (8, 99), (8, 3))]  # fmt: skip
    np.testing.assert_array_equal(counted, [sum(row) for row in mask])


def test_problems_come_from_works() -> None:
    dims = AttentionDims(batch=2, heads=8, kv_heads=2, queries=64, keys=128, query_dim=64, value_dim=32, is_causal=True)
    works = [
        Work(
            family=Family.ATTENTION,
            flops=1.0,
            read_bytes=1.0,
            written_bytes=1.0,
            dtype=dtype,
            dims=dims,
        )
        for dtype in ("bfloat16", "float32")
    ]
    made = problems_of(works, [Rate.MATRIX_BF16, Rate.FP32])
    assert made.arithmetic.tolist() == [ArithmeticFormat.BF16, ArithmeticFormat.FP32]
    assert made.kv_bytes.tolist() == [2, 4]
    assert (made.heads / made.kv_heads).tolist() == [4, 4]
    assert made.is_causal.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("kernel", "group", "name", "may_split"),
    [
        (AttentionKernel.PAGED, 1.0, "A100 SXM4 80GB", False),
        (AttentionKernel.PAGED, 4.0, "A100 SXM4 80GB", True),
        (AttentionKernel.PAGED, 1.0, "H100 SXM5 80GB", True),
        (AttentionKernel.FLASH2, 1.0, "A100 SXM4 80GB", True),
    ],
)
def test_only_ungrouped_decodes_on_a_paged_cache_before_hopper_keep_their_keys_in_one_part(
    kernel: AttentionKernel, group: float, name: str, may_split: bool
) -> None:
    columns: dict[str, Any] = {"batch": 1.0, "queries": 1.0, "keys": 65536.0, "kv_heads": 2.0, "heads": 2.0 * group}
    choice = run(DECODE, problems(kernel=int(kernel), **columns), build_fleet([find_gpu(CATALOG, name)])).choice
    assert choice is not None
    assert (SPLITS[choice] > 1).all() == may_split


@pytest.mark.parametrize(("ctas", "blocks", "parts"), [(64, 64, 3), (128, 32, 3), (16, 32, 11), (1, 4, 4), (172, 1, 1)])
def test_flash_attention_2_makes_the_fewest_parts_that_fill_a100_nearly_as_well_as_the_best(
    ctas: int, blocks: int, parts: int
) -> None:
    assert flash2_parts(np.array([[ctas / 216.0]]), np.array([[float(blocks)]])).tolist() == [parts]


def test_no_more_than_two_decodes_of_flash_attention_2_end_together() -> None:
    a100 = find_gpu(CATALOG, "A100 SXM4 80GB")
    larger = replace(a100, name="Larger", shared_memory_per_sm_bytes=2 * a100.shared_memory_per_sm_bytes)
    columns = {"queries": 1.0, "batch": 20.0, "kv_heads": 32.0, "keys": 2048.0}
    usual, there = times(DECODE, build_fleet([a100, larger]), **columns)
    assert there <= usual


def test_long_steps_over_the_keys_of_narrow_heads_are_flash_attention_2_s_alone() -> None:
    def decode(name: str, kernel: AttentionKernel, keys: float) -> float:
        fleet = build_fleet([find_gpu(CATALOG, name)])
        columns = {"kernel": int(kernel), "queries": 1.0, "keys": keys, "query_dim": 64.0, "value_dim": 64.0}
        return float(times(DECODE, fleet, heads=32.0, kv_heads=32.0, copies=0.0, **columns)[0])

    masked = [decode("A100 SXM4 80GB", AttentionKernel.FLASH2, keys) for keys in (128.0, 256.0)]
    assert masked[1] < 1.02 * masked[0]
    for name, kernel in (("Tesla T4", AttentionKernel.EFFICIENT), ("H100 SXM5 80GB", AttentionKernel.PAGED)):
        assert decode(name, kernel, 256.0) > 1.03 * decode(name, kernel, 128.0)


def test_decodes_of_flash_attention_2_that_share_a_multiprocessor_take_as_long_as_one_after_another() -> None:
    columns: dict[str, Any] = {"queries": 1.0, "keys": 16384.0, "kv_heads": 1.0, "heads": 1.0}
    a100 = build_fleet([find_gpu(CATALOG, "A100 SXM4 80GB")])
    few, more = (
        times(DECODE, a100, kernel=int(AttentionKernel.PAGED), batch=size, **columns) for size in (64.0, 128.0)
    )
    assert 1.7 < more / few < 2.3


@pytest.mark.parametrize("model", [DECODE, PREFILL])
@pytest.mark.parametrize(
    ("batch", "kv_heads", "name", "is_copied"),
    [
        (8.0, 2.0, "L40S", True),
        (16.0, 1.0, "L40S", False),
        (1.0, 16.0, "L40S", False),
        (8.0, 2.0, "H100 SXM5 80GB", False),
    ],
)
def test_grouped_single_queries_of_several_sequences_and_heads_are_copied_before_hopper(
    model: Model[AttentionProblems], batch: float, kv_heads: float, name: str, is_copied: bool
) -> None:
    columns: dict[str, Any] = {"queries": 1.0, "keys": 64.0, "kernel": int(AttentionKernel.PAGED)}
    fleet = build_fleet([find_gpu(CATALOG, name)])
    group = times(model, fleet, batch=batch, kv_heads=kv_heads, heads=4.0 * kv_heads, **columns)
    one = times(model, fleet, batch=batch, kv_heads=kv_heads, heads=kv_heads, **columns)
    assert (group - one > 3000.0).all() == is_copied


def test_parts_planned_for_more_heads_than_there_are_leave_multiprocessors_idle() -> None:
    columns: dict[str, Any] = {"batch": 16.0, "queries": 1.0, "keys": 131072.0, "kv_heads": 1.0, "heads": 8.0}
    h100 = build_fleet([find_gpu(CATALOG, "H100 SXM5 80GB")])
    own, other = (
        times(DECODE, h100, kernel=int(AttentionKernel.PAGED), planned_kv_heads=planned, **columns)
        for planned in (0.0, 8.0)
    )
    assert other > 2.0 * own


def test_the_least_work_multiplies_an_fp8_cache_as_it_is() -> None:
    sizes: dict[str, Any] = {"batch": 2.0, "heads": 8.0, "kv_heads": 2.0, "queries": 1.0, "keys": 1000.0}
    kinds = [(1.0, ArithmeticFormat.BF16), (2.0, ArithmeticFormat.BF16), (2.0, ArithmeticFormat.FP16)]
    found = [least_work(problems(kv_bytes=width, arithmetic=int(kind), **sizes)) for width, kind in kinds]
    assert [item.rate.tolist() for item in found] == [[Rate.MATRIX_FP8], [Rate.MATRIX_BF16], [Rate.MATRIX_FP16]]
    assert found[0].flops == found[1].flops
    assert found[1].moved_bytes - found[0].moved_bytes == 2 * 2 * 1000 * 2 * 128
