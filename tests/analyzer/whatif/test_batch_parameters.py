"""Parameters that ops take in another form, as wide as the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration

CHANNELS = 16


class Standardised(nn.Module):
    """A convolution whose weight is standardised and converted first, as timm's do, then a linear layer likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, 3, 3, 3))
        self.head = nn.Parameter(torch.randn(10, CHANNELS))

    def forward(self, images: Tensor) -> Tensor:
        flat = self.weight.reshape(1, CHANNELS, -1)
        weight = functional.batch_norm(flat, None, None, training=True).reshape_as(self.weight).half()
        features = functional.conv2d(images.half(), weight).mean((2, 3))
        return functional.linear(features, self.head.half())


def record(batch: int) -> Trace:
    with torch.device("meta"):
        model, images = Standardised().eval(), torch.randn(batch, 3, 8, 8)

    def step() -> object:
        with torch.inference_mode():
            return model(images)

    return trace_iteration(step, device="meta", batch_size=batch)


@pytest.mark.parametrize(("before", "after"), [(CHANNELS, 4), (4, CHANNELS), (CHANNELS, 2 * CHANNELS)])
def test_a_converted_weight_is_no_batch(before: int, after: int) -> None:
    rescaled, recorded = with_batch(record(before), after).trace, record(after)
    for one, other in zip(rescaled.ops.signature.tolist(), recorded.ops.signature.tolist(), strict=True):
        assert rescaled.signatures[one] == recorded.signatures[other]
