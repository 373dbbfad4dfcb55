"""Which torch shapes are recorded with."""

from importlib import reload

import pytest
import torch
from torch.torch_version import TorchVersion
from wavecast.errors import CaptureError
from wavecast.tracer import meta


def test_a_torch_that_is_too_old_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.4.1+cu121"))
    with pytest.raises(CaptureError, match=r"needs torch 2\.5 or later, and this is 2\.4\.1"):
        reload(meta)
