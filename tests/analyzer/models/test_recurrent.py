"""Recurrent layers: what their model holds to, whatever was fitted, and how measured ones are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from wavecast.analyzer.measurements.recurrent import load_samples
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.recurrent.model import MODEL, simulate
from wavecast.analyzer.models.recurrent.problems import group, least_work, problems_of, problems_of_dims
from wavecast.analyzer.work import Family, Work
from wavecast.analyzer.work.work import Direction, RecurrentDims
from wavecast.arrays import Floats
from wavecast.errors import InputError
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Rate

FLEET = build_fleet(load_catalog().gpus)
LSTM = RecurrentDims(gates=4, layers=2, directions=1, steps=50, batch=32, input_size=256, hidden_size=512)


def times(dims: RecurrentDims, rate: Rate = Rate.MATRIX_FP16) -> Floats:
    work = Work(family=Family.RECURRENT, flops=1.0, read_bytes=1.0, written_bytes=1.0, dtype="float16", dims=dims)
    rows = as_columns(problems_of([work], [rate]))
    values = prior_values(MODEL.parameters, len(FLEET.gpus))
    return np.asarray(simulate(rows, FLEET, values, None).time_ns[0])


def test_times_are_above_the_products_at_peak() -> None:
    weights = 4 * 512 * (256 + 512) + 4 * 512 * (512 + 512)
    peak = np.maximum(FLEET.flops_per_s[Rate.MATRIX_FP16], FLEET.flops_per_s[Rate.FP32])
    found = times(LSTM)
    assert np.isfinite(found).all()
    assert (found >= 2 * 50 * 32 * weights / peak * 1e9).all()


@pytest.mark.parametrize(
    "more",
    [
        replace(LSTM, steps=100),
        replace(LSTM, layers=4),
        replace(LSTM, directions=2),
        replace(LSTM, hidden_size=1024),
        replace(LSTM, direction=Direction.BOTH_GRADIENTS),
    ],
    ids=["steps", "layers", "directions", "hidden", "weight gradient"],
)
def test_more_of_it_takes_longer(more: RecurrentDims) -> None:
    assert (times(more) >= times(LSTM)).all()


def test_small_layers_wait_for_their_steps() -> None:
    small = replace(LSTM, hidden_size=64, input_size=64, batch=1, layers=1)
    assert times(replace(small, steps=1000)) / times(small) == pytest.approx(20.0, rel=0.1)


def on(name: str, dims: RecurrentDims, rate: Rate = Rate.MATRIX_FP16) -> float:
    return float(times(dims, rate)[[gpu.name for gpu in FLEET.gpus].index(name)])


H100 = "H100 SXM5 80GB"


def test_a_product_with_a_vector_shares_its_depth_among_threads() -> None:
    lone = replace(LSTM, layers=1, batch=1, input_size=128, hidden_size=512)
    few = replace(lone, batch=16)
    assert on(H100, lone, Rate.MATRIX_FP32) < 0.8 * on(H100, few, Rate.MATRIX_FP32)


@pytest.mark.parametrize("name", ["Tesla V100 SXM2 16GB", "Tesla T4"])
def test_formats_without_a_matrix_unit_run_as_fp32(name: str) -> None:
    """They had fp32's rate and matrix units' loss on odd rows: 44 ms for bf16 of 500 on V100, 8 of 512."""
    odd = replace(LSTM, hidden_size=500, batch=64)
    assert on(name, odd, Rate.MATRIX_TF32) == on(name, odd, Rate.MATRIX_FP32)
    assert on(name, odd, Rate.MATRIX_BF16) < 1.1 * on(name, replace(odd, hidden_size=512), Rate.MATRIX_BF16)


def test_smaller_matrix_units_are_kept_busier() -> None:
    """Units of a quarter of Hopper's rate waited as long as these for what feeds them: 3.1 x its time on an H20."""
    small, large = (on(name, LSTM, Rate.MATRIX_TF32) for name in ("H20 96GB", H100))
    assert large < small < 2 * large


def test_kernels_are_less_certain_where_no_kernel_was_measured() -> None:
    work = Work(family=Family.RECURRENT, flops=1.0, read_bytes=1.0, written_bytes=1.0, dtype="float16", dims=LSTM)
    rows = as_columns(problems_of([work], [Rate.MATRIX_FP16]))
    estimate = simulate(rows, FLEET, prior_values(MODEL.parameters, len(FLEET.gpus)), None)
    assert estimate.unstated is not None
    unstated = dict(zip((gpu.name for gpu in FLEET.gpus), estimate.unstated[0].tolist(), strict=True))
    assert unstated[H100] == 0.0 < unstated["GeForce RTX 4090"]


def test_upper_layers_of_a_stack_multiply_their_inputs_step_by_step() -> None:
    """With those of all steps at once two layers would take twice as long as one."""
    wide = replace(LSTM, layers=1, batch=64, hidden_size=1024, input_size=1024)
    assert on(H100, replace(wide, layers=2), Rate.MATRIX_FP32) > 2.2 * on(H100, wide, Rate.MATRIX_FP32)


def test_bf16_weights_are_copied_before_a_short_pass() -> None:
    short = replace(LSTM, steps=1, hidden_size=2048)
    assert on(H100, short, Rate.MATRIX_BF16) > on(H100, short) + 8e3


def test_small_weight_gradients_leave_multiprocessors_idle() -> None:
    small = replace(LSTM, layers=1, batch=256, steps=512, hidden_size=256, direction=Direction.BOTH_GRADIENTS)
    data = replace(small, direction=Direction.INPUT_GRADIENT)
    weights = on(H100, small, Rate.MATRIX_TF32) - on(H100, data, Rate.MATRIX_TF32)
    flops = 2 * 512 * 256 * 4 * 256 * (256 + 256)
    assert weights > 5 * flops / 495e12 * 1e9


PERSISTENT = RecurrentDims(gates=4, layers=1, directions=1, steps=100, batch=64, input_size=512, hidden_size=1024)


@pytest.mark.parametrize("name", ["Tesla V100 SXM2 16GB", "A100 SXM4 80GB", "H100 SXM5 80GB"])
def test_a_layer_that_fits_registers_runs_persistently(name: str) -> None:
    larger = replace(PERSISTENT, hidden_size=1152)
    assert 1.5 * on(name, PERSISTENT) < on(name, larger)
    assert 1.4 * on(name, PERSISTENT) < on(name, PERSISTENT, Rate.MATRIX_BF16)


@pytest.mark.parametrize("name", ["Tesla T4", "GeForce RTX 3090", "Tesla P100 PCIe 16GB", "Instinct MI210"])
def test_elsewhere_it_walks_step_by_step(name: str) -> None:
    assert on(name, replace(PERSISTENT, hidden_size=1152)) < 2 * on(name, PERSISTENT)


def test_both_gradients_are_those_of_data_and_of_weights() -> None:
    both, data, weights = (
        times(replace(LSTM, direction=direction))
        for direction in (Direction.BOTH_GRADIENTS, Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT)
    )
    assert (both >= np.maximum(data, weights)).all()
    assert (both <= data + weights).all()


def test_least_work_counts_every_weight_once_per_step() -> None:
    problems = problems_of_dims([LSTM, replace(LSTM, direction=Direction.BOTH_GRADIENTS)], [Rate.MATRIX_FP16] * 2)
    weights = 4 * 512 * (256 + 512) + 4 * 512 * (512 + 512)
    assert least_work(problems).flops.tolist() == [2 * 50 * 32 * weights, 4 * 50 * 32 * weights]


def row(**columns: object) -> dict[str, object]:
    found: dict[str, object] = {
        "gpu": "Tesla V100 SXM2 16GB",
        "op": "lstm",
        "direction": "forward",
        "batch": 16,
        "steps": 25,
        "input_size": 512,
        "hidden_size": 512,
        "layers": 1,
        "bidirectional": False,
        "input_product": False,
        "dtype": "fp16",
        "timing": "host_mean100_hot",
        "latency_us": 450.0,
    }
    return found | columns


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "ops" / "recurrent.parquet"
    path.parent.mkdir()
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return folder


def test_rows_are_read_as_they_were_measured(tmp_path: Path) -> None:
    rows = [
        row(),
        row(op="gru", direction="backward_weights", bidirectional=True),
        row(input_product=True, dtype="fp32"),
    ]
    (samples,) = load_samples(write(tmp_path, rows))
    problems = samples.problems
    assert problems.gates.tolist() == [4, 3, 4]
    assert problems.input_size.tolist() == [0, 0, 512]
    assert problems.directions.tolist() == [1, 2, 1]
    assert problems.walks.tolist() == [1, 0, 1]
    assert problems.weight_gradients.tolist() == [0, 1, 0]
    assert problems.is_host_timed.tolist() == [1, 1, 1]
    assert group(problems).tolist() == [0, 2, 0]
    assert samples.family.tolist() == ["recurrent lstm", "recurrent gru", "recurrent lstm"]
    assert samples.measured_ns.tolist() == [450e3] * 3


@pytest.mark.parametrize(
    ("column", "wrong"), [("op", "qrnn"), ("direction", "sideways"), ("dtype", "fp3"), ("hidden_size", 0)]
)
def test_a_row_that_cannot_be_is_refused(tmp_path: Path, column: str, wrong: object) -> None:
    with pytest.raises(InputError, match=f"{column} of row 0 is {wrong!r}"):
        load_samples(write(tmp_path, [row(**{column: wrong})]))
