"""Where PyTorch asks cuDNN for persistent recurrent layers, which keep their weights in registers for all steps."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..arrays import Mask
from .fleet import Fleet
from .generation_rows import AMD, NVIDIA
from .generations import generation_codes

WITHOUT: Final = frozenset({"Turing", "Ampere GA10x"})
SINCE: Final = "Volta"
LEAST_SM_COUNT: Final = 98.0
"""From Ampere on; `use_persist_device_heuristics` in PyTorch's aten/src/ATen/native/cudnn/RNN.cpp excludes compute
capability 7.5, 8.6 and smaller GPUs."""
_FIRST: Final = [row.name for row in NVIDIA].index(SINCE)
_HAS: Final = np.array(
    [False, *(at >= _FIRST and row.name not in WITHOUT for at, row in enumerate(NVIDIA)), *(False for _ in AMD)]
)
_IS_FIRST: Final = np.array([False, *(row.name == SINCE for row in NVIDIA), *(False for _ in AMD)])


def has_persistent_layers(fleet: Fleet) -> Mask:
    """Say on which GPUs a half-precision layer that fits may run persistently.

    >>> has_persistent_layers(fleet).tolist()
    [True, True]
    """
    codes = generation_codes(fleet)
    return _HAS[codes] & (_IS_FIRST[codes] | (fleet.sm_count >= LEAST_SM_COUNT))
