"""Recordings of shapes: the meta device made to run what CUDA would, and the log of what ran there."""

import torch

from ...errors import CaptureError

if torch.__version__ < (2, 5):  # earlier ones lack shape rules and hooks that shapes are recorded with
    raise CaptureError(f"recording by shapes needs torch 2.5 or later, and this is {torch.__version__}")
