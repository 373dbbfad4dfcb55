"""The learned correction: a small multilayer perceptron on dimensionless features, evaluated in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....arrays import Floats, Singles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Hold layers of weights [in, out] and biases [out]; ReLU between them; one output, a natural logarithm."""

    mean: Singles
    scale: Singles
    """Features enter as (feature - mean) / scale, clipped to +-`CLIP`."""
    weights: tuple[Singles, ...]
    biases: tuple[Singles, ...]
    shrink: float
    """What the output is multiplied by, below 1: part of a correction does not carry over to unseen GPUs."""
    limit: float
    """Largest correction either way, in natural-log units."""


CLIP = 4.0
CHUNK_ROWS = 256
"""Small enough that the linear algebra library starts no threads, which would cost more than they do."""


def correct(network: Network, features: Floats) -> Floats:
    """Return the log correction of every problem: features [..., f] give [...]; those that are NaN none, 0."""
    flat = features.reshape(-1, features.shape[-1])
    hidden = np.clip((flat.astype(np.float32) - network.mean) / network.scale, -CLIP, CLIP)
    output = np.empty(len(hidden), dtype=np.float32)
    for begin in range(0, len(hidden), CHUNK_ROWS):
        chunk = slice(begin, begin + CHUNK_ROWS)
        output[chunk] = _forward(network, hidden[chunk])
    bounded = np.clip(np.nan_to_num(output) * network.shrink, -network.limit, network.limit)
    return np.asarray(bounded.reshape(features.shape[:-1]), dtype=np.float64)


def _forward(network: Network, hidden: Singles) -> Singles:
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        hidden = hidden @ weight
        hidden += bias
        np.maximum(hidden, 0.0, out=hidden)
    return np.asarray((hidden @ network.weights[-1] + network.biases[-1])[:, 0])
