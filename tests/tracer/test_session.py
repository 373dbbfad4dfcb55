"""The recording's manners: bad arguments, failures, and what is left behind."""

from __future__ import annotations

import getpass
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as module_hooks
from wavecast.errors import CaptureError, InputError
from wavecast.formats.trace.codec import decode, encode
from wavecast.tracer import trace_iteration

DEVICES = ["meta", "cpu"]


def hook_state() -> Any:
    optimizer = import_module("torch.optim.optimizer")
    attend = torch.ops.aten.scaled_dot_product_attention.default
    return (
        dict(module_hooks._global_forward_pre_hooks),
        dict(module_hooks._global_forward_hooks),
        dict(module_hooks._global_forward_hooks_always_called),
        dict(optimizer._global_optimizer_pre_hooks),
        dict(optimizer._global_optimizer_post_hooks),
        optimizer._get_foreach_kernels_supported_devices(),
        torch._C._dispatch_has_kernel_for_dispatch_key(attend.name(), "AutogradMeta"),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::mish_backward", "Meta"),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_left_behind(training_step: Callable[..., Any], device: str) -> None:
    before = hook_state()
    trace_iteration(training_step(device), device=device, warmup=1, repeats=0)
    assert hook_state() == before


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("failing_call", [1, 2])
def test_the_steps_own_exception_passes_through(
    training_step: Callable[..., Any], device: str, failing_call: int
) -> None:
    before, problem, calls = hook_state(), KeyError("the user's own"), []
    step = training_step(device)

    def fail() -> None:
        calls.append(1)
        step()
        if len(calls) == failing_call:
            raise problem

    with pytest.raises(KeyError) as caught:
        trace_iteration(fail, device=device, warmup=1, repeats=0)
    assert caught.value is problem
    assert hook_state() == before
    trace_iteration(step, device=device, warmup=0, repeats=0)  # and the next recording works


def test_an_exception_inside_a_module_and_a_backward_hook_passes_through() -> None:
    problem = ValueError("in backward")

    def refuse(_gradient: Any) -> None:
        raise problem

    def step() -> None:
        weight = torch.nn.Parameter(torch.ones(2))
        weight.register_hook(refuse)
        weight.sum().backward()

    with pytest.raises(ValueError, match="in backward") as caught:
        trace_iteration(step, device="meta")
    assert caught.value is problem


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: bool(x.sum() > 0), "aten::_local_scalar_dense"),
        (lambda x: x[x > 0], "aten::index"),
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x.cpu(), "aten::_to_copy"),
        (lambda x: x.numpy(), "Tensor.numpy()"),
        (lambda x: x.tolist(), "Tensor.tolist()"),
        (torch.unique, "aten::_unique2"),
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("warmup", [0, 1])
def test_steps_that_read_values_are_refused_in_one_line(read: Any, found: str, mode: Any, warmup: int) -> None:
    def step() -> None:
        with mode():
            read(torch.ones(3))

    with pytest.raises(CaptureError, match="needs the values of a tensor") as caught:
        trace_iteration(step, device="meta", warmup=warmup)
    assert str(caught.value).startswith(found)
    assert "\n" not in str(caught.value)


def test_the_refusal_names_the_module() -> None:
    class Peeking(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            return data.sum().item()

    model = torch.nn.Sequential(Peeking())
    with pytest.raises(CaptureError, match=r"\(in Sequential\.0\)"):
        trace_iteration(lambda: model(torch.ones(3)), device="meta", warmup=0)


def test_ops_without_a_shape_rule_are_refused_in_one_line() -> None:
    with torch.library._scoped_library("wavecast_test", "DEF") as library:
        library.define("strange(Tensor x) -> Tensor")
        with pytest.raises(CaptureError, match="wavecast_test::strange has no shape rule"):
            trace_iteration(lambda: torch.ops.wavecast_test.strange(torch.ones(2)), device="meta", warmup=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device: expected"),
        ({"device": "mps"}, "device: expected"),
        ({"device": "cpu", "warmup": -1}, "warmup: expected 0 or more, got -1"),
        ({"device": "cpu", "repeats": -2}, "repeats: expected 0 or more, got -2"),
        ({"device": "cpu", "mode": "both"}, "mode: expected one of training, inference"),
        ({"device": "cpu", "batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        ({"device": "cpu", "samples_per_iteration": -1}, "samples_per_iteration"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace_iteration(lambda: None, **options)


def test_the_step_has_to_be_callable() -> None:
    with pytest.raises(InputError, match="step: expected a function"):
        trace_iteration(torch.ones(1), device="cpu")  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(CaptureError, match="device='meta'"):
        trace_iteration(lambda: None, device="cuda")


def test_recordings_do_not_nest() -> None:
    with pytest.raises(CaptureError, match="another recording"):
        trace_iteration(lambda: trace_iteration(lambda: None, device="meta"), device="meta")


def test_recording_shapes_draws_no_random_numbers(training_step: Callable[..., Any]) -> None:
    step = training_step()
    before = torch.get_rng_state()
    trace_iteration(step, device="meta")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_of_the_machine_is_in_the_file(
    training_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    token = "hf_Kq7ThisMustNotLeave"  # noqa: S105
    monkeypatch.setenv("HF_TOKEN", token)
    data = encode(trace_iteration(training_step(device), device=device, warmup=0, repeats=1))
    for private in (
        token,
        str(Path.home()),
        str(Path.cwd()),
        socket.gethostname(),
        tempfile.gettempdir(),
        "pytest",
        __file__,
    ):
        assert private.encode() not in data
    if len(getpass.getuser()) > 4:
        assert getpass.getuser().encode() not in data


@pytest.mark.parametrize("device", DEVICES)
def test_the_trace_survives_the_file(training_step: Callable[..., Any], device: str) -> None:
    trace = trace_iteration(training_step(device), device=device, warmup=0, repeats=1)
    assert decode(encode(trace)) == trace


def test_importing_the_tracer_does_not_import_torch() -> None:
    code = "import sys, wavecast.tracer; print('torch' in sys.modules, wavecast.tracer.__all__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False ['record', 'trace_handler', 'trace_iteration']\n"


def test_the_guides_shape_only_recipe_works(root_dir: Path, load_model: Callable[[str], Any]) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (root_dir / "docs" / "reference" / "recording.md").read_text(), flags=re.DOTALL
    )
    training = next(block for block in blocks if "def step" in block)
    shapes = next(block for block in blocks if 'device="meta"' in block)
    step = training[training.index("def step") : training.index("trace = ")]
    names = {"torch": torch, "trace_iteration": trace_iteration, "build_model": load_model("resnet50").build}
    exec(step + shapes, names)  # noqa: S102 - our own guide
    assert names["trace"].meta.workload.batch_size == 32
