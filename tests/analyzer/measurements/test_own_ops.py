"""Own measurements of single calls: what was called, which model they teach, which shapes they are drawn by."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from wavecast.analyzer.measurements.own_lists import load_lists
from wavecast.analyzer.measurements.own_ops import own_share, read_own
from wavecast.analyzer.measurements.own_works import calls_of, load_own, read_works, tensor
from wavecast.analyzer.measurements.readers import check_directory
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.questions.score.own_networks import score_own
from wavecast.analyzer.questions.score.weights import choose_weights
from wavecast.analyzer.work.optimizer import ROOT_OPERATIONS
from wavecast.analyzer.work.registry import work_of
from wavecast.analyzer.work.work import RowDims
from wavecast.errors import InputError
from wavecast.formats.trace.signature import TensorSpec

pyarrow = pytest.importorskip("pyarrow")
TRAINED = 0.25


def row(op: str, dims: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "gpu": "H100 SXM5 80GB",
        "family": "vector",
        "op": op,
        "dims": orjson.dumps(dims).decode(),
        "dtype": "bf16",
        "layout": None,
        "direction": "forward",
        "operands": "dram",
        "latency_us": 10.0,
        "kernels": ["a_kernel"],
        **more,
    }


ROWS = [
    row("relu", {"n": 4096}),
    row("relu", {"n": 4096}, operands="reused", latency_us=5.0),
    row("sort", {"rows": 8, "cols": 512}),
    row("masked_fill", {"rows": 8, "cols": 512}),
    row("unheard_of", {"n": 1}),
    row("batch_norm", {"batch": 2, "channels": 8, "size": 7}, family="norm", layout="NHWC"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    from pyarrow import Table, parquet

    (tmp_path / "own").mkdir()
    parquet.write_table(Table.from_pylist(ROWS), tmp_path / "own" / "ops.parquet")
    return tmp_path


def test_rows_are_read_by_family(data: Path) -> None:
    assert len(read_own(data, "vector")["op"]) == 5
    assert read_own(data, "norm")["dims"][0]["channels"] == 8
    assert len(read_own(data / "nowhere", "vector")["op"]) == 0


@pytest.mark.parametrize("dims", ["{", "[1]", "4"])
def test_dims_that_are_no_object_are_named(tmp_path: Path, dims: str) -> None:
    from pyarrow import Table, parquet

    (tmp_path / "own").mkdir()
    parquet.write_table(Table.from_pylist([{**ROWS[0], "dims": dims}]), tmp_path / "own" / "ops.parquet")
    with pytest.raises(InputError, match=r"ops.parquet: dims .* is no JSON object"):
        read_own(tmp_path, "vector")


def test_recordings_that_are_named_and_missing_are_said(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    (tmp_path / "own").mkdir()
    named = {"gpu": "H100 SXM5 80GB", "workload": "a", "compiled": False, "joules": None, "trace": "a.json"}
    named |= {"ms": 1.0, "event_ms": 1.0}
    parquet.write_table(Table.from_pylist([named]), tmp_path / "own" / "iterations.parquet")
    check_directory(tmp_path)
    with pytest.raises(InputError, match=r"a\.json: no such file"):
        score_own(tmp_path, choose_weights(load=lambda _: Library(fitted={})))


def test_a_row_of_several_calls_trains_no_model(data: Path) -> None:
    works = {item.row["op"]: len(item.works) for item in read_works(data, TRAINED)}
    assert works == {"relu": 1, "sort": 1, "masked_fill": 3, "batch_norm": 1}
    vector, reduction = (load_own(data, name, TRAINED)[0] for name in ("vector", "reduction"))
    assert vector.measured_ns.tolist() == [10e3, 5e3]
    assert reduction.family.tolist() == ["sort", "batch norm"]


def test_operands_that_were_just_used_lie_in_the_cache(data: Path) -> None:
    (samples,) = load_own(data, "vector", TRAINED)
    assert samples.problems.moved_since_bytes.tolist() == [np.inf, 0.0]


def test_a_shape_is_drawn_alike_whatever_its_operands(data: Path) -> None:
    table = read_own(data, "vector")
    shares = own_share(table, TRAINED)
    assert shares[0] == shares[1]
    assert len(set(shares.tolist())) == 4


def test_channels_last_lie_next_to_each_other() -> None:
    assert tensor("float32", 2, 8, 7, 7, is_last=True).strides == (392, 1, 56, 8)
    ((name, signature),) = calls_of({**ROWS[5], "dims": {"batch": 2, "channels": 8, "size": 7}}) or ()
    assert name == "aten::native_batch_norm"
    assert signature.arguments[0] == tensor("bfloat16", 2, 8, 7, 7, is_last=True)


@pytest.mark.parametrize(
    ("op", "direction", "dims"),
    [
        ("add", "forward", {"n": 64}),
        ("cast", "forward", {"n": 64}),
        ("dropout", "backward", {"n": 64}),
        ("layout_copy", "forward", {"batch": 2, "channels": 8, "size": 7}),
        ("cat2", "forward", {"rows": 8, "cols": 64}),
        ("max_pool3s2", "backward", {"batch": 2, "channels": 8, "size": 7}),
        ("bilinear2", "backward", {"batch": 2, "channels": 8, "size": 7}),
        ("pad1", "forward", {"batch": 2, "channels": 8, "size": 7}),
        ("topk", "forward", {"rows": 8, "cols": 64, "k": 2}),
        ("cross_entropy", "backward", {"rows": 8, "cols": 64}),
        ("embedding_dense", "backward", {"rows": 8, "dim": 64, "count": 5, "alpha": 0}),
        ("scatter_add", "forward", {"rows": 8, "cols": 64, "count": 5}),
        ("group_norm", "backward", {"batch": 2, "channels": 8, "size": 7, "groups": 2}),
        ("rms_norm", "backward", {"rows": 8, "cols": 64}),
    ],
)
def test_a_formula_knows_every_call(op: str, direction: str, dims: dict[str, Any]) -> None:
    found = calls_of({"op": op, "direction": direction, "dims": dims, "dtype": "bf16", "layout": "NCHW"})
    assert found
    assert all(work_of(name, signature) is not None for name, signature in found)


def test_a_gather_by_elements_had_an_index_of_each() -> None:
    row = {**ROWS[5], "op": "gather", "dims": {"rows": 9, "cols": 8, "count": 5}}
    for name, strides in (("vectorized_gather_kernel", (1, 0)), ("_scatter_gather_elementwise_kernel", (8, 1))):
        ((_, signature),) = calls_of({**row, "kernels": [name]}) or ()
        assert signature.arguments[2] == TensorSpec("int64", (5, 8), strides)


FORM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
SCALED = FORM + "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>"
FUSED = FORM + "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>"


def test_kernels_of_optimizer_steps_teach_the_loop_over_lists(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    (tmp_path / "own").mkdir()
    elements = 870907904
    step = {"set": "llama_1b", "tensors": 97, "elements": elements}
    more: dict[str, Any] = {
        "family": "optimizer",
        "direction": "step",
        "kernels": [SCALED, SCALED, SCALED, FUSED, "a_copy"],
    }
    grids = orjson.dumps([[blocks, 1, 1] for blocks in (320, 320, 150, 320, 9)]).decode()
    more |= {"grids": grids, "kernel_us": [33.0, 35.0, 21.0, 127.0, 2.0]}
    rows = [
        row("adamw_foreach", step, **more),
        row("adamw_fused", step, **more),
        row("adamw_foreach", {"set": "mlp", "tensors": 12, "elements": 394752}, **more),
        row("adamw_foreach", {**step, "set": "resnet50"}, **more),
    ]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "own" / "ops.parquet")
    (samples,) = load_lists(tmp_path, TRAINED)
    assert samples.measured_ns.tolist() == [34_000.0, 21_000.0, 127_000.0, 34_000.0, 21_000.0]
    chunk = 65536 * 2.0
    blocks = [320, 150, 4 * 320, 160, 75]  # what a fused step does besides is to count steps; half of mlp's are biases
    assert samples.problems.read_bytes.tolist() == [count * chunk for count in blocks]
    assert samples.problems.written_bytes[:3].tolist() == [320 * chunk, 150 * chunk, 3 * 320 * chunk]
    assert samples.problems.index_operations.tolist() == [0.0, 0.0, 2 * ROOT_OPERATIONS, 0.0, 0.0]
    assert samples.problems.moved_since_bytes[0] == 4.0 * (elements - 320 * 65536)
    assert load_lists(tmp_path / "nothing", TRAINED) == []


def test_a_lookups_row_holds_how_its_indices_are_spread(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    (tmp_path / "own").mkdir()
    dims = {"rows": 10000, "dim": 16, "count": 65536}
    more = {"direction": "backward", "kernels": ["a"], "family": "vector"}
    rows = [row("embedding_dense", {**dims, "alpha": alpha}, **more) for alpha in (0.0, 1.4)]
    rows += [row("embedding", {**dims, "alpha": alpha}) for alpha in (0.0, 1.4)]
    rows.append(row("row_bias", {"rows": 1, "cols": 4096}))
    parquet.write_table(Table.from_pylist(rows), tmp_path / "own" / "ops.parquet")
    works = [item.works[0] for item in read_works(tmp_path, TRAINED)]
    even, skewed = (work.dims for work in works[:2])
    all_rows, some = (work.read_bytes - 8.0 * 65536 for work in works[2:])
    assert some < 0.6 * all_rows == pytest.approx(0.6 * 32.0 * 10000, rel=0.01)
    assert isinstance(even, RowDims)
    assert isinstance(skewed, RowDims)
    assert even.run == 7
    assert skewed.run > 20000
    assert skewed.rows < even.rows
