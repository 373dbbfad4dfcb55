"""Real steps on the meta device: every op is known, and inferring a result agrees with recording it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as ops
from wavecast.analyzer.work import Family, Work, family_of, has_formula, work_of

META = torch.device("meta")

NEEDS_RESULTS = {
    "aten::arange", "aten::eye", "aten::scalar_tensor", "aten::tril_indices", "aten::_unique2", "aten::nonzero",
    "aten::im2col",    "aten::_pack_padded_sequence", "aten::randint", "aten::linspace",
    "aten::index", "aten::native_group_norm",
}  # fmt: skip
"""Ops whose results the arguments alone do not determine (data, Python numbers, index lists with gaps)."""


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=4, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 1),
            nn.GroupNorm(2, channels),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.relu(x + self.body(x))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(16),
        nn.AvgPool2d(2),
        nn.Hardswish(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample(scale_factor=2),
        nn.ReflectionPad2d(1),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.PixelShuffle(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(2, 10),
    )


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.norm = nn.RMSNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.1)
        self.layer_norm = nn.LayerNorm(32)
        self.up, self.gate, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 100, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        cosine, sine = x.cos(), x.sin()
        rotated = torch.cat((-x[..., 16:], x[..., :16]), dim=-1)
        x = self.norm(x * cosine + rotated * sine)
        mask = torch.full((tokens.shape[1],) * 2, float("-inf"), device=META).triu(1)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        x = self.layer_norm(x)
        x = x + self.down(ops.silu(self.gate(x)) * ops.gelu(self.up(x), approximate="tanh"))
        out: torch.Tensor = self.head(x)
        return out


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
        self.bottom = nn.Linear(13, 8)
        self.top = nn.Linear(12 + 8 - 6, 1)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        features = torch.stack([ops.relu(self.bottom(dense)), *(bag(indices, offsets) for bag in self.bags)], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1, device=META)
        return torch.sigmoid(self.top(torch.cat((features[:, 0], products[:, rows, columns]), dim=1)))


def train(
    model: nn.Module,
    loss: Callable[[nn.Module], torch.Tensor],
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    model.to(META)
    optimizer = make_optimizer(model.parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        loss(model).backward()
        optimizer.step()


def classes(n: int = 4) -> torch.Tensor:
    return torch.empty(n, dtype=torch.int64, device=META)


def images(*shape: int) -> torch.Tensor:
    return torch.empty(*(shape or (4, 3, 32, 32)), device=META)


def recommend(model: nn.Module) -> torch.Tensor:
    indices, offsets = classes(20), classes(4)
    return ops.binary_cross_entropy(model(images(4, 13), indices, offsets), images(4, 1))


def many_losses() -> None:
    x, y = images(6, 5).requires_grad_(), images(6, 5)
    total = ops.mse_loss(x, y) + ops.smooth_l1_loss(x, y) + ops.l1_loss(x, y) + ops.huber_loss(x, y)
    total = (
        total + ops.binary_cross_entropy_with_logits(x, y) + ops.kl_div(ops.log_softmax(x, 1), y, reduction="batchmean")
    )
    total = total + ops.cross_entropy(x, classes(6), label_smoothing=0.1) + ops.nll_loss(x, classes(6), reduction="sum")
    total = total + ops.mse_loss(x, y, reduction="none").mean() + ops.soft_margin_loss(x, y)
    total.backward()


def many_elementwise() -> None:
    x, y = images(6, 5).requires_grad_(), images(5)
    names = "exp log sqrt rsqrt sin cos tanh sigmoid erf abs neg reciprocal relu silu gelu log1p expm1 floor sign"
    total = sum(getattr(torch if hasattr(torch, name) else ops, name)(x) for name in names.split())
    total = total + x / y + x * 2 - y + x**2 + torch.pow(x, y) + torch.maximum(x, y) + x.clamp(0, 1) + x.clamp(min=y)
    total = (
        total + torch.where(x > 0, x, y) + x.masked_fill(y == 0, 1.0) + torch.addcmul(x, x, y) + torch.lerp(x, y, 0.1)
    )
    total = (
        total + ops.softplus(x) + ops.elu(x) + ops.hardtanh(x) + ops.mish(x) + ops.hardsigmoid(x) + ops.prelu(x, y[:1])
    )
    total = total + ops.logsigmoid(x) + torch.addcdiv(x, x, y) + ops.glu(torch.cat((x, x), 1)) + ops.leaky_relu(x)
    total = total + (x.half() + y).float() + (torch.ones(6, 5, dtype=torch.int64, device=META) / 2)
    total.sum().backward()


def many_movements() -> None:
    x, index = images(6, 5).requires_grad_(), classes(3)
    outs = [x.repeat(2, 3), x.flip(0), x.roll(1, 0), x.tril(), ops.pad(x, (1, 2)), x.repeat_interleave(2, dim=1)]
    outs += [
        x.t().contiguous(),
        x.expand(3, 6, 5).clone(),
        x.index_select(0, index),
        x[index],
        x.gather(0, index[:, None]),
    ]
    outs += [x.cumsum(1), x.sort(1).values, x.topk(2, 1).values, x.index_add(0, index, x[:3]), x.half(), x[:, 1:4] * 1]
    outs += [
        x.scatter_add(0, index[:, None].expand(3, 5), x[:3]),
        torch.stack((x, x)),
        x.sort(dim=0, stable=True).values,
    ]
    outs += [
        x.sum(0),
        x.mean((0, 1)),
        x.var(1),
        x.amax(0, keepdim=True),
        x.max(1).values,
        x.logsumexp(1),
        x.norm(),
        x.prod(1),
    ]
    outs += [
        ops.unfold(images(1, 3, 8, 8), 3),
        torch.linalg.vector_norm(x, dim=1),
        x.argmax(1).float(),
        (x > 0).any().float(),
    ]
    outs += [x.diagonal(), x.unfold(0, 2, 1), x.select(0, 1), x.split(2)[0], x.std(dim=0), torch.std_mean(x, 0)[0]]
    torch.stack([out.sum() for out in outs]).sum().backward()


def many_creations() -> None:
    x = images(6, 5)
    for make in (torch.zeros, torch.ones, torch.rand, torch.randn, torch.empty):
        make(3, 4, device=META, dtype=torch.float16)
    torch.full((3, 4), 1.0, device=META)
    torch.randint(0, 9, (3, 4), device=META)
    for like in (torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like, torch.empty_like):
        like(x)
    torch.arange(7, device=META), torch.linspace(0, 1, 5, device=META), torch.eye(3, device=META)
    x.new_zeros(3, 4), x.new_ones(3), x.new_full((2, 2), 1.0), x.new_empty(3)
    x.uniform_(), x.normal_(), x.bernoulli_(0.5), x.zero_(), x.fill_(1.0), x.exponential_(), x.copy_(images(5))
    torch.bernoulli(x), torch.randperm(5, device=META), torch.multinomial(x.abs(), 2, replacement=True)
    ops.dropout(x, 0.5)
    torch.native_dropout(x, 0.5, True)


def recurrent(cell: str) -> None:
    model = getattr(nn, cell)(6, 8, num_layers=2, bidirectional=True, device=META)
    model(images(5, 3, 6))[0].sum().backward()


def step_on_cpu(name: str, **options: bool) -> None:
    """Optimizers choose their foreach and fused ops only on real devices."""
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2, bias=False))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        model(torch.ones(4, 5)).sum().backward()
        optimizer.step()


def clip_and_unscale() -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4, 2))]
    gradients = [torch.ones_like(parameter) for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(1), torch.ones(1))
    torch._foreach_pow(gradients, 2.0), torch._foreach_pow(2.0, gradients), torch._foreach_max(gradients)
    torch._foreach_copy_(gradients, gradients)
    torch._foreach_clamp_min_(gradients, 0.0)
    torch._foreach_zero_(gradients)


STEPS: dict[str, Callable[[], object]] = {
    "convnet, sgd": lambda: train(
        convnet(), lambda m: ops.cross_entropy(m(images()), classes()), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
    ),
    "decoder, adamw": lambda: train(
        Decoder(), lambda m: ops.cross_entropy(m(classes(8).view(2, 4)).flatten(0, 1), classes(8)), torch.optim.AdamW
    ),
    "recommender, adagrad": lambda: train(Recommender(), recommend, torch.optim.Adagrad),
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
    "rnn": lambda: recurrent("RNN"),
    "losses": many_losses,
    "elementwise": many_elementwise,
    "movements": many_movements,
    "creations": many_creations,
    "evaluation": lambda: convnet().eval().to(META)(images()),
    "clipping and unscaling": clip_and_unscale,
}
FOREACH = ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
for _name in FOREACH:
    STEPS[f"foreach {_name}"] = partial(step_on_cpu, _name, foreach=True)
for _name in ("Adam", "AdamW", "SGD", "Adagrad"):
    STEPS[f"fused {_name}"] = partial(step_on_cpu, _name, fused=True)
STEPS["fused Adam with AMSGrad"] = partial(step_on_cpu, "Adam", fused=True, amsgrad=True)


@pytest.fixture(scope="module", params=STEPS)
def calls(request: pytest.FixtureRequest, record_calls: Callable[[Callable[[], object]], list[Any]]) -> list[Any]:
    recorded = record_calls(STEPS[request.param])
    assert len(recorded) >= 3
    return recorded


def known(call: Any) -> Work:
    work = work_of(call.name, call.signature)
    assert work is not None, call
    return work


def test_every_op_has_a_formula(calls: list[Any]) -> None:
    names = {call.name for call in calls if not call.name.startswith(("prim::", "profiler::"))}
    assert names
    assert {name for name in names if not has_formula(name)} == set()


def test_every_call_has_work_of_its_family(calls: list[Any]) -> None:
    for call in calls:
        if call.name.startswith("aten::"):
            assert known(call).family is family_of(call.name), call


def test_inferred_results_equal_recorded_ones(calls: list[Any]) -> None:
    """But for how operands are reached, which only the strides of a recorded result tell."""
    for call in calls:
        if call.name.startswith("aten::") and call.name not in NEEDS_RESULTS:
            inferred = work_of(call.name, replace(call.signature, results=()))
            assert inferred is not None
            assert replace(inferred, access=None) == replace(known(call), access=None), call


def test_flops_equal_torchs_counter(calls: list[Any]) -> None:
    for call in calls:
        if call.torch_flops is not None and call.name != "aten::convolution_backward":
            assert known(call).flops == call.torch_flops, call


def test_written_bytes_cover_the_results(calls: list[Any]) -> None:
    """Everything that an op returns, and did not alias or only allocate, is written."""
    for call in calls:
        if call.name in ("aten::_local_scalar_dense", "aten::log_sigmoid_forward"):  # to the host; CUDA keeps no buffer
            continue
        if family_of(call.name) in (Family.ELEMENTWISE, Family.COPY, Family.MATMUL, Family.CONVOLUTION, Family.SOFTMAX):
            results = [result for result in call.signature.results if hasattr(result, "size_bytes")]
            assert known(call).written_bytes == sum(result.size_bytes for result in results), call
