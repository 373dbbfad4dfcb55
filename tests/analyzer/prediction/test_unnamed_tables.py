"""What FBGEMM's calls leave open is said to the reader and widens intervals; sparse gradients are of different rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.work.embedding_dims import DrawnRows
from wavecast.analyzer.work.indices import UNIFORM, Indices
from wavecast.analyzer.work.lookup import rows_drawn
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import OpTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

TORCHREC = Path(__file__).parents[1] / "work" / "recorded" / "torchrec-fused-sgd-cpu.json.gz"
CATALOG = load_catalog()
H100 = find_gpu(CATALOG, "H100 SXM5 80GB")
LOOKUP = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
ROWS, WIDTH, BAGS, LOOKUPS = 5_000_000, 64, 4096, 20
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's own, of its optimizers


def analysed(trace: Trace, indices: Indices | None = None) -> Analysis:
    library = None if indices is None else replace(load_library(), indices=indices)
    return run_analysis(trace, CATALOG, targets=[H100], library=library)


def lookup(*, host_rows: int = 0, widest: int = 64) -> Trace:
    """One lookup in two tables of 64 columns on average, of which some may lie in the host's memory, and a product."""
    flat, empty, none = TensorSpec("float32", (64_000_000,)), TensorSpec("float32", (0,)), TensorSpec("int32", (0,))
    host = TensorSpec("float32", (64 * host_rows,))
    small, places, columns = TensorSpec("int32", (2,)), TensorSpec("int64", (2,)), TensorSpec("int32", (3,))
    hashes, indices, offsets = (TensorSpec("int64", (count,)) for count in (3, 200_000, 8193))
    arguments = (empty, flat, host, TensorSpec("float32", (0, 0)), small, places, columns, 128, widest, hashes, 20)
    call = Signature((*arguments, indices, offsets, 0, None, None, none, False, 1.0, False))
    product = Signature((TensorSpec("float32", (64, 64)),) * 2)
    ops = build_table(OpTable, 2, name=[0, 1], signature=[0, 1])
    return Trace(strings=(LOOKUP, "aten::mm"), signatures=(call, product), ops=ops)


def test_tables_in_host_memory_are_refused_by_name() -> None:
    found = analysed(lookup(host_rows=1000))
    (line,) = [text for text in found.warnings if "host memory" in text]
    assert line.startswith(f"{LOOKUP}: tables in host memory are not modelled")
    assert found.workload.has_work.tolist() == [False, True]
    assert not [text for text in analysed(lookup()).warnings if "host memory" in text]


def test_unnamed_widths_are_said_and_widen_the_interval() -> None:
    equal, mixed = analysed(lookup()), analysed(lookup(widest=256))
    assert [text for text in mixed.warnings if "2 tables of several widths" in text]
    assert not [text for text in equal.warnings if "several widths" in text]
    assert mixed.prediction.time_ns == pytest.approx(equal.prediction.time_ns)
    wider = mixed.prediction.half_width / equal.prediction.half_width
    assert wider[0] > 1.1
    assert wider[1] == 1.0


def test_a_recording_of_torchrec_says_it() -> None:
    warnings = analysed(load_trace(TORCHREC)).warnings
    assert [text for text in warnings if "up to 5 tables of several widths" in text]
    assert not [text for text in warnings if "host memory are not modelled" in text]


def update_ns(optimizer: str, indices: Indices | None, *, is_sparse: bool = True) -> tuple[float, Analysis]:
    """Return the GPU time of the update of four tables of five million rows, of 20 lookups in each of 4,096 bags."""
    make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}[optimizer]
    with torch.device("meta"):
        tables = [nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=is_sparse) for _ in range(4)]
        chosen, offsets = torch.randint(0, ROWS, (BAGS * LOOKUPS,)), torch.arange(0, BAGS * LOOKUPS, LOOKUPS)
    update = make([parameter for table in tables for parameter in table.parameters()], lr=0.1)

    def step() -> None:
        update.zero_grad()
        torch.cat([table(chosen, offsets) for table in tables], 1).sum().backward()
        update.step()

    found = analysed(trace_iteration(step, device="meta"), indices)
    phases = found.trace.ops.phase[found.workload.op]
    times = found.prediction.time_ns[:, 0] * found.workload.count
    return float(times[phases == 2].sum()), found


def test_updates_take_what_touched_rows_take() -> None:
    """Dense gradients of these tables take milliseconds: 5 GB are read and written."""
    moved_ns = 4 * BAGS * LOOKUPS * WIDTH * 4 / 3350  # one pass over the rows of all lookups, at the datasheet's rate
    dense_ns, _ = update_ns("sgd", UNIFORM, is_sparse=False)
    uniform_ns, _ = update_ns("sgd", UNIFORM)
    assert dense_ns > 2e6
    assert 2 * moved_ns < uniform_ns < 10 * moved_ns
    assert uniform_ns < dense_ns / 10


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_rows_that_are_looked_up_twice_are_updated_once(optimizer: str) -> None:
    times = [update_ns(optimizer, indices)[0] for indices in (UNIFORM, Indices(exponent=1.05), Indices(exponent=2.0))]
    assert times[0] > times[1] > times[2]


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_what_works_on_coalesced_rows_is_of_different_ones(optimizer: str) -> None:
    """Nine rows of ten are the same: so much less is left to work on, in every op of the step but those on lookups."""
    few = Indices(bins=((100.0, 90.0), (ROWS - 100.0, 10.0)), name="hot")
    uniform, hot = (update_ns(optimizer, indices)[1] for indices in (UNIFORM, few))
    names = [uniform.trace.strings[name] for name in uniform.trace.ops.name[uniform.workload.op].tolist()]
    ratio = dict(zip(names, (hot.prediction.time_ns / uniform.prediction.time_ns)[:, 0].tolist(), strict=True))
    for name in ("aten::pow", "aten::sqrt_", "aten::sparse_mask"):
        assert ratio[name] < 0.5
    assert ratio["aten::_embedding_bag_backward"] == 1.0


def test_recorded_counts_stand() -> None:
    """On a processor the rows that are left were counted: no spread is laid over them."""
    table = nn.EmbeddingBag(5000, WIDTH, mode="sum", sparse=True)
    chosen, offsets = torch.randint(0, 50, (2000,)), torch.arange(0, 2000, LOOKUPS)
    update = torch.optim.Adagrad(table.parameters(), lr=0.1)

    def step() -> None:
        update.zero_grad()
        table(chosen, offsets).sum().backward()
        update.step()

    shapes = trace_iteration(step, device="cpu", repeats=0)
    assert not rows_drawn(shapes)[1]
    assert rows_drawn(update_ns("adagrad", None)[1].trace)[1] == [DrawnRows(table_rows=ROWS, lookups=BAGS * LOOKUPS)]
