"""What each op model is trained on, and how: one row a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic

from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.model import Model
from ...analyzer.models.frame.problems import P
from ...analyzer.models.registry import OP_MODELS, load_model
from ...records import dataclass

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
CLUSTER = "xxrjun/nccl-tests-cluster 455de4f (Apache-2.0)"
CUDNN_FRONTEND = "NVIDIA/cudnn-frontend 3929da2 (MIT)"
DGXC = "NVIDIA/dgxc-benchmarking 35a9aec (Apache-2.0)"
LIGER = "linkedin/Liger-Kernel ead96b6 (BSD-2-Clause)"
PIPEWEAVE = "zksainx/pipeweave 55e0317 (Apache-2.0)"
VIDUR = "microsoft/vidur 7d47513 (MIT, Microsoft Corporation)"
OWN = "own measurements of an H100 and an H200 (torch 2.11, cuDNN 9.19)"


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


_ROWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "matmul": {
        "load": "load_training_samples",
        "sources": (AICONFIGURATOR, LLMSERVINGSIM, AITER, HIPBLASLT),
        "rows_per_gpu": 1200,
    },
    "matmul_quantized": {
        "load": "load_quantized_training_samples",
        "sources": (AICONFIGURATOR, AITER),
        "rows_per_gpu": 1000,
        "points": 4000.0,
    },
    "matmul_simt": {"sources": (NEUSIGHT,), "rows_per_gpu": 2000, "hidden": ()},
    # No network: two chips are too few to learn one.
    "attention_backward": {"sources": (CUDNN_FRONTEND,), "shape_share": 0.6, "points": 300.0, "hidden": ()},
    "attention_prefill": {"sources": (AICONFIGURATOR,), "rows_per_gpu": 1500},
    "attention_decode": {"sources": (AICONFIGURATOR,), "rows_per_gpu": 1500},
    # Few rows per GPU: all shapes of the smaller tables train (`SCARCE_SHARE`), a quarter of V100's batch norms. No
    # network: so few rows per kernel would be learned by heart.
    "reduction": {
        "sources": (CUDNN_FRONTEND, XWANG233, LIGER, "ScalingIntelligence/KernelBench (MIT)", OWN),
        "rows_per_gpu": 2400,
        "points": 12000.0,
        "hidden": (),
    },
    # No network: on GPUs left out it made errors larger.
    "vector": {
        "sources": (NEUSIGHT, AICONFIGURATOR, VIDUR, LLMSERVINGSIM, OWN),
        "rows_per_gpu": 1000,
        "points": 6000.0,
        "hidden": (),
    },
    # The network sees half of the shapes: without it MI100's, MI250X's and V100's left-out gradients are a third worse.
    "convolution": {
        "sources": (NEUSIGHT, MIOPEN, DEEPBENCH, TINYNAS, KERNELBENCH, XWANG233, OWN),
        "shape_share": 0.5,
        "rows_per_gpu": 450,
        "noise": 0.12,
        "network_rows_per_gpu": 4000,
        "hidden": (32, 32),
        "limit": 1.2,
    },
    # No network: three chips of two libraries are too few to learn one.
    "recurrent": {
        "sources": ("baidu-research/DeepBench da81ba7 (Apache-2.0)",),
        "shape_share": 0.6,
        "points": 600.0,
        "noise": 0.15,
        "hidden": (),
    },
    # No network: the forms of two kinds of GPU would be learned as one.
    "latent_attention": {
        "load": "load_samples",
        "sources": (AICONFIGURATOR,),
        "rows_per_gpu": 1500,
        "noise": 0.12,
        "hidden": (),
    },
    # No network: few kernels, each of few forms.
    "state_space": {"sources": (AICONFIGURATOR,), "rows_per_gpu": 1500, "noise": 0.12, "hidden": ()},
    "experts": {"sources": (AICONFIGURATOR,), "rows_per_gpu": 500, "network_rows_per_gpu": 1500},
    # No network: four kinds of machine are too few to learn one.
    "collective": {
        "sources": (AICONFIGURATOR, VIDUR, PIPEWEAVE, CLUSTER, DGXC),
        "shape_share": 0.6,
        "rows_per_gpu": 700,
        "points": 3000.0,
        "noise": 0.06,
        "hidden": (),
    },
}
"""By model: fields of its `Recipe`; `load` is a function of its family's reader, by default the one that is scored."""


def find_recipe(name: str) -> Recipe[Any]:
    """Return the recipe of a measured model."""
    row, given = OP_MODELS[name], dict(_ROWS[name])
    reader = import_module(f"...analyzer.measurements.{row.family}", __package__)
    return Recipe(model=load_model(row), load=getattr(reader, given.pop("load", row.reader)), **given)
