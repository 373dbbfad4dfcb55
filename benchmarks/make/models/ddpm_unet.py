"""Diffusion UNet of DDPM for CIFAR-10 (Ho et al. 2020, arXiv:2006.11239, appendix B), 35.7 million parameters.

128 base channels times (1, 2, 2, 2), two residual blocks per resolution, attention at 16 × 16, dropout 0.1.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

IMAGE, CHANNELS, FACTORS, BLOCKS, ATTENTION_SIZE, TIMES = 32, 128, (1, 2, 2, 2), 2, 16, 1_000
_GROUPS, _EPSILON, _DROPOUT = 32, 1e-6, 0.1


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.norm_in = nn.GroupNorm(_GROUPS, channels_in, _EPSILON)
        self.conv_in = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.time = nn.Linear(4 * CHANNELS, channels_out)
        self.norm_out = nn.GroupNorm(_GROUPS, channels_out, _EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)
        self.conv_out = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.conv_in(functional.silu(self.norm_in(x)))
        out = out + self.time(functional.silu(time))[:, :, None, None]
        out = self.conv_out(self.dropout(functional.silu(self.norm_out(out))))
        return self.shortcut(x) + out


class SpatialAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, channels, _EPSILON)
        self.parts = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(3))
        self.output = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        query, key, value = (part(normed).flatten(2).transpose(1, 2)[:, None] for part in self.parts)
        mixed = functional.scaled_dot_product_attention(query.contiguous(), key.contiguous(), value.contiguous())
        return x + self.output(mixed[:, 0].transpose(1, 2).reshape(x.shape))


class Stage(nn.Module):
    """One residual block, with attention where the resolution asks for it."""

    def __init__(self, channels_in: int, channels_out: int, size: int) -> None:
        super().__init__()
        self.residual = Residual(channels_in, channels_out)
        self.attention = SpatialAttention(channels_out) if size == ATTENTION_SIZE else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.attention(self.residual(x, time))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(CHANNELS, 4 * CHANNELS), nn.SiLU(), nn.Linear(4 * CHANNELS, 4 * CHANNELS))
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        channels, size, skips = CHANNELS, IMAGE, [CHANNELS]
        for level, factor in enumerate(FACTORS):
            for _ in range(BLOCKS):
                self.down.append(Stage(channels, CHANNELS * factor, size))
                channels = CHANNELS * factor
                skips.append(channels)
            if level < len(FACTORS) - 1:
                self.shrink.append(nn.Conv2d(channels, channels, 3, stride=2))
                skips.append(channels)
                size //= 2
        self.middle_in, self.middle_out = Residual(channels, channels), Residual(channels, channels)
        self.middle_attention = SpatialAttention(channels)
        for level, factor in reversed(list(enumerate(FACTORS))):
            for _ in range(BLOCKS + 1):
                self.up.append(Stage(channels + skips.pop(), CHANNELS * factor, size))
                channels = CHANNELS * factor
            if level:
                self.grow.append(nn.Conv2d(channels, channels, 3, padding=1))
                size *= 2
        self.norm = nn.GroupNorm(_GROUPS, channels, _EPSILON)
        self.head = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        time = self.time(_embed_times(times, images.dtype))
        x = self.stem(images)
        skips = [x]
        for place, stage in enumerate(self.down):
            x = stage(x, time)
            skips.append(x)
            level, is_last = divmod(place + 1, BLOCKS)
            if not is_last and level < len(FACTORS):
                x = self.shrink[level - 1](functional.pad(x, (0, 1, 0, 1)))
                skips.append(x)
        x = self.middle_out(self.middle_attention(self.middle_in(x, time)), time)
        for place, stage in enumerate(self.up):
            x = stage(torch.cat([x, skips.pop()], dim=1), time)
            level, is_last = divmod(place + 1, BLOCKS + 1)
            if not is_last and level < len(FACTORS):
                x = self.grow[level - 1](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.head(functional.silu(self.norm(x)))


def build() -> nn.Module:
    return Unet()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    images, noise = (torch.randn(batch_size, 3, IMAGE, IMAGE) for _ in range(2))
    return images, torch.randint(TIMES, (batch_size,)), noise


def predict(model: nn.Module, images: Tensor, times: Tensor, _noise: Tensor) -> Tensor:
    return model(images, times)


def compute_loss(model: nn.Module, images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    return functional.mse_loss(model(images, times), noise)


def _embed_times(times: Tensor, dtype: torch.dtype) -> Tensor:
    half = CHANNELS // 2
    steps = torch.arange(half, device=times.device, dtype=torch.float32)
    angles = times.float()[:, None] * torch.exp(steps * (-math.log(10_000) / (half - 1)))
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype)
