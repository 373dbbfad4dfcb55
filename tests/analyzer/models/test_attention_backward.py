"""Attention's backward: what its model holds to, whatever was fitted, and how measured rows are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet
from wavecast.analyzer.measurements.attention_backward import load_forward, load_samples
from wavecast.analyzer.models.attention.problems import ArithmeticFormat, AttentionProblems, Dispatch
from wavecast.analyzer.models.attention_backward.model import MODEL, group
from wavecast.analyzer.models.attention_backward.problems import BackwardProblems, least_work
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.arrays import Floats
from wavecast.errors import InputError
from wavecast.specs.attention_kernels import AttentionKernel
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
FLEET = build_fleet(CATALOG.gpus)
H200, GB200, A100 = "H200 SXM 141GB", "GB200 (per GPU)", "A100 SXM4 80GB"


def problems(**columns: Any) -> BackwardProblems:
    """Return one causal problem of 4,096 tokens on cuDNN's kernels, unless said otherwise."""
    chosen = {
        **{"batch": 2.0, "heads": 32.0, "kv_heads": 32.0, "queries": 4096.0, "keys": 4096.0},
        **{"query_dim": 128.0, "value_dim": 128.0, "window": 0.0, "is_causal": 1, "has_dropout": 0},
        **{
            "kv_bytes": 2.0,
            "copies": 6.0,
            "planned_kv_heads": 0.0,
            "kernel": int(AttentionKernel.CUDNN),
            "dispatch": int(Dispatch.FIXED),
        },
        **{"arithmetic": int(ArithmeticFormat.BF16), "is_deterministic": 0, "is_block_scaled": 0, "lacks_clearing": 0},
    } | columns
    return BackwardProblems(**{name: np.atleast_1d(value) for name, value in chosen.items()})


def times(*names: str, **columns: Any) -> Floats:
    """Return times on GPUs (default: all), with the priors."""
    fleet = build_fleet([find_gpu(CATALOG, name) for name in names]) if names else FLEET
    values = prior_values(MODEL.parameters, len(fleet.gpus))
    return np.asarray(MODEL.simulate(as_columns(problems(**columns)), fleet, values, None).time_ns[0])


sizes = st.sampled_from([64.0, 100.0, 128.0, 1000.0, 4096.0, 20_000.0])


@given(batch=st.integers(1, 8), queries=sizes, heads=st.sampled_from([1.0, 8.0, 40.0]), causal=st.booleans())
def test_times_are_above_the_products_at_peak(batch: int, queries: float, heads: float, causal: bool) -> None:
    columns = {"batch": float(batch), "queries": queries, "keys": queries, "heads": heads, "kv_heads": 1.0}
    columns |= {"is_causal": int(causal)}
    work = least_work(problems(**columns))
    peak = FLEET.flops_per_s[Rate.MATRIX_BF16]
    assert (times(**columns) >= work.flops[0] / peak * 1e9).all()


@pytest.mark.parametrize(
    "more",
    [
        {"batch": 4.0},
        {"queries": 8192.0, "keys": 8192.0},
        {"is_causal": 0},
        {"query_dim": 192.0},
        {"is_deterministic": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_more_of_it_takes_longer(more: dict[str, float]) -> None:
    assert (times(**more) >= times()).all()
    assert (times(H200, GB200, **more) > times(H200, GB200)).all()


def test_tiles_of_torchs_kernels_are_nvidias() -> None:
    """Those of other vendors neither shrink at a head dim of 192 nor fill up 64 queries."""
    other = [gpu.name for gpu in CATALOG.gpus if gpu.vendor != "NVIDIA"]
    wide, wider = (times(*other, queries=128.0, keys=512.0, query_dim=dim, value_dim=dim) for dim in (192.0, 193.0))
    assert (wider >= wide).all()
    few, more = (times(*other, queries=queries, keys=64.0, is_causal=0) for queries in (1.0, 64.0))
    assert (few < 0.7 * more).all()


def least_ns(name: str, rate: Rate, **columns: Any) -> float:
    """Return the time of the products at the peak."""
    peak = build_fleet([find_gpu(CATALOG, name)]).flops_per_s[rate][0]
    return float(least_work(problems(**columns)).flops[0] / peak * 1e9)


def test_nvidias_registers_limit_no_matrix_engine_of_gaudi() -> None:
    columns = {"kernel": int(AttentionKernel.MATH), "query_dim": 512.0, "value_dim": 512.0, "is_causal": 0}
    assert times("Gaudi 3", **columns)[0] < 6.0 * least_ns("Gaudi 3", Rate.MATRIX_BF16, **columns)


@pytest.mark.parametrize("name", ["Tesla V100 SXM2 16GB", "Tesla T4", "Tesla P100 SXM2"])
def test_memory_efficient_kernels_reach_no_more_of_vector_lanes_than_of_tensor_cores(name: str) -> None:
    columns = {"kernel": int(AttentionKernel.EFFICIENT), "arithmetic": int(ArithmeticFormat.FP32), "is_causal": 0}
    assert times(name, **columns)[0] > 2.0 * least_ns(name, Rate.FP32, **columns)


def efficient(**columns: Any) -> float:
    """Return the time of a memory-efficient kernel without a mask on H200."""
    chosen = {"kernel": int(AttentionKernel.EFFICIENT), "is_causal": 0, "batch": 1.0, "query_dim": 64.0} | columns
    return float(times(H200, value_dim=chosen["query_dim"], **chosen)[0])


def test_memory_efficient_blocks_take_64_keys_of_narrow_heads() -> None:
    sizes = {"queries": 4096.0, "keys": 128.0, "kv_heads": 1.0}
    narrow, wide = (
        efficient(heads=132.0, query_dim=dim, **sizes) / efficient(heads=66.0, query_dim=dim, **sizes)
        for dim in (64.0, 128.0)
    )
    assert narrow > 1.5 > 1.3 > wide


def test_many_memory_efficient_blocks_take_all_of_few_keys_at_once() -> None:
    sizes = {"queries": 4096.0, "keys": 256.0, "query_dim": 128.0}
    assert efficient(heads=256.0, **sizes) < 0.98 * efficient(heads=254.0, **sizes) * 256 / 254


def test_memory_efficient_blocks_wait_for_queries_that_all_add_to() -> None:
    few, many = (efficient(batch=8.0, heads=16.0, queries=m, keys=n) for m, n in ((77.0, 4096.0), (4096.0, 77.0)))
    assert few > 3.0 * many


def test_blocks_of_one_head_wait_for_each_other_once() -> None:
    one = {"queries": 1.0, "heads": 1.0, "kv_heads": 1.0}
    assert efficient(**one, keys=262_144.0) < 2.05 * efficient(**one, keys=131_072.0)


def test_a_window_saves_what_it_hides() -> None:
    assert (
        times(H200, GB200, queries=32768.0, keys=32768.0, window=1024.0)
        < 0.2 * times(H200, GB200, queries=32768.0, keys=32768.0)
    ).all()


def test_kernels_for_older_instructions_are_slow_on_newer_gpus() -> None:
    older, newer = (
        times(A100, H200, GB200, kernel=int(name)) for name in (AttentionKernel.FLASH2, AttentionKernel.CUDNN)
    )
    ratio = older / newer
    assert ratio[0] == pytest.approx(1.0, rel=0.01)
    assert 1.3 < ratio[1] < ratio[2]


def test_the_first_flash_attention_takes_twice_the_time_of_the_second() -> None:
    first, second = (times(A100, H200, kernel=int(name)) for name in (AttentionKernel.FLASH1, AttentionKernel.FLASH2))
    assert (first / second).tolist() == pytest.approx([2.0, 2.0], rel=0.15)


def test_clearing_takes_a_launch_and_the_sums_in_fp32() -> None:
    left_out, whole = (times(H200, lacks_clearing=lacks)[0] for lacks in (1, 0))
    cleared_ns = 2 * 32 * 4096 * 128 * 4 / 4.8e12 * 1e9
    assert cleared_ns < whole - left_out < 2.0 * cleared_ns + 4e3


def test_groups_are_those_that_were_measured() -> None:
    kernels = np.array([AttentionKernel.CUDNN, AttentionKernel.CUDNN, AttentionKernel.FLASH3])
    arithmetic = np.array([ArithmeticFormat.BF16, ArithmeticFormat.FP8, ArithmeticFormat.BF16])
    assert group(problems(kernel=kernels, arithmetic=arithmetic)).tolist() == [0, 1, 2]


def test_least_work_is_five_products_and_every_tensor_once() -> None:
    least = least_work(problems(is_causal=0, batch=1.0, heads=4.0, kv_heads=2.0, queries=8.0, keys=8.0))
    assert least.flops.tolist() == [5 * 2 * 4 * 8 * 8 * 128]
    assert least.moved_bytes.tolist() == [2 * (4 * 4 * 8 * 128 + 2 * 4 * 8 * 128)]


def row(**columns: object) -> dict[str, object]:
    found: dict[str, object] = {
        **{"gpu": H200, "batch": 1, "seq_q": 2048, "seq_kv": 2048, "heads": 64, "kv_heads": 8},
        **{"head_dim_qk": 192, "head_dim_v": 128, "mask": "top_left", "window": 0, "dtype": "bf16"},
        **{"backend": "cudnn", "deterministic": False, "direction": "backward", "latency_us": 464.0},
    }
    return found | columns


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "ops" / "attention_backward.parquet"
    path.parent.mkdir()
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return folder


def test_backward_rows_are_read(tmp_path: Path) -> None:
    rows = [row(), row(direction="forward"), row(dtype="mxfp8", deterministic=True, mask="no_mask", backend="flash3")]
    (samples,) = load_samples(write(tmp_path, rows))
    found = samples.problems
    assert found.is_causal.tolist() == [1, 0]
    assert found.is_deterministic.tolist() == found.is_block_scaled.tolist() == [0, 1]
    assert found.lacks_clearing.tolist() == [1, 1]
    assert found.kernel.tolist() == [AttentionKernel.CUDNN, AttentionKernel.FLASH3]
    assert found.kv_bytes.tolist() == [2, 1]
    assert samples.family.tolist() == ["attention backward (cudnn)", "attention backward (flash3)"]


def test_forward_rows_are_prefill(tmp_path: Path) -> None:
    rows = [row(), row(direction="forward"), row(direction="forward", dtype="mxfp8")]
    samples = load_forward(write(tmp_path, rows))
    assert samples.model == "attention_prefill"
    assert samples.family.tolist() == ["attention forward (cudnn)"]
    assert type(samples.problems) is AttentionProblems


@pytest.mark.parametrize(("column", "wrong"), [("mask", "diagonal"), ("backend", "abacus"), ("direction", "up")])
def test_a_row_that_cannot_be_is_refused(tmp_path: Path, column: str, wrong: object) -> None:
    with pytest.raises(InputError, match=f"{column} of row 0 is {wrong!r}"):
        load_samples(write(tmp_path, [row(**{column: wrong})]))
