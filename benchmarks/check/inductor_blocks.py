# mypy: disable-error-code="no-any-return, has-type, misc, operator, call-overload, arg-type"
"""Small networks of the kinds that `inductor_joins` asks about, written here to find inductor's rules with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional


class ConvBlocks(nn.Module):
    """Like ConvNeXt."""

    def __init__(self, widths: Sequence[int] = (48, 96), depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, widths[0], 4, 4)
        self.first = Norm2d(widths[0])
        self.stages = nn.ModuleList()
        for at, width in enumerate(widths):
            if at:
                self.stages.append(nn.Sequential(Norm2d(widths[at - 1]), nn.Conv2d(widths[at - 1], width, 2, 2)))
            self.stages.append(nn.Sequential(*(ConvBlock(width) for _ in range(depth))))
        self.last = nn.LayerNorm(widths[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = self.first(self.enter(x))
        for s in self.stages:
            x = s(x)
        return self.last(x.mean((2, 3)))


class Norm2d(nn.Module):
    """Normalise channels, innermost for the time being."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvBlock(nn.Module):
    """A block of ConvBlocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Pyramid(nn.Module):
    """Like PVT v2: attention over strided keys, depthwise convolutions in the perceptron."""

    def __init__(self, widths: Sequence[int] = (48, 80), depth: int = 2) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        before = 3
        for at, width in enumerate(widths):
            self.stages.append(PyramidStage(before, width, 4 if at == 0 else 2, depth, 4 if at == 0 else 2))
            before = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        for s in self.stages:
            x = s(x)
        return x


class PyramidStage(nn.Module):
    """Merge patches, then run blocks."""

    def __init__(self, before: int, width: int, stride: int, depth: int, ratio: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(before, width, 2 * stride - 1, stride, stride - 1)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList([PyramidBlock(width, ratio) for _ in range(depth)])
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = self.patch(x)
        n, c, h, w = x.shape
        x = self.norm(x.flatten(2).transpose(1, 2))
        for b in self.blocks:
            x = b(x, h, w)
        return self.last(x).transpose(1, 2).reshape(n, c, h, w)


class PyramidBlock(nn.Module):
    """Attention, then a perceptron."""

    def __init__(self, width: int, ratio: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.reduce = nn.Conv2d(width, width, ratio, ratio)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.depthwise = nn.Conv2d(3 * width, 3 * width, 3, padding=1, groups=3 * width)

    def forward(self, x: torch.Tensor, h: int, w: int) -> torch.Tensor:
        """Run the block."""
        n, t, c = x.shape
        y = self.norms[0](x)
        q = self.q(y).view(n, t, self.heads, -1).transpose(1, 2)
        z = self.reduce(y.transpose(1, 2).reshape(n, c, h, w)).flatten(2).transpose(1, 2)
        kv = self.kv(self.norms[1](z)).view(n, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, kv[0], kv[1])
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        y = self.up(self.norms[2](x))
        y = self.depthwise(y.transpose(1, 2).reshape(n, -1, h, w)).flatten(2).transpose(1, 2)
        return x + self.down(functional.gelu(y))


class Pool(nn.Module):
    """Like PoolFormer."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 7, 4, 2)
        self.blocks = nn.ModuleList([PoolBlock(width) for _ in range(depth)])
        self.last = nn.GroupNorm(1, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = self.enter(x)
        for b in self.blocks:
            x = b(x)
        return self.last(x)


class PoolBlock(nn.Module):
    """Pooling, then a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(1, width) for _ in range(2)])
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
        self.scales = nn.ParameterList([nn.Parameter(torch.full((width, 1, 1), 0.1)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = self.norms[0](x)
        x = x + self.scales[0] * (functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y)
        return x + self.scales[1] * self.down(functional.gelu(self.up(self.norms[1](x))))


class Inverted(nn.Module):
    """Like EfficientNet: inverted bottlenecks with squeeze and excitation."""

    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU())
        self.blocks = nn.ModuleList([InvertedBlock(width) for _ in range(depth)])
        self.last = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.SiLU())
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = self.enter(x)
        for b in self.blocks:
            x = b(x)
        return self.head(self.last(x).mean((2, 3)))


class InvertedBlock(nn.Module):
    """A block of Inverted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.up, self.norm1 = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.mid, self.norm2 = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide)
        self.squeeze, self.excite = nn.Conv2d(wide, 6, 1), nn.Conv2d(6, wide, 1)
        self.down, self.norm3 = nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = functional.silu(self.norm1(self.up(x)))
        y = functional.silu(self.norm2(self.mid(y)))
        gate = self.excite(functional.silu(self.squeeze(functional.adaptive_avg_pool2d(y, 1)))).sigmoid()
        return x + self.norm3(self.down(y * gate))


class Bottlenecks(nn.Module):
    """Like ResNet with bottlenecks and max pooling."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.Sequential(
            Bottleneck(width, 3 * width, 1),
            *(Bottleneck(3 * width, 3 * width, 1) for _ in range(depth - 1)),
            Bottleneck(3 * width, 5 * width, 2),
            Bottleneck(5 * width, 5 * width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.stages(self.enter(x)).mean((2, 3))


class Bottleneck(nn.Module):
    """A block of Bottlenecks."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        mid = width // 2
        self.body = nn.Sequential(
            nn.Conv2d(before, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, mid, 3, stride, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.skip = (
            nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            if before != width or stride > 1
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return functional.relu(self.body(x) + self.skip(x))


class Dense(nn.Module):
    """Like DenseNet."""

    def __init__(self, width: int = 32, grow: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(
                nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, grow, 3, padding=1, bias=False))
            )
            width += grow
        self.last = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = self.enter(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return functional.relu(self.last(x)).mean((2, 3))


class Windows(nn.Module):
    """Like Swin: shifted windows, a bias by position, merged patches."""

    def __init__(self, width: int = 48, depth: int = 2, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.enter = nn.Conv2d(3, width, 4, 4)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            [WindowBlock(width, window, 0 if at % 2 == 0 else window // 2) for at in range(depth)]
        )
        self.merge_norm, self.merge = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)
        self.last = nn.LayerNorm(2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = self.norm(self.enter(x).permute(0, 2, 3, 1))
        for b in self.blocks:
            x = b(x)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.last(self.merge(self.merge_norm(x)))


class WindowBlock(nn.Module):
    """Attention in windows, then a perceptron."""

    def __init__(self, width: int, window: int, shift: int, heads: int = 2) -> None:
        super().__init__()
        self.window, self.shift, self.heads = window, shift, heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window**2, window**2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        n, h, w, c = x.shape
        s = self.window
        y = self.norms[0](x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.view(n, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)
        q, k, v = self.qkv(y).view(-1, s * s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5 + self.bias).softmax(-1)
        y = self.out((a @ v).transpose(1, 2).reshape(-1, s * s, c))
        y = y.view(n, h // s, w // s, s, s, c).transpose(2, 3).reshape(n, h, w, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norms[1](x))


class Narrow(nn.Module):
    """Like MobileNet v2: padded depthwise convolutions, ReLU6."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6())
        self.blocks = nn.Sequential(
            NarrowBlock(width, 24, 2),
            NarrowBlock(24, 24, 1),
            NarrowBlock(24, 24, 1),
            NarrowBlock(24, 40, 2),
            NarrowBlock(40, 40, 1),
        )
        self.last = nn.Sequential(nn.Conv2d(40, 160, 1, bias=False), nn.BatchNorm2d(160), nn.ReLU6())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.last(self.blocks(self.enter(x)))


class NarrowBlock(nn.Module):
    """A block of Narrow."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.stride = stride
        self.up = nn.Sequential(nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.mid = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.down = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))
        self.same = before == width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = self.down(self.mid(functional.pad(self.up(x), (1, 1, 1, 1))))
        return x + y if self.same else y


def images(network: type[nn.Module], count: int, size: int) -> Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Return what builds a network and its images."""
    return lambda: (network(), (torch.randn(count, 3, size, size),))


BLOCKS = {
    "convblocks": images(ConvBlocks, 4, 64),
    "pyramid": images(Pyramid, 2, 64),
    "pool": images(Pool, 4, 64),
    "inverted": images(Inverted, 4, 64),
    "bottlenecks": images(Bottlenecks, 4, 64),
    "dense": images(Dense, 4, 32),
    "windows": images(Windows, 2, 64),
    "narrow": images(Narrow, 4, 64),
}
