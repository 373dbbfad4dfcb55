"""What scripts ask of `torch.cuda` beside tensors, and the types of tensors that older ones name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavecast import load_trace
from wavecast.tracer.fake_cuda.cuda import cuda_stand_in

ADVERSARIAL = """
import numpy
import torch
Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
generator, judge = torch.nn.Linear(10, 20).cuda(), torch.nn.Linear(20, 1).cuda()
optimizers = [torch.optim.Adam(module.parameters()) for module in (generator, judge)]
for step in range(4):
    real, valid = torch.randn(8, 20).type(Tensor), Tensor(8, 1).fill_(1.0)
    made = generator(Tensor(numpy.random.normal(0, 1, (8, 10))))
    for data, optimizer in zip((made, torch.cat([made.detach(), real])), optimizers):
        judge(data).sub(valid[:1]).square().mean().backward()
        optimizer.step()
    assert isinstance(valid, torch.cuda.FloatTensor) and not isinstance(valid, torch.cuda.LongTensor)
    assert real.type("torch.cuda.HalfTensor").dtype is torch.float16
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2] and torch.cuda.ByteTensor().numel() == 0
"""
BY_DEFAULT = """
import torch
torch.set_default_tensor_type("torch.cuda.DoubleTensor")
layer = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(layer.parameters())
for step in range(4):
    layer(torch.ones(3, 4)).sum().backward()
    optimizer.step()
torch.set_default_tensor_type("torch.FloatTensor")
"""
SCRIPTED = """
import torch
layer = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())).eval().cuda()
for step in range(4):
    with torch.no_grad():
        layer(torch.ones(3, 4).cuda())
"""


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        pytest.param(ADVERSARIAL, "float32", (8, 10), id="types of tensors"),
        pytest.param(BY_DEFAULT, "float64", (3, 4), id="a default type"),
        pytest.param(SCRIPTED, "float32", (3, 4), id="TorchScript"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_scripts_of_older_days_are_recorded(
    run: Callable[..., Any], tmp_path: Path, text: str, dtype: str, shape: tuple[int, ...]
) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run("--shapes-only", "script.py")
    assert done.code == 0, done.stderr
    trace = load_trace(tmp_path / "trace.json.gz")
    products = [row for row, name in enumerate(trace.ops.name) if trace.strings[name] == "aten::addmm"]
    signatures = [trace.signatures[trace.ops.signature[row]] for row in products]
    read = {(tensor.dtype, tensor.shape) for signature in signatures for tensor in signature.tensors()}
    assert (dtype, shape) in read


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda cuda: cuda.cudart().cudaProfilerStart(), 0),
        (lambda cuda: cuda.profiler.start(), None),
        (lambda cuda: cuda.nccl.version(), (2, 27, 5)),
        (lambda cuda: cuda.memory._record_memory_history(enabled="all"), None),
        (lambda cuda: cuda.memory._dump_snapshot("nowhere/snapshot.pickle"), None),
        (lambda cuda: cuda.memory_snapshot(), []),
        (lambda cuda: cuda.temperature() + cuda.power_draw() + cuda.clock_rate(), 0),
        (lambda cuda: cuda.get_per_process_memory_fraction(), 1.0),
        (lambda cuda: cuda.can_device_access_peer(0, 0), False),
        (lambda cuda: cuda.initial_seed(), 0),
        (lambda cuda: cuda.ExternalStream(0).query(), True),
    ],
)
def test_what_scripts_ask_of_a_gpu_is_answered(call: Callable[[Any], Any], answer: Any) -> None:
    with cuda_stand_in():
        assert call(torch.cuda) == answer
