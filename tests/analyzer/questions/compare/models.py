"""Small models with one switch per change that `compare_pairs` makes, recorded as shapes alone."""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}
NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Say what is built and how it is trained; the defaults are what pairs start from."""

    model: str = "gpt"
    layers: int = 4
    width: int = 256
    batch: int = 8
    length: int = 128
    activation: str = "gelu"
    norm: str = "layer"
    dropout: float = 0.0
    attention: str = "sdpa"
    """`sdpa`, `flash` (asked for by name, on 16-bit numbers) or `written out`."""
    qkv: str = "joint"
    tied: bool = False
    optimizer: str = "adamw"
    """`adamw` (foreach), `adamw fused`, `adamw single`, `sgd`."""
    precision: str = "fp32"
    """`fp32`, `tf32`, `bf16` (weights) or `autocast`."""
    checkpointing: bool = False
    compiled: bool = False
    frozen: int = 0
    """How many of the first layers."""
    accumulate: int = 1
    clip: bool = False
    channels_last: bool = False
    batch_norm: bool = True
    training: bool = True
    with_sizes: bool = True
    """Whether the trace is told its batch size."""


class Attention(nn.Module):
    """Causal attention, fused or written out."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        width = setup.width
        self.heads, self.kind = 4, setup.attention
        self.projections = nn.ModuleList(
            [nn.Linear(width, 3 * width)] if setup.qkv == "joint" else [nn.Linear(width, width) for _ in range(3)]
        )
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of each sample."""
        batch, length, width = x.shape
        parts = [projection(x) for projection in self.projections]
        if len(parts) == 1:
            parts = list(parts[0].split(width, dim=-1))
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.kind == "written out":
            scores = query @ key.transpose(-2, -1) / (width // self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            mixed = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        width = setup.width
        self.norm1, self.attention = NORMS[setup.norm](width), Attention(setup)
        self.norm2, self.dropout = NORMS[setup.norm](width), setup.dropout
        self.expand, self.act = nn.Linear(width, 4 * width), _activation(setup)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run attention and the feed-forward part, each beside a shortcut."""
        x = x + self._drop(self.attention(self.norm1(x)))
        return x + self._drop(self.shrink(self.act(self.expand(self.norm2(x)))))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class Gpt(nn.Module):
    """A decoder of a few layers."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1_000, setup.width), nn.Embedding(1_024, setup.width)
        self.blocks = nn.ModuleList([Block(setup) for _ in range(setup.layers)])
        self.norm, self.head = NORMS[setup.norm](setup.width), nn.Linear(setup.width, 1_000, bias=False)
        self.checkpointing = setup.checkpointing
        if setup.tied:
            self.head.weight = self.words.weight
        for parameter in (item for block in self.blocks[: setup.frozen] for item in block.parameters()):
            parameter.requires_grad_(False)
        if setup.frozen:
            self.words.requires_grad_(False)
            self.places.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of every next token."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing and self.training else block(x)
        return self.head(self.norm(x))


class Stage(nn.Module):
    """A convolution with its norm, beside a shortcut."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.conv = nn.Conv2d(setup.width, setup.width, 3, padding=1, bias=not setup.batch_norm)
        self.bn = nn.BatchNorm2d(setup.width) if setup.batch_norm else nn.Identity()
        self.act = _activation(setup)

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        return x + self.act(self.bn(self.conv(x)))


def _activation(setup: Setup) -> nn.Module:
    return ACTIVATIONS[setup.activation]()


def build_convnet(setup: Setup) -> nn.Module:
    """Return convolutions one after the other; `length` is the side of the images."""
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(setup.width, 10)]
    stages = [Stage(setup) for _ in range(setup.layers)]
    return nn.Sequential(nn.Conv2d(3, setup.width, 7, stride=2, padding=3), *stages, *head)


def build_mlp(setup: Setup) -> nn.Module:
    """Return products one after the other, numbered in one Sequential: another layer shifts all numbers after it."""
    layers: list[nn.Module] = [nn.Linear(setup.width, 2 * setup.width), _activation(setup)]
    for _ in range(setup.layers):
        layers += [nn.Linear(2 * setup.width, 2 * setup.width), _activation(setup)]
    if setup.norm != "layer":
        layers.insert(1, NORMS[setup.norm](2 * setup.width))
    return nn.Sequential(*layers, nn.Linear(2 * setup.width, 10))


def build_step(setup: Setup) -> Callable[[], object]:
    """Return a function that runs one iteration on the meta device."""
    half = setup.precision == "bf16"
    with torch.device("meta"):
        torch.manual_seed(0)
        model = {"gpt": Gpt, "convnet": build_convnet, "mlp": build_mlp}[setup.model](setup)
        inputs, labels = _data(setup)
    if half:
        model, inputs = model.bfloat16(), inputs.bfloat16() if inputs.is_floating_point() else inputs
    if setup.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.to(memory_format=torch.channels_last)
    run = torch.compile(model) if setup.compiled else model
    if not setup.training:
        model.eval()
        return torch.inference_mode()(partial(run, inputs))
    optimizer = _optimizer(setup, [item for item in model.parameters() if item.requires_grad])

    def step() -> None:
        for _ in range(setup.accumulate):
            with torch.autocast("cuda", torch.bfloat16, enabled=setup.precision == "autocast"):
                scores = run(inputs)
                loss = functional.cross_entropy(scores.flatten(0, -2), labels)
            loss.backward()
        if setup.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _data(setup: Setup) -> tuple[Tensor, Tensor]:
    if setup.model == "gpt":
        shape = (setup.batch, setup.length)
        return torch.zeros(shape, dtype=torch.int64), torch.zeros(setup.batch * setup.length, dtype=torch.int64)
    sizes = (3, setup.length, setup.length) if setup.model == "convnet" else (setup.width,)
    return torch.zeros(setup.batch, *sizes), torch.zeros(setup.batch, dtype=torch.int64)


def _optimizer(setup: Setup, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if setup.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    fused, foreach = setup.optimizer == "adamw fused", setup.optimizer == "adamw"
    return torch.optim.AdamW(parameters, fused=fused or None, foreach=None if fused else foreach)


def record(setup: Setup) -> Trace:
    """Record the shapes of one iteration."""
    with _tf32(setup.precision == "tf32"):
        return trace_iteration(
            build_step(setup),
            device="meta",
            name=setup.model,
            mode="training" if setup.training else "inference",
            batch_size=setup.batch if setup.with_sizes else None,
        )


@contextmanager
def _tf32(is_on: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if is_on else "highest")
    torch.backends.cudnn.allow_tf32 = is_on
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
