"""Recordings on a CUDA GPU; run with `pytest -m gpu` where there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wavecast.analyzer.graph.export.ops import data_links
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import record, trace_iteration

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_a_training_step_is_recorded_with_its_kernels(
    training_step: Callable[..., Any], op_names: Callable[..., list[str]]
) -> None:
    trace = trace_iteration(training_step("cuda"), warmup=2, repeats=3, name="small", batch_size=4)
    assert trace.meta.capture == "measured"
    assert trace.meta.cuda_version == torch.version.cuda
    assert list(trace.iterations.profiled) == [False, False, False, True]
    assert len(trace.kernels.name) > 20
    assert (trace.kernels.duration_ns > 0).all()
    kernels = trace.kernels.kind == 0
    assert (trace.kernels.grid[kernels] > 0).all()
    assert (trace.kernels.block[kernels] > 0).all()
    assert trace.quality.kernels_without_op <= 2
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert (trace.ops.phase[trace.kernels.op[trace.kernels.op >= 0]] == phase).any()
    assert "aten::_foreach_addcdiv_" in op_names(trace, Phase.OPTIMIZER)
    assert decode(encode(trace)) == trace


def test_tensors_are_identified(training_step: Callable[..., Any], op_names: Callable[..., list[str]]) -> None:
    trace = trace_iteration(training_step("cuda"), warmup=2, repeats=0)
    names, links = op_names(trace), data_links(trace)
    pairs = {(names[source], names[target]) for source, target in zip(links.source, links.target, strict=True)}
    assert {("aten::t", "aten::addmm"), ("aten::linear", "aten::cross_entropy_loss")} <= pairs
    assert (trace.tensors.device == 0).any()
    returning = set(trace.operands.op[trace.operands.is_output].tolist())
    assert {"aten::addmm", "aten::convolution", "aten::clamp_min"} <= {names[row] for row in returning}


def test_the_device_is_described() -> None:
    trace = trace_iteration(lambda: torch.ones(1_000, device="cuda") + 1, warmup=1, repeats=1)
    (device,) = trace.devices
    found = torch.cuda.get_device_properties(0)
    assert device.name == found.name
    assert device.sm_count == found.multi_processor_count
    assert device.memory_bytes == found.total_memory
    assert device.compute_capability == f"{found.major}.{found.minor}" or torch.version.hip
    assert device.registers_per_sm
    assert device.max_threads_per_sm


def test_the_captured_iteration_lasts_as_long_as_its_kernels(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cuda"), warmup=2, repeats=5)
    captured = np.flatnonzero(trace.iterations.profiled)[-1]
    ends_ns = trace.kernels.start_ns + trace.kernels.duration_ns
    assert trace.iterations.start_ns[captured] <= trace.kernels.start_ns.min()
    assert trace.iterations.end_ns[captured] >= ends_ns.max()
    assert len(select_window(trace).kernel_rows) == len(trace.kernels.name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_noted(dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(64, 64, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=dtype):
            layer(torch.ones(2, 64, device="cuda"))

    trace = trace_iteration(step, warmup=1, repeats=1)
    assert f"torch.{trace.meta.precision.autocast_dtype}" == str(dtype)


def test_a_step_that_uses_no_gpu_is_refused() -> None:
    from wavecast.errors import CaptureError

    with pytest.raises(CaptureError, match="no GPU activity"):
        trace_iteration(lambda: torch.ones(3) + 1, device="cuda", warmup=0, repeats=0)


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "gpt2_small"])
def test_shapes_show_the_matrix_work_of_a_real_run(
    load_model: Callable[[str], Any], op_counts: Callable[[Trace], Counter[str]], name: str
) -> None:
    """The counts of ops that do the arithmetic agree between a shape-only and a measured recording."""
    module = load_model(name)
    families = ("aten::addmm", "aten::mm", "aten::bmm", "aten::native_layer_norm", "aten::native_dropout",
                "aten::convolution_backward", "aten::max_pool2d_with_indices", "aten::embedding_dense_backward",
                "aten::_foreach_addcdiv_")  # fmt: skip
    counts = {}
    for device in ("meta", "cuda"):
        with torch.device(device):
            model, batch = module.build().to(torch.bfloat16), module.make_batch(2)
        batch = [item.to(torch.bfloat16) if item.is_floating_point() else item for item in batch]
        optimizer = torch.optim.AdamW(model.parameters())

        def step(model: Any = model, batch: Any = batch, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            module.compute_loss(model, *batch).backward()
            optimizer.step()

        found = op_counts(trace_iteration(step, device=device, warmup=1, repeats=1))
        counts[device] = {family: found[family] for family in families}
    assert counts["meta"] == counts["cuda"]


def test_a_loop_is_recorded_with_its_kernels_and_timed_by_events(
    training_step: Callable[..., Any], tmp_path: Path
) -> None:
    step = training_step("cuda")
    with record(tmp_path / "trace.json.gz") as recorder:
        for _ in range(30):
            step()
    trace = recorder.trace
    assert trace is not None
    assert trace.meta.capture == "measured"
    assert list(trace.iterations.profiled) == [False] * 10 + [True] * 5
    kernels = [len(select_window(trace).kernel_rows), len(trace.kernels.name) / 5]
    assert abs(kernels[0] - kernels[1]) <= 2
    lengths_ns = trace.iterations.end_ns - trace.iterations.start_ns
    assert np.median(lengths_ns[:10]) < 2 * np.median(lengths_ns[10:])
    modules = {trace.strings[row] for row in trace.ops.module[trace.kernels.op[trace.kernels.op >= 0]] if row >= 0}
    assert {"Sequential.0", "Sequential.1", "Sequential.5"} <= modules


def test_lookups_are_counted_without_a_trace_in_what_is_captured() -> None:
    bag = torch.nn.EmbeddingBag(1_000, 16, mode="sum", device="cuda")
    given = torch.arange(64, device="cuda").repeat(4).view(32, 8)

    trace = trace_iteration(lambda: bag(given).sum().backward(), warmup=1, repeats=1)
    table = trace.lookups
    assert (table.least_count.tolist(), table.distinct_rows.tolist(), table.lookup_count.tolist()) == ([4], [64], [256])
    assert trace.strings[trace.ops.name[table.op[0]]] == "aten::_embedding_bag"
    copies = [trace.strings[name] for name in trace.kernels.name if "DtoH" in trace.strings[name]]
    assert not copies
