"""What to train, and on how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.model import Model
from ...analyzer.models.frame.problems import P

AICONFIGURATOR = "ai-dynamo/aiconfigurator 095f58a (Apache-2.0, NVIDIA CORPORATION & AFFILIATES)"
NEUSIGHT = "sitar-lab/NeuSight 6945927 (MIT, Georgia Institute of Technology and Microsoft Corporation)"
LLMSERVINGSIM = "casys-kaist/LLMServingSim 5daddb2 (MIT)"
AITER = "ROCm/aiter e404860 (MIT, Advanced Micro Devices, Inc.)"
HIPBLASLT = "ROCm/hipBLASLt 7d9fb68 (MIT, Advanced Micro Devices, Inc.)"
MIOPEN = "ROCm/MIOpen 2d1fd997 (MIT, Advanced Micro Devices, Inc.)"
DEEPBENCH = "baidu-research/DeepBench da81ba7 (Apache-2.0, Baidu USA)"
TINYNAS = "alibaba/lightweight-neural-architecture-search 8ccaf88 (Apache-2.0, Alibaba)"
KERNELBENCH = "ScalingIntelligence/KernelBench, its history (MIT)"
XWANG233 = "xwang233/code-snippet 2c053c8 (MIT)"
VIDUR = "microsoft/vidur 7d47513 (MIT, Microsoft Corporation)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Generic[P]):
    """Say how one model is trained."""

    model: Model[P]
    load: Callable[[Path], Sequence[Samples[P]]]
    """Measurement directory -> samples of this model."""
    sources: tuple[str, ...] = ()
    """Where the measurements come from, with commit and licence."""
    shape_share: float = 0.25
    """Shapes with `Samples.share` below this train the simulator (and the network)."""
    rows_per_gpu: int = 2500
    """At most, for the simulator's fit; the first by `Samples.share`."""
    points: float = 3000.0
    """What all rows together weigh against the priors: the number of independent measurements they are worth."""
    noise: float = 0.08
    """Width of the loss's quadratic part, in natural-log units."""
    network_rows_per_gpu: int = 8000
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the correction's layers; empty: no correction."""
    limit: float = 0.7
    """Largest correction, natural log."""
