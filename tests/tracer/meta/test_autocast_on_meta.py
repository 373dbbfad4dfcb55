"""Autocast in a shape-only recording: torch's rules for CUDA, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.tracer import trace_iteration
from wavecast.tracer.meta.autocast import autocast_on_meta, rule_of

BF16 = torch.bfloat16
F, H, D, I = "float32", "bfloat16", "float64", "int64"  # noqa: E741 - types in the tables below


def record(step: Callable[[], object], warmup: int = 0) -> Trace:
    return trace_iteration(step, device="meta", warmup=warmup)


def record_inside(step: Callable[[], object], dtype: torch.dtype = BF16) -> Trace:
    """Record a step that runs in one autocast region."""

    def wrapped() -> None:
        with torch.autocast("cuda", dtype=dtype):
            step()

    return record(wrapped)


def calls(trace: Trace, *names: str, phase: Phase | None = None) -> list[tuple[str, str, str]]:
    """Return ops with the types of their arguments and of their results, in order."""
    found = []
    for row, (name, signature) in enumerate(zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)):
        short, call = trace.strings[name].removeprefix("aten::"), trace.signatures[signature]
        if short in names and phase in (None, trace.ops.phase[row]):
            results = [item.dtype for item in call.results if isinstance(item, TensorSpec)]
            found.append((short, " ".join(item.dtype for item in call.tensors()), " ".join(results)))
    return found


def conversions(trace: Trace, phase: Phase | None = None) -> list[tuple[str, str]]:
    return [(before, after) for _, before, after in calls(trace, "_to_copy", phase=phase)]


def half(*shape: int) -> Tensor:
    return new(*shape, dtype=BF16)


def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


DOWN, UP = (F, H), (H, F)
DOCUMENTED = {
    # Ops that autocast to the lower precision
    "linear": (lambda: functional.linear(new(4, 8), new(8, 8), new(8)), "addmm", f"{H} {H} {H}", [DOWN] * 3),
    "matmul": (lambda: new(4, 8) @ new(8, 8), "mm", f"{H} {H}", [DOWN] * 2),
    "matmul of halves": (lambda: half(4, 8) @ new(8, 8), "mm", f"{H} {H}", [DOWN]),
    "matmul of doubles": (lambda: new(4, 8, dtype=torch.double) @ new(8, 8).double(), "mm", f"{D} {D}", [(F, D)]),
    "bmm": (lambda: torch.bmm(new(2, 4, 8), new(2, 8, 4)), "bmm", f"{H} {H}", [DOWN] * 2),
    "einsum": (lambda: torch.einsum("ij,jk->ik", new(4, 8), new(8, 4)), "bmm", f"{H} {H}", [DOWN] * 2),
    "conv2d": (lambda: functional.conv2d(new(1, 3, 8, 8), new(4, 3, 3, 3)), "convolution", f"{H} {H}", [DOWN] * 2),
    "prelu": (lambda: functional.prelu(new(4, 8), new(8)), "_prelu_kernel", f"{H} {H}", [DOWN] * 2),
    # Ops that autocast to float32
    "layer_norm": (
        lambda: functional.layer_norm(half(4, 8), (8,), new(8), new(8)),
        "native_layer_norm", f"{F} {F} {F}", [UP],
    ),
    "group_norm": (lambda: functional.group_norm(half(2, 8, 4), 2), "native_group_norm", F, [UP]),
    "softmax": (lambda: half(4, 8).softmax(-1), "_softmax", F, [UP]),
    "log_softmax": (lambda: half(4, 8).log_softmax(-1), "_log_softmax", F, [UP]),
    "exp": (lambda: half(4).exp(), "exp", F, [UP]),
    "pow": (lambda: half(4) ** 2, "pow", F, [UP]),
    "mse_loss": (lambda: functional.mse_loss(half(4), new(4)), "mse_loss", f"{F} {F}", [UP]),
    "l1_loss": (lambda: functional.l1_loss(half(4), new(4)), "sub", f"{F} {F}", [UP]),
    "nll_loss": (
        lambda: functional.nll_loss(half(4, 8), new(4, dtype=torch.long)), "nll_loss_forward", f"{F} {I}", [UP],
    ),
    "upsample": (
        lambda: functional.interpolate(half(1, 2, 4, 4), scale_factor=2), "upsample_nearest2d", F, [UP],
    ),
    # Told to give float32: the op converts as it reads
    "sum": (lambda: half(4, 8).sum(), "sum", H, []),
    "sum with a type": (lambda: half(4, 8).sum(0, dtype=BF16), "sum", H, []),
    "cumsum": (lambda: half(4).cumsum(0), "cumsum", H, []),
    "norm": (lambda: torch.norm(half(4, 8)), "linalg_vector_norm", H, []),
    # The widest of their inputs
    "addcmul": (lambda: torch.addcmul(half(4), new(4), half(4)), "addcmul", f"{F} {F} {F}", [UP] * 2),
    "addcmul of halves": (lambda: torch.addcmul(*[half(4)] * 3), "addcmul", f"{H} {H} {H}", []),
    # Neither: promotion as ever
    "gelu": (lambda: functional.gelu(half(4)), "gelu", H, []),
    "add": (lambda: half(4) + new(4), "add", f"{H} {F}", []),
    "cat": (lambda: torch.cat([half(4), new(4)]), "cat", f"{H} {F}", []),
    "batch_norm": (
        lambda: functional.batch_norm(half(2, 4, 8), new(4), new(4)), "native_batch_norm", f"{H} {F} {F}", [],
    ),
}  # fmt: skip
"""https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior"""


@pytest.mark.parametrize("case", DOCUMENTED.values(), ids=DOCUMENTED)
def test_ops_run_in_the_types_that_torch_documents(case: tuple[Callable[[], Tensor], str, str, Any]) -> None:
    run, name, inputs, casts = case
    trace = record_inside(run)
    assert [before for _, before, _ in calls(trace, name)] == [inputs]
    assert conversions(trace) == casts


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: half(4).sum(), F),
        (lambda: half(4).sum(0, dtype=BF16), H),
        (lambda: torch.norm(half(4, 8), dim=0), F),
        (lambda: torch.norm(new(4, 8, dtype=torch.double)), D),
        (lambda: torch.arange(4, device="meta").sum(), I),
        (lambda: functional.cross_entropy(half(4, 8), new(4, dtype=torch.long)), F),
    ],
)
def test_reductions_give_float32_unless_told_otherwise(run: Callable[[], Tensor], expected: str) -> None:
    found: list[torch.dtype] = []
    record_inside(lambda: found.append(run().dtype))
    assert found == [getattr(torch, expected)]


def test_softmax_reads_float16_and_gives_float32_in_one_op_as_on_cuda() -> None:
    data = new(4, 8, dtype=torch.float16)
    trace = record_inside(lambda: (data.softmax(-1), data.log_softmax(-1)), torch.float16)
    assert calls(trace, "_to_copy", "_softmax", "_log_softmax") == [
        ("_softmax", "float16", F), ("_log_softmax", "float16", F),
    ]  # fmt: skip


def test_attention_is_chosen_by_the_type_that_it_runs_in() -> None:
    wide = new(2, 4, 16, 32)
    trace = record_inside(lambda: functional.scaled_dot_product_attention(wide, wide, wide))
    ((_, inputs, _),) = calls(trace, "_scaled_dot_product_flash_attention")
    assert inputs == f"{H} {H} {H}"


def test_a_recurrent_layer_runs_whole_in_the_lower_precision() -> None:
    layer = nn.LSTM(8, 8, device="meta")
    trace = record_inside(lambda: layer(new(3, 2, 8)))
    ((_, inputs, _),) = calls(trace, "_cudnn_rnn")
    assert set(inputs.split()) == {H}


def test_every_op_that_torch_converts_has_a_rule() -> None:
    names = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    assert [name for name in names if rule_of(name) is None] == ["aten::binary_cross_entropy"]


def test_what_torch_refuses_under_autocast_is_refused() -> None:
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        record_inside(lambda: functional.binary_cross_entropy(new(4), new(4)))


def make_training(region: Callable[[], Any]) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).to("meta")
    data = new(2, 8)

    def step() -> None:
        with region():
            loss = model(data).sum()
        loss.backward()

    return step


def test_backward_runs_in_the_types_of_forward_and_gradients_are_converted_back() -> None:
    trace = record(make_training(lambda: torch.autocast("cuda", dtype=BF16)))
    assert [inputs for _, inputs, _ in calls(trace, "mm", phase=Phase.BACKWARD)] == [f"{H} {H}"] * 3
    assert [types for *types, _ in calls(trace, "native_layer_norm_backward")] == [
        ["native_layer_norm_backward", " ".join([F] * 6)]
    ]
    back = conversions(trace, Phase.BACKWARD)
    assert back.count(UP) == 4 + 1  # the parameters of both layers, and the layer norm's incoming gradient
    assert back.count(DOWN) == 2  # what the sum and the layer norm hand back
    links = trace.ops.forward[[trace.strings[name] == "aten::mm" for name in trace.ops.name.tolist()]]
    assert {trace.strings[trace.ops.name[link]] for link in links.tolist()} == {"aten::addmm"}


class Log(TorchDispatchMode):
    """Note matrix products and conversions with their types."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "addmm", "_to_copy"):
            tensors = [str(item.dtype).removeprefix("torch.") for item in args if isinstance(item, Tensor)]
            self.calls.append((name, " ".join(tensors), str(result.dtype).removeprefix("torch.")))
        return result


def test_conversions_are_those_of_a_real_run_with_the_ops_that_both_devices_convert() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8, bias=False))
    data, weight = torch.randn(2, 8), nn.Parameter(torch.randn(8, 8))
    shapes, on_meta, meta_weight = nn.Sequential(*model).to("meta"), data.to("meta"), nn.Parameter(weight.to("meta"))

    def run(device: str, module: nn.Module, batch: Tensor, other: Tensor) -> None:
        with torch.autocast(device, dtype=BF16):
            found = module(module(batch)) @ other @ other.T
            with torch.autocast(device, enabled=False):
                found = found.float() @ other
        found.pow(2).mean().backward()

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8, bias=False))
    with Log() as real:
        run("cpu", model, data, weight)
    trace = record(lambda: run("cuda", shapes, on_meta, meta_weight))
    assert calls(trace, "mm", "addmm", "_to_copy") == real.calls
    assert len(real.calls) > 20


def test_a_parameter_is_converted_once_per_region_and_activations_each_time() -> None:
    layer, data = nn.Linear(8, 8, device="meta"), new(2, 8)

    def step() -> None:
        for _ in range(2):
            with torch.autocast("cuda", dtype=BF16):
                layer(data)
                with torch.autocast("cuda", dtype=BF16):
                    layer(data)

    assert len(conversions(record(step))) == 2 * (2 + 2)


@pytest.mark.parametrize(
    "weight",
    [
        lambda: nn.Parameter(new(8, 8), requires_grad=False),
        lambda: nn.Parameter(new(8, 8)).T,
        lambda: nn.Parameter(new(8, 8)) * 2,
    ],
)
def test_what_is_no_leaf_that_wants_gradients_is_converted_each_time(weight: Callable[[], Tensor]) -> None:
    data, made = half(2, 8), weight()
    assert len(conversions(record_inside(lambda: (data @ made, data @ made)))) == 2


def test_without_the_cache_parameters_are_converted_each_time() -> None:
    layer, data = nn.Linear(8, 8, bias=False, device="meta"), half(2, 8)

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16, cache_enabled=False):
            layer(layer(data))

    assert conversions(record(step)) == [DOWN] * 2


def test_a_region_that_is_switched_off_runs_in_float32() -> None:
    layer, data = nn.Linear(8, 8, bias=False, device="meta"), new(2, 8)

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            layer(data)
            with torch.autocast("cuda", enabled=False):
                layer(data)
            layer(data)
        layer(data)

    assert [inputs for _, inputs, _ in calls(record(step), "mm")] == [f"{H} {H}", f"{F} {F}", f"{H} {H}", f"{F} {F}"]


def test_default_type_and_spellings() -> None:
    layer = nn.Linear(8, 8, bias=False, device="meta")

    def run(region: Any) -> str:
        def step() -> None:
            with region():
                layer(new(2, 8))

        trace = record(step)
        assert trace.meta.precision.autocast_dtype == "float16"
        return calls(trace, "mm")[0][1]

    with pytest.warns(FutureWarning, match="deprecated"):
        assert run(torch.cuda.amp.autocast) == "float16 float16"
    for region in (
        lambda: torch.autocast("cuda"),
        lambda: torch.amp.autocast("cuda"),
        lambda: torch.autocast(new(1).device.type),  # as library code spells it
    ):
        assert run(region) == "float16 float16"


def test_decorators_and_functions_of_autograd() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, data: Tensor) -> Any:
            assert not torch.is_autocast_enabled("cuda")
            return data @ data

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0]

    def step() -> None:
        @torch.autocast(device_type="cuda", dtype=BF16)  # type: ignore[untyped-decorator]
        def run(data: Tensor) -> Tensor:
            result: Tensor = Double.apply(data @ data)  # type: ignore[no-untyped-call]
            return result

        run(new(8, 8).requires_grad_()).sum().backward()

    assert [inputs for _, inputs, _ in calls(record(step), "mm", phase=Phase.FORWARD)] == [f"{H} {H}", f"{F} {F}"]


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_recomputed_layers_run_in_the_types_that_they_ran_in(is_reentrant: bool) -> None:
    layer, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to("meta"), new(2, 8).requires_grad_()

    def step() -> None:
        with torch.autocast("cuda", dtype=BF16):
            loss: Any = checkpoint(layer, data, use_reentrant=is_reentrant)
        loss.sum().backward()

    assert [inputs for _, inputs, _ in calls(record(step), "addmm")] == [f"{H} {H} {H}"] * 2


def test_the_trace_says_the_type() -> None:
    assert record_inside(lambda: new(2, 2) @ new(2, 2)).meta.precision.autocast_dtype == H
    assert record(lambda: new(2, 2) @ new(2, 2)).meta.precision.autocast_dtype is None


attention = nn.MultiheadAttention(16, 2, device="meta")


@pytest.mark.parametrize(
    "run",
    [
        lambda: functional.interpolate(half(1, 2, 4, 4), scale_factor=2),
        lambda: functional.conv2d(new(1, 3, 8, 8), new(4, 3, 3, 3), padding="same"),
        lambda: functional.cross_entropy(half(4, 8), new(4, dtype=torch.long)),
        lambda: attention(new(4, 2, 16), new(4, 2, 16), new(4, 2, 16))[0],
        lambda: torch.cdist(half(2, 40, 8), half(2, 40, 8)),  # multiplies in float32
        lambda: functional.cosine_similarity(half(4, 8), half(4, 8)),
        lambda: functional.layer_norm(functional.linear(new(4, 8), new(8, 8)), (8,)),
        lambda: functional.scaled_dot_product_attention(new(2, 4, 8, 32), new(2, 4, 8, 32), new(2, 4, 8, 32)),
    ],
)
def test_inference_mode_gives_the_ops_of_no_grad(run: Callable[[], Tensor]) -> None:
    def record_under(mode: Any) -> list[tuple[str, object]]:
        trace = record_inside(mode()(run))
        rows = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)
        return [(trace.strings[name], trace.signatures[number]) for name, number in rows]

    assert record_under(torch.inference_mode) == record_under(torch.no_grad)


def test_inference_mode_converts_too() -> None:
    layer = nn.Linear(8, 8, device="meta")

    def step() -> None:
        with torch.inference_mode(), torch.autocast("cuda", dtype=BF16):
            layer(layer(new(2, 8)))

    trace = record(step)
    assert [inputs for _, inputs, _ in calls(trace, "addmm")] == [f"{H} {H} {H}"] * 2
    assert len(conversions(trace)) == 3


@pytest.fixture
def unchanged() -> Iterator[None]:
    """Check that torch is afterwards what it was before."""
    before = state_of_torch()
    yield
    assert state_of_torch() == before


def state_of_torch() -> list[object]:
    mode, names = torch.amp.autocast_mode, torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    owners = [torch, torch.amp, mode, mode.autocast, torch.cuda, torch.cuda.amp.common, torch.utils.checkpoint]
    scaler = torch.amp.GradScaler
    patched = [value for owner in (*owners, scaler) for value in vars(owner).values() if callable(value)]
    kernels = [
        torch._C._dispatch_dump(name)
        for name in (*sorted(names), "aten::lstm.input", "aten::_local_scalar_dense", "aten::softmax.int")
    ]
    return [patched, kernels, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("failing_call", [None, 1, 2])
def test_nothing_stays_behind(failing_call: int | None) -> None:
    runs = []
    step = make_training(lambda: torch.autocast("cuda", dtype=BF16))

    def fail() -> None:
        step()
        runs.append(1)
        if len(runs) == failing_call:
            raise ZeroDivisionError

    if failing_call is None:
        record(fail, warmup=1)
    else:
        with pytest.raises(ZeroDivisionError):
            record(fail, warmup=1)
    layer = nn.Linear(8, 8, device="meta")
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda"):
        assert layer(new(2, 8)).dtype is torch.float32


def test_tensors_elsewhere_are_left_alone() -> None:
    with autocast_on_meta(), torch.autocast("cuda", dtype=BF16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, autocast is not disabled")
def test_a_region_that_was_disabled_before_the_recording_is_told() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = torch.autocast("cuda", dtype=BF16)

    def step() -> None:
        with region:
            new(2, 2) @ new(2, 2)

    with pytest.warns(RuntimeWarning, match=r"made before the recording and is disabled.*inside the step"):
        assert record(step).meta.precision.autocast_dtype is None
