"""Joining the recording of a graph's launch with that of its capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.prediction.capture_join import join_captures, join_either
from wavecast.analyzer.recorded.graphs import describe_graphs, find_captures, graph_kernels, refuse_capture
from wavecast.analyzer.recorded.window import select_window
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.tables import Trace

Files = Callable[[], Any]


def capture_of(files: Files, *batches: int, layers: int = 2, marked: bool = True) -> Trace:
    new = files()
    return import_kineto(new.capture(*(new.work(batch, layers) for batch in batches), marked=marked))


def execution_of(files: Files, *batches: int, layers: int = 2) -> Trace:
    new = files()
    return import_kineto(new.execution(*(new.work(batch, layers) for batch in batches), inputs=[batches[0], 64]))


def explained(trace: Trace) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return of each kernel from a graph its name, its op and the shape of the op's first tensor."""
    rows = np.flatnonzero(graph_kernels(trace))
    found = []
    for kernel, op in zip(trace.kernels.name[rows].tolist(), trace.kernels.op[rows].tolist(), strict=True):
        first: Any = trace.signatures[trace.ops.signature[op]].arguments[0] if op >= 0 else None
        name = trace.strings[trace.ops.name[op]] if op >= 0 else ""
        found.append((trace.strings[kernel], name, first.shape if first is not None else ()))
    return found


def test_kernels_get_the_ops_that_were_captured(graph_files: Files) -> None:
    joined = join_captures(execution_of(graph_files, 32), {"capture": capture_of(graph_files, 32)})
    product = graph_files().work(32)[0][2]
    layer = [
        (product, "aten::mm", (32, 64)),
        ("void at::native::relu_kernel", "aten::relu", (32, 64)),
        ("Memcpy DtoD", "aten::copy_", (32, 64)),
    ]
    assert explained(joined) == layer * 2
    assert joined.meta.has_shapes
    assert joined.quality.kernels_without_op == 0
    use = describe_graphs(joined, select_window(joined))
    assert (use.launch_count, use.kernel_count, use.explained_count) == (1, 6, 6)
    assert decode(encode(joined)) == joined


def test_added_ops_take_no_time_at_the_launch_and_keep_the_others_in_order(graph_files: Files) -> None:
    before = execution_of(graph_files, 32, 32)
    joined = join_captures(before, {"capture": capture_of(graph_files, 32)})
    launches = before.calls.start_ns[np.unique(before.kernels.call[graph_kernels(before)])]
    added = np.flatnonzero(joined.ops.duration_ns == 0)
    assert row_count(joined.ops) == row_count(before.ops) + 12
    assert sorted(set(joined.ops.start_ns[added].tolist())) == launches.tolist()
    assert (np.diff(joined.ops.start_ns) >= 0).all()
    copy = int(np.flatnonzero(~graph_kernels(joined))[0])
    assert joined.strings[joined.ops.name[joined.kernels.op[copy]]] == "aten::copy_"
    assert joined.ops.duration_ns[joined.kernels.op[copy]] > 0


def test_the_captured_grid_stands_in_where_none_was_recorded(graph_files: Files) -> None:
    joined = join_captures(execution_of(graph_files, 32), {"capture": capture_of(graph_files, 32)})
    grids = joined.kernels.grid[graph_kernels(joined) & (joined.kernels.kind == 0)][:, 0]
    assert set(grids.tolist()) == {9 if graph_files().rocm else 4}


def test_the_captured_graph_is_chosen_by_kernels_then_by_the_shapes_beside_the_launch(graph_files: Files) -> None:
    files = graph_files()
    captured = import_kineto(files.capture(files.work(8, 1), files.work(16), files.work(32), files.work(64)))
    assert [len(item) for item in find_captures(captured)] == [3, 6, 6, 6]
    joined = join_captures(execution_of(graph_files, 32), {"capture": captured})
    assert {shape for _, _, shape in explained(joined)} == {(32, 64)}


def test_each_launch_finds_its_own_graph(graph_files: Files) -> None:
    files, other = graph_files(), graph_files()
    captured = import_kineto(files.capture(files.work(32, 1), files.work(32, 3)))
    launched = import_kineto(other.execution(other.work(32, 3), other.work(32, 1), inputs=[32, 64]))
    use = describe_graphs(joined := join_captures(launched, {"a": captured}), select_window(joined))
    assert (use.launch_count, use.kernel_count, use.explained_count) == (2, 12, 12)


def test_a_capture_without_begin_and_end_is_taken_for_one_where_it_is_given_as_one(graph_files: Files) -> None:
    captured = capture_of(graph_files, 32, marked=False)
    assert find_captures(captured) == []
    assert len(find_captures(captured, assume=True)) == 1
    assert len(explained(join_captures(execution_of(graph_files, 32), {"capture": captured}))) == 6


def test_a_converted_capture_explains_as_much(graph_files: Files) -> None:
    captured, launched = capture_of(graph_files, 32), execution_of(graph_files, 32)
    plain, converted = (join_captures(launched, {"a": item}) for item in (captured, decode(encode(captured))))
    assert explained(plain) == explained(converted)


def test_captures_in_several_files(graph_files: Files) -> None:
    captures = {f"{layers}": capture_of(graph_files, 32, layers=layers) for layers in (1, 2)}
    assert len(explained(join_captures(execution_of(graph_files, 32), captures))) == 6


@pytest.mark.parametrize(
    ("trace", "capture", "words"),
    [
        ("execution 2", "capture 3", "is not that of the graph that the trace launches: 9 captured launches beside 6"),
        ("execution 2", "execution 2", "a.json holds no capture of a CUDA graph"),
        ("capture 2", "execution 2", "itself the capture of a CUDA graph"),
        ("capture 2", "capture 2", "itself the capture of a CUDA graph"),
        ("eager", "capture 2", "launches no CUDA graph"),
    ],
)
def test_files_that_do_not_belong_together(trace: str, capture: str, words: str, graph_files: Files) -> None:
    def make(what: str) -> Trace:
        kind, _, layers = what.partition(" ")
        if kind == "eager":
            return import_kineto(graph_files().execution(inputs=[4, 64]))
        return {"execution": execution_of, "capture": capture_of}[kind](graph_files, 32, layers=int(layers))

    with pytest.raises(InputError, match=words):
        join_captures(make(trace), {"a.json": make(capture)})


def test_other_ops_on_the_same_kernels_are_refused_where_nothing_tells_which_ran(graph_files: Files) -> None:
    captured = capture_of(graph_files, 16, 32)
    new = graph_files()
    launched = import_kineto(new.execution(new.work(32)))
    with pytest.raises(InputError, match=r"2 captured graphs in a\.json launch the same 6 kernels on other shapes"):
        join_captures(launched, {"a.json": captured})
    same = capture_of(graph_files, 32, 32)
    assert len(explained(join_captures(launched, {"a.json": same}))) == 6


def test_products_that_fall_on_other_ops_are_no_match(graph_files: Files) -> None:
    captures, launches = graph_files(), graph_files()
    captures.rocm = launches.rocm = False
    captured = import_kineto(captures.capture([("aten::relu", [[4, 4]], "x")] * 4))
    launched = import_kineto(launches.execution([("", [], "ampere_sgemm_64x64_nn")] * 4))
    with pytest.raises(InputError, match="is not that of the graph"):
        join_captures(launched, {"a.json": captured})


def test_either_of_two_traces_takes_the_capture(graph_files: Files) -> None:
    eager = import_kineto(graph_files().execution(inputs=[4, 64]))
    graph, captures = execution_of(graph_files, 32), {"a": capture_of(graph_files, 32)}
    first, second = join_either((eager, graph), captures)
    assert first is eager
    assert len(explained(second)) == 6
    with pytest.raises(InputError, match="is not that of the graph"):
        join_either((eager, graph), {"a": capture_of(graph_files, 32, layers=5)})
    with pytest.raises(InputError, match="launches no CUDA graph"):
        join_either((eager, eager), captures)


def test_a_capture_alone_is_no_iteration(graph_files: Files) -> None:
    captured = capture_of(graph_files, 32)
    with pytest.raises(InputError, match="6 launches went into the graph and ran nothing"):
        refuse_capture(captured, select_window(captured))
    launched = execution_of(graph_files, 32)
    refuse_capture(launched, select_window(launched))


def test_the_public_pair(data_dir: Path) -> None:
    folder = data_dir / "traces" / "odd"
    launched = load_trace(folder / "sglang_decode_execution.json.gz")
    joined = join_captures(launched, {"capture": load_trace(folder / "sglang_decode_capture.json.gz")})
    use = describe_graphs(joined, select_window(joined))
    assert (use.kernel_count, use.explained_count) == (544, 544)
    shapes = {shape for kernel, op, shape in explained(joined) if op == "aten::mm"}
    assert shapes == {(32, 4096), (32, 12288)}
    products = {op for kernel, op, _ in explained(joined) if kernel.startswith("Cijk_")}
    assert products == {"aten::mm"}
    other = load_trace(folder / "mi300x_vllm_graph_execution.json.gz")
    with pytest.raises(InputError, match="544 captured launches beside 421 kernels, 0% of them alike"):
        join_captures(other, {"capture": load_trace(folder / "sglang_decode_capture.json.gz")})
