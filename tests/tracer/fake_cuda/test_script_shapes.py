"""`wavecast record --shapes-only` on scripts that want a GPU, or think nothing of one, where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from wavecast import Trace, load_trace
from wavecast.formats.trace.tables import Phase, Workload
from wavecast.tracer.fake_cuda.session import ScriptShapes

SCRIPTS = Path(__file__).parents[1] / "scripts"
Run = Callable[..., Any]


@pytest.fixture
def record(run: Run, tmp_path: Path) -> Callable[..., tuple[Any, Trace]]:
    """Record a script's shapes; return what the command said, and the trace."""

    def record(*arguments: str | Path) -> tuple[Any, Trace]:
        done = run("--shapes-only", *arguments)
        assert (done.code, [line for line in done.ours if line.startswith("Error")]) == (0, []), done.stderr
        return done, load_trace(tmp_path / "trace.json.gz")

    return record


def modules(trace: Trace) -> set[str]:
    return {trace.strings[row] for row in set(trace.ops.module.tolist()) - {-1}}


def names(trace: Trace, phase: Phase) -> Counter[str]:
    return Counter(trace.strings[row] for row in trace.ops.name[trace.ops.phase == phase])


def operands(trace: Trace, name: str) -> set[tuple[str, tuple[int, ...]]]:
    """What the ops of a name read: dtype and shape of their first tensor."""
    rows = [row for row, op in enumerate(trace.ops.name) if trace.strings[op] == name]
    first = [next(iter(trace.signatures[trace.ops.signature[row]].tensors())) for row in rows]
    return {(tensor.dtype, tensor.shape) for tensor in first}


@pytest.mark.parametrize("options", [(), ("--compile",)])
def test_a_script_for_a_gpu_runs_without_one(record: Any, options: tuple[str, ...]) -> None:
    done, trace = record("--batch-size", "8", SCRIPTS / "gpu.py", *options)
    assert trace.meta.capture == "shapes"
    assert (trace.meta.workload.mode, trace.meta.workload.batch_size) == ("training", 8)
    assert trace.meta.precision.autocast_dtype == "float16"
    assert {"Net", "Net.layer.self_attn", "Net.head"} <= modules(trace)
    forward = names(trace, Phase.FORWARD)
    assert forward["aten::_scaled_dot_product_flash_attention"] == 1  # float16, as autocast has it
    assert names(trace, Phase.BACKWARD)["aten::_scaled_dot_product_flash_attention_backward"] == 1
    assert any(name.startswith("aten::_foreach") for name in names(trace, Phase.OPTIMIZER))
    every = Counter(trace.strings[row] for row in trace.ops.name)
    assert every["aten::_amp_foreach_non_finite_check_and_unscale_"] == 1
    assert ("int64", (8, 12)) in operands(trace, "aten::_to_copy")  # tokens and labels are copied to the GPU
    lines = done.stdout.splitlines()
    assert 2 <= len(lines) <= 7  # the third iteration is recorded, up to five more are timed; the last one logs nothing
    assert all(line.startswith("1.000 ") and 0 < int(line.split()[1]) < 96 for line in lines)  # labels are known
    assert f"read {trace.quality.values_assumed} values from the GPU until then, which were taken as 1" in done.stderr


def test_a_script_that_knows_no_gpu_shows_what_one_would_do(record: Any) -> None:
    _, trace = record(SCRIPTS / "train.py")
    assert {"Classifier", "Classifier.stem", "Classifier.head"} <= modules(trace)
    assert names(trace, Phase.OPTIMIZER)["aten::_foreach_add_"] == 2
    assert operands(trace, "aten::convolution") == {("float32", (8, 3, 8, 8))}
    assert trace.meta.workload.mode == "training"


def test_an_inference_script_is_recorded_by_its_forwards(record: Any) -> None:
    _, trace = record(SCRIPTS / "infer.py")
    assert trace.meta.workload.mode == "inference"
    assert not names(trace, Phase.BACKWARD)
    assert {"Encoder", "Encoder.head", "Encoder.layers.layers.1"} <= modules(trace)


@pytest.mark.skipif(not (find_spec("transformers") and find_spec("accelerate")), reason="needs transformers")
def test_the_trainer_of_hugging_face_runs_on_shapes(record: Any, tmp_path: Path) -> None:
    script = tmp_path / "finetune.py"
    script.write_text((SCRIPTS / "hugging_face.py").read_text().replace("use_cpu=True, ", ""))
    _, trace = record(script, tmp_path / "out")
    assert "GPT2LMHeadModel.transformer.h.1.mlp.c_fc" in modules(trace)
    assert names(trace, Phase.OPTIMIZER)["aten::_fused_adamw_"]  # the Trainer's choice where it sees a GPU
    assert names(trace, Phase.FORWARD)["aten::_scaled_dot_product_efficient_attention"] == 4  # two layers, twice


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")
def test_the_trainer_of_lightning_runs_on_shapes(record: Any, tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text((SCRIPTS / "lightning_module.py").read_text().replace('"cpu"', '"gpu", devices=1'))
    _, trace = record(script)
    assert {"Sequential.0", "Sequential.2"} <= modules(trace)
    assert trace.meta.workload.mode == "training"


GENERATE = """
import torch
model = torch.nn.Linear(4, 4).eval().cuda()
data = torch.ones(2, 4, device="cuda")
for step in range(9):
    with torch.inference_mode():
        data = model(data)
    if data.sum().item() < 0 or data.max() > 3:
        raise SystemExit(3)
"""
TO_ARRAYS = """
import torch
layer, optimizer = torch.nn.Linear(4, 4), None
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(9):
    loss = layer(torch.ones(3, 4)).sum()
    loss.backward()
    optimizer.step()
    print(loss.detach().numpy(), loss.tolist(), float(loss), layer.weight.device, layer.weight.cpu().is_cpu)
"""
DEFAULT_DEVICE = """
import torch
torch.set_default_device("cuda")
layer = torch.nn.LSTM(4, 8)
optimizer = torch.optim.Adam(layer.parameters())
for step in range(9):
    layer(torch.ones(5, 3, 4) * torch.tensor(2.0))[0].sum().backward()
    optimizer.step()
"""
LAZY = """
import torch
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(5)).cuda()
model(torch.zeros(2, 3, 4, device="cuda"))
optimizer = torch.optim.Adam(model.parameters())
for step in range(9):
    model(torch.zeros(2, 3, 4).cuda()).sum().backward()
    optimizer.step()
"""
SELECT = """
import torch
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(9):
    outputs = layer(torch.ones(3, 4).cuda())
    outputs[outputs > 0].sum().backward()
    optimizer.step()
"""

PACKED = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
layer = torch.nn.{kind}(4, 8, bidirectional=True).cuda()
optimizer = torch.optim.Adam(layer.parameters())
for step in range(9):
    lengths = torch.tensor([2, 5, 3]).cuda()
    packed = pack_padded_sequence(torch.ones(5, 3, 4).cuda(), lengths.cpu(), enforce_sorted=False)
    pad_packed_sequence(layer(packed)[0])[0].sum().backward()
    optimizer.step()
"""
MADE_THERE = """
import torch
weight = torch.nn.Parameter(torch.randn(4, 2, device="cuda"))
optimizer = torch.optim.SGD([weight])
for step in range(4):
    data = torch.ones(8, 4, device=weight.device)
    assert weight.is_cuda and data.device.type == "cuda"
    (data @ weight).sum().backward()
    optimizer.step()
"""
NUMBERED = """
import torch
device = torch.device(0)
layers = torch.nn.Linear(4, 4).to(0), torch.nn.Linear(4, 4, device=0), torch.nn.Linear(4, 4).to(device=device)
optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()])
for step in range(9):
    data = torch.ones(3, 4).to(0) + torch.zeros(3, 4, device=0) + torch.ones(3, 4).to(device=0)
    sum(layer(data) for layer in layers).sum().backward()
    optimizer.step()
"""
DISTRIBUTED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="env://")
assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
model = DistributedDataParallel(torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Linear(4, 4)).to(0), [0])
torch.nn.DataParallel(model.module).cuda()(torch.ones(2, 4).cuda())
optimizer = torch.optim.SGD(model.parameters())
data = torch.utils.data.TensorDataset(torch.ones(99, 4))
for (batch,) in torch.utils.data.DataLoader(data, 3, sampler=torch.utils.data.DistributedSampler(data)):
    with model.no_sync():
        model(batch.cuda(0)).sum().backward()
    loss = model(batch.to(0)).sum()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    dist.barrier()
dist.destroy_process_group()
"""
SOUND = """
import math
import torch
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(9):
    outputs = torch.distributions.Normal(layer(torch.ones(3, 4, device="cuda")), 1.0)
    loss = -outputs.log_prob(outputs.rsample()).sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)
    if not torch.isfinite(norm) or torch.isnan(loss).any() or not math.isfinite(loss.item()):
        raise SystemExit("diverged")
    optimizer.step()
"""
ACCELERATOR = """
import torch
from torch.utils.data import DataLoader, TensorDataset
device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
layer = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(layer.parameters())
for (data,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4, num_workers=1, pin_memory=True):
    with torch.autocast(device.type, dtype=torch.float16):
        layer(data.to(device, non_blocking=True)).float().sum().backward()
    optimizer.step()
    torch.accelerator.synchronize()
"""
FACILITIES = """
import torch
torch.backends.cudnn.benchmark = torch.backends.cudnn.version() >= 8000
assert int(torch.version.cuda.split(".")[0]) >= 11 and torch.cuda.get_device_properties(0).L2_cache_size
generator = torch.Generator(device="cuda").manual_seed(3)
assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
stream = torch.cuda.Stream()
scaler, context = torch.amp.GradScaler("cuda", enabled=False), torch.amp.autocast("cuda", enabled=False)
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.AdamW(layer.parameters(), capturable=True)
for step in range(9):
    with torch.cuda.stream(stream):
        data = torch.randn(3, 4, generator=generator, pin_memory=True).cuda(non_blocking=True)
    data.record_stream(torch.cuda.current_stream())
    with torch.cuda.nvtx.range("forward"), context:
        loss = layer(data).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(torch.cuda.memory_stats()["allocated_bytes.all.peak"], torch.cuda.memory_summary(abbreviated=True))
"""


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU()) for _ in range(2)]).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for step in range(9):
    x = torch.ones(3, 4, device="cuda")
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("text", "op", "shape"),
    [
        pytest.param(GENERATE, "aten::addmm", (4,), id="values decide whether to go on"),
        pytest.param(TO_ARRAYS, "aten::addmm", (4,), id="arrays of values"),
        pytest.param(DEFAULT_DEVICE, "aten::_cudnn_rnn", (5, 3, 4), id="default device"),
        pytest.param(LAZY, "aten::addmm", (5,), id="lazy module"),
        *(
            pytest.param(PACKED.format(kind=kind), "aten::_cudnn_rnn", (10, 4), id=f"packed {kind}")
            for kind in ("LSTM", "GRU", "RNN")
        ),
        pytest.param(MADE_THERE, "aten::sum", (8, 2), id="tensors made on the GPU"),
        pytest.param(NUMBERED, "aten::addmm", (4,), id="devices by number"),
        pytest.param(DISTRIBUTED, "aten::addmm", (4,), id="a process group"),
        pytest.param(SOUND, "aten::addmm", (4,), id="checks that nothing diverged"),
        pytest.param(FACILITIES, "aten::addmm", (4,), id="what CUDA offers"),
        pytest.param(ACCELERATOR, "aten::addmm", (4,), id="torch.accelerator, and a loader's threads"),
        pytest.param(CHECKPOINTED, "aten::silu_backward", (3, 4), id="activations that are computed again"),
        pytest.param(SELECT, "aten::index", (3, 4), id="selection by unknown values keeps all"),
    ],
)
def test_what_scripts_do_with_gpus(record: Any, tmp_path: Path, text: str, op: str, shape: tuple[int, ...]) -> None:
    if text in (ACCELERATOR, SELECT, SOUND) and not hasattr(torch, "accelerator"):
        pytest.skip("torch 2.5 has no accelerator, and refuses selection by values that nobody knows")
    script = tmp_path / "script.py"
    script.write_text(text)
    _, trace = record(script)
    assert operands(trace, op) == {(trace.meta.precision.autocast_dtype or "float32", shape)}
    assert trace.meta.precision.autocast_dtype == ("float16" if text is ACCELERATOR else None)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "print(1)",
            1,
            "Error: nothing was recorded: no torch optimizer stepped and no torch.nn.Module ran on "
            "the main thread; of code without them record one iteration as a function",
        ),
        ("1 / 0", 1, "Error: nothing was recorded: the script failed after 0 iterations, as shown above"),
        (
            "import torch\nmodel = torch.nn.Linear(1, 1).eval()\nmodel(torch.ones(1, 1))",
            1,
            "Error: nothing was recorded: the script ended after 1 iteration, before the one to be recorded",
        ),
        ("import torch\ntorch.cuda.CUDAGraph()", 1, "Error: torch.cuda.CUDAGraph: a recording of shapes cannot replay"),
        (
            "import torch\nwhile torch.ones(1).cuda().relu_().to('cuda') < 2: raise KeyboardInterrupt",
            130,
            "Error: nothing was recorded: interrupted after 0 iterations and 0 reads",
        ),
        (
            "import torch\ntorch.nn.Linear(1, 1)(torch.ones(1, 1))",
            1,
            "Error: nothing was recorded: 1 forward passes in training mode but no step of a torch optimizer",
        ),
    ],
)
def test_what_recorded_nothing_is_said_in_a_line(run: Run, tmp_path: Path, text: str, code: int, message: str) -> None:
    (tmp_path / "script.py").write_text(text)
    done = run("--shapes-only", "script.py")
    assert done.code == code
    assert len(done.ours) == 1
    assert done.ours[0].startswith(message)
    assert not (tmp_path / "trace.json.gz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--iterations", "1:2", "script.py"), "--iterations: not with --shapes-only and a script"),
        (("--precision", "bf16", "script.py"), "--precision: not with --shapes-only and a script"),
        (("nowhere.py",), "nowhere.py: no such file; expected a Python script"),
        ((), "--shapes-only: expected a SCRIPT, --hf-config, --timm or --torchvision, got none"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("--shapes-only", *arguments)
    assert done.code == 2
    assert done.ours == [f"Error: {message}"]


EARLY_CONTEXTS = """
import torch
from torch.cuda.amp import GradScaler
context, scaler = torch.amp.autocast(device_type="cuda", dtype=torch.{dtype}), GradScaler(enabled={scaled})
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(9):
    with context:
        loss = layer(torch.ones(3, 4).cuda()).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(("dtype", "scaled"), [("bfloat16", False), ("float16", True)])
def test_autocast_and_scalers_made_at_the_top_of_a_script_are_on(
    record: Any, tmp_path: Path, dtype: str, scaled: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(EARLY_CONTEXTS.format(dtype=dtype, scaled=scaled))
    _, trace = record(script)
    assert trace.meta.precision.autocast_dtype == dtype
    assert operands(trace, "aten::addmm") == {(dtype, (4,))}
    checks = names(trace, Phase.OTHER) + names(trace, Phase.OPTIMIZER) + names(trace, Phase.FORWARD)
    assert checks["aten::_amp_foreach_non_finite_check_and_unscale_"] == scaled


def test_a_recording_that_fails_ends_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_dtype: str | None) -> None:
        raise ValueError("no precision")

    class Ended(BaseException):
        pass

    def end() -> None:
        raise Ended

    monkeypatch.setattr("wavecast.tracer.description.device.describe_precision", fail)
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    session = ScriptShapes(Workload(), end)
    with session:
        layer.to("cuda")
        for _ in range(2):
            layer(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        layer(torch.ones(1, 1)).sum().backward()
        with pytest.raises(Ended):
            optimizer.step()
    assert str(session.explain_nothing(Ended())) == "no precision"


def test_nothing_stays_replaced() -> None:
    names = [name for name in dir(torch.cuda) if not name.startswith("_")] + ["_lazy_init"]

    def look() -> list[Any]:
        functions = [getattr(torch.cuda, name) for name in names]
        elsewhere: list[Any] = [
            torch.Generator,
            torch.version.cuda,
            torch.backends.cudnn.version,
            torch.Tensor.record_stream,
        ]
        elsewhere += [torch.distributed.init_process_group, torch.nn.parallel.DistributedDataParallel.__init__]
        elsewhere += [torch.Tensor.pin_memory, torch.accelerator.is_available, torch.accelerator.current_stream]
        return [*functions, *elsewhere, torch.nn.Module._apply, torch.UntypedStorage.to]

    def fail() -> None:
        with ScriptShapes(Workload(), lambda: None):
            assert torch.cuda.is_available()
            assert torch.nn.Linear(1, 1).weight.is_meta
            raise KeyError

    before = look()
    with pytest.raises(KeyError):
        fail()
    assert look() == before
    assert not torch.nn.Linear(1, 1).weight.is_meta
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
