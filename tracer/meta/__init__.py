"""Recordings of shapes: the meta device made to run what CUDA would, and the log of what ran there."""

import torch

from ...errors import CaptureError

# Earlier ones lack shape rules and hooks that shapes are recorded with.
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):
    raise CaptureError(f"recording by shapes needs torch 2.5 or later, and this is {torch.__version__}")
