"""Layouts of convolutions: those that a GPU would give their results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def results_of(trace: Trace, name: str) -> list[tuple[int, ...] | None]:
    rows = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)
    found = [trace.signatures[number].results[0] for op, number in rows if trace.strings[op] == name]
    return [item.strides for item in found if hasattr(item, "strides")]


@pytest.mark.parametrize("rank", [4, 5])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("kernel", [1, 3])
def test_channels_stay_where_they_are(rank: int, is_last: bool, kernel: int) -> None:
    layout = LAYOUTS[rank] if is_last else torch.contiguous_format
    kind = nn.Conv2d if rank == 4 else nn.Conv3d
    with torch.device("meta"):
        model = nn.Sequential(*(kind(8, 8, kernel, padding=kernel // 2) for _ in range(2)), nn.ReLU())
        model.to(memory_format=layout)  # type: ignore[call-overload]
        data = torch.randn(2, 8, *[6] * (rank - 2)).to(memory_format=layout)
    wanted = torch.empty(2, 8, *[6] * (rank - 2)).to(memory_format=layout).stride()

    def train() -> Tensor:
        loss: Tensor = model(data).sum()
        loss.backward()
        return loss

    trace = trace_iteration(train, device="meta", mode="training", batch_size=2)
    assert results_of(trace, "aten::convolution") == [wanted, wanted]
    assert results_of(trace, "aten::relu") == [wanted]
