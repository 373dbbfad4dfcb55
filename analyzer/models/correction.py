"""What a few measurements of one GPU teach about a model there: a factor on its times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..fleet import Floats
from .network import CLIP

LIMIT: Final = 0.7
"""Natural log: no correction goes further."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Hold a correction of one model for one GPU: log factor = coefficients . [1, (features - mean) / scale]."""

    mean: Floats
    scale: Floats
    coefficients: Floats


def design_matrix(features: Floats, mean: Floats, scale: Floats) -> Floats:
    """Return one and the standardised features, [..., f + 1]."""
    standard = np.clip((features - mean) / scale, -CLIP, CLIP)
    return np.concatenate([np.ones((*standard.shape[:-1], 1)), standard], axis=-1)


def correction_factor(calibration: Calibration, features: Floats) -> Floats:
    """Return by what the model's times are multiplied, for features [..., f]."""
    design = design_matrix(features, calibration.mean, calibration.scale)
    return np.asarray(np.exp(np.clip(design @ calibration.coefficients, -LIMIT, LIMIT)))
