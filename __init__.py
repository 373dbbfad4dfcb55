"""wavecast: record one iteration on the GPU you have, know its time on every GPU you don't."""

from __future__ import annotations

__version__ = "0.1.0"
