"""Ops inserted into a recording: rows, operands, lives, collectives and groups stay consistent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.whatif.parallel.exchanges import exchange, wait
from wavecast.analyzer.whatif.parallel.insert import Inserted, Insertions, Spot, insert_ops, take_ops
from wavecast.analyzer.whatif.parallel.lives import find_lives
from wavecast.analyzer.work import work_of
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.formats.trace.validate import validate

SAMPLES = Path(__file__).parents[4] / "samples"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load_trace(SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz")


def products(trace: Trace) -> list[int]:
    """Return the rows of the forward matrix products."""
    names = [trace.strings[name] for name in trace.ops.name]
    return [row for row, name in enumerate(names) if name == "aten::addmm" and trace.ops.phase[row] == Phase.FORWARD]


def result_of(trace: Trace, op: int) -> tuple[int, TensorSpec]:
    """Return the tensor that an op returns, and what it is."""
    uses = np.flatnonzero((trace.operands.op == op) & trace.operands.is_output)
    spec = trace.signatures[trace.ops.signature[op]].results[0]
    assert isinstance(spec, TensorSpec)
    return int(trace.operands.tensor[uses[0]]), spec


def with_all_reduces(trace: Trace) -> tuple[Inserted, list[int]]:
    insertions, at = Insertions(trace), products(trace)
    group = insertions.group("tp", range(4))
    for op in at:
        tensor, spec = result_of(trace, op)
        place = Spot(at=op, is_after=True, phase=Phase.FORWARD, module=int(trace.ops.module[op]), source_op=op)
        summed = exchange(insertions, "all_reduce", spec, tensor, group, place)
        wait(insertions, spec, summed, place, replaces=(tensor,))
    return insert_ops(trace, insertions), at


def test_readers_read_what_the_collective_made(trace: Trace) -> None:
    inserted, at = with_all_reduces(trace)
    changed = inserted.trace
    validate(changed)
    names = [changed.strings[name] for name in changed.ops.name]
    for op in at:
        (row,) = np.flatnonzero((inserted.source_op == op) & (np.char.startswith(names, "aten")))
        assert names[row + 1 : row + 3] == ["_c10d_functional::all_reduce", "_c10d_functional::wait_tensor"]
        waited = changed.operands.tensor[(changed.operands.op == row + 2) & changed.operands.is_output]
        readers = changed.operands.op[np.isin(changed.operands.tensor, waited) & ~changed.operands.is_output]
        before, _ = result_of(trace, op)
        expected = trace.operands.op[(trace.operands.tensor == before) & ~trace.operands.is_output]
        assert inserted.source_op[readers].tolist() == expected.tolist()
    assert changed.collectives.group_size.tolist() == [4] * len(at)
    assert changed.collectives.sequence.tolist() == list(range(len(at)))
    assert changed.members.rank.tolist() == [0, 1, 2, 3]


def test_what_is_replaced_is_dropped_where_the_collective_ends(trace: Trace) -> None:
    inserted, at = with_all_reduces(trace)
    changed = inserted.trace
    lives = find_lives(changed)
    assert lives is not None
    for op in at:
        storage = trace.tensors.storage[result_of(trace, op)[0]]
        dropped = int(lives.dropped[lives.storage == storage][0])
        assert inserted.source_op[dropped] == op
        assert changed.strings[changed.ops.name[dropped]] == "_c10d_functional::all_reduce"


def test_taking_out_what_was_inserted_gives_the_trace_again(trace: Trace) -> None:
    inserted, _ = with_all_reduces(trace)
    names = np.array([inserted.trace.strings[name] for name in inserted.trace.ops.name])
    back = take_ops(inserted.trace, np.flatnonzero(~np.char.startswith(names, "_c10d"))).trace
    for column in ("name", "signature", "phase", "forward", "module", "parent"):
        assert np.array_equal(getattr(back.ops, column), getattr(trace.ops, column))
    assert row_count(back.operands) == row_count(trace.operands)
    assert row_count(back.collectives) == 0


def test_pieces_keep_what_they_use(trace: Trace) -> None:
    rows = np.arange(100, 300)
    piece = take_ops(trace, rows).trace
    validate(piece)
    assert row_count(piece.ops) == len(rows)
    kept = np.isin(trace.operands.op, rows)
    assert np.array_equal(piece.operands.tensor, trace.operands.tensor[kept])
    lives = find_lives(piece)
    assert lives is not None
    assert (lives.dropped[lives.made >= 0] != 0).any()


def test_inserted_ops_have_work_and_order(trace: Trace) -> None:
    insertions = Insertions(trace)
    group = insertions.group("dp", (0, 8))
    spec = TensorSpec("bfloat16", (64,))
    shard = insertions.tensor("bfloat16", 64)
    first = Spot(at=3, is_after=False, phase=Phase.FORWARD)
    gathered = exchange(insertions, "all_gather", spec, shard, group, first)
    behind = Spot(at=2, is_after=True, phase=Phase.FORWARD)
    exchange(insertions, "all_reduce", spec, shard, insertions.group("pp", (0, 1)), behind)
    wait(insertions, TensorSpec("bfloat16", (128,)), gathered, first)
    inserted = insert_ops(trace, insertions)
    validate(inserted.trace)
    assert inserted.source_op[:7].tolist() == [0, 1, 2, -1, -1, -1, 3]
    names = [inserted.trace.strings[name].split("::")[1] for name in inserted.trace.ops.name[3:6]]
    assert names == ["all_reduce", "all_gather_into_tensor", "wait_tensor"]
    gather = inserted.trace.signatures[inserted.trace.ops.signature[4]]
    work = work_of("_c10d_functional::all_gather_into_tensor", gather)
    assert work is not None
    assert (work.read_bytes, work.written_bytes) == (128, 256)
    assert inserted.trace.collectives.group_size.tolist() == [2, 2]
