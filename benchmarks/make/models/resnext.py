"""ResNet-50, ResNeXt-101 32x4d and SE-ResNeXt-101 32x4d as DeepLearningExamples and MLPerf train them.

Of He et al. 2015 (arXiv:1512.03385), Xie et al. 2016 (arXiv:1611.05431) and Hu et al. 2017 (arXiv:1709.01507); the
stride of a block is in its 3 × 3 convolution. 25.6, 44.2 and 48.9 million parameters.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_CHANNELS_OUT = (256, 512, 1024, 2048)
_SQUEEZE = 16
"""Channels over those of the gate's middle layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Say how the networks of this family differ."""

    counts: tuple[int, ...]
    """Blocks per stage."""
    width: int
    """Channels of the first stage's 3 × 3 convolutions."""
    groups: int = 1
    has_gates: bool = False
    """Whether each block weighs its channels by squeeze and excitation."""


DESIGNS = {
    "resnet50": Design(counts=(3, 4, 6, 3), width=64),
    "resnext101": Design(counts=(3, 4, 23, 3), width=128, groups=32),
    "se-resnext101": Design(counts=(3, 4, 23, 3), width=128, groups=32, has_gates=True),
}


class Gate(nn.Module):
    """Weigh channels by what they hold on average."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // _SQUEEZE)
        self.excite = nn.Linear(channels // _SQUEEZE, channels)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.excite(torch.relu(self.squeeze(x.mean((2, 3)))))
        return x * torch.sigmoid(weights)[:, :, None, None]


class Block(nn.Module):
    def __init__(self, channels_in: int, width: int, channels_out: int, stride: int, design: Design) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=design.groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.gate: nn.Module = Gate(channels_out) if design.has_gates else nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels_out:
            shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.gate(self.bn3(self.conv3(out))) + self.shortcut(x))


def build(name: str) -> nn.Module:
    """Return one of `DESIGNS`."""
    design, channels = DESIGNS[name], 64
    parts: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for stage, (count, channels_out) in enumerate(zip(design.counts, _CHANNELS_OUT, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            parts.append(Block(channels, design.width << stage, channels_out, stride, design))
            channels = channels_out
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
