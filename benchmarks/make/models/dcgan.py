"""DCGAN for 64 × 64 images (Radford et al. 2015, arXiv:1511.06434; 64 base channels, 100 noise dimensions).

3,576,704 parameters in the generator and 2,765,568 in the discriminator. The loss adds the discriminator's on real
and generated images to the generator's, so one backward pass and one optimizer stand for the two alternating ones.
"""

# mypy: disable-error-code="no-any-return"
# Calling an nn.Module returns Any.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

NOISE, CHANNELS, IMAGE = 100, 64, 64


class Dcgan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = _build_generator()
        self.discriminator = _build_discriminator()

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)


def build() -> nn.Module:
    return Dcgan()


def make_batch(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, NOISE, 1, 1), torch.randn(batch_size, 3, IMAGE, IMAGE)


def predict(model: nn.Module, noise: Tensor, _images: Tensor) -> Tensor:
    return model(noise)


def compute_loss(model: Dcgan, noise: Tensor, images: Tensor) -> Tensor:
    fakes = model(noise)
    discriminator = model.discriminator
    is_real = functional.binary_cross_entropy_with_logits
    real, fake = discriminator(images), discriminator(fakes.detach())
    fooled = discriminator(fakes)
    return (
        is_real(real, torch.ones_like(real))
        + is_real(fake, torch.zeros_like(fake))
        + is_real(fooled, torch.ones_like(fooled))
    )


def _build_generator() -> nn.Module:
    layers: list[nn.Module] = []
    channels_in = NOISE
    for factor, stride, padding in ((8, 1, 0), (4, 2, 1), (2, 2, 1), (1, 2, 1)):
        layers += [
            nn.ConvTranspose2d(channels_in, CHANNELS * factor, 4, stride, padding, bias=False),
            nn.BatchNorm2d(CHANNELS * factor),
            nn.ReLU(inplace=True),
        ]
        channels_in = CHANNELS * factor
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels_in, 3, 4, 2, 1, bias=False), nn.Tanh())


def _build_discriminator() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for factor in (2, 4, 8):
        layers += [
            nn.Conv2d(CHANNELS * factor // 2, CHANNELS * factor, 4, 2, 1, bias=False),
            nn.BatchNorm2d(CHANNELS * factor),
            nn.LeakyReLU(0.2, inplace=True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(CHANNELS * 8, 1, 4, 1, 0, bias=False))
