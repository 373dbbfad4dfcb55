"""What a few measurements of one GPU teach about a model there, and the network that corrects sizes."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Singles, row_blocks
from ....records import dataclass, replace
from .problems import Problems, problem_columns

LIMIT: Final = 0.7
"""Natural log: no correction goes further."""
LEAST_SIZE: Final = 1e-3
"""Stands for a column's zero among its logarithms."""
_BLOCK_ROW_COUNT: Final = 4096
"""Problems whose distances to all measurements are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Hold a correction of one model for one GPU.

    log factor = coefficients . [1, x] + likeness(x, taught) . weights + offset of the kind of kernel, with
    x = (descriptors - mean) / scale of those that differed among the measurements.
    """

    columns: Codes
    """Which descriptors differed, [f]."""
    mean: Floats
    scale: Floats
    coefficients: Floats
    """[f + 1]"""
    taught: Floats
    """Standardised descriptors of the measurements, [n, f]."""
    taught_kinds: Codes
    """[n]"""
    weights: Floats
    """[n]"""
    reach: float
    """See `proximity`."""
    other_kind_ratio: float
    """See `likeness`."""
    kinds: Codes
    """Kinds of kernel that were measured (`Model.kind`), ascending, [g]; g may be 0."""
    kind_offsets: Floats
    """[g]"""
    spared_kinds: Codes
    """Kinds whose times stay as the model has them: left-out measurements of them fit no better."""


def descriptors(problems: Problems, time_ns: Floats, features: Floats) -> Floats:
    """Return what problems are told apart by, [..., d]: the model's features, logarithms of their sizes and times."""
    sizes = [np.nan_to_num(np.asarray(column, dtype=np.float64)) for column in problem_columns(problems).values()]
    logs = [np.broadcast_to(np.log(np.maximum(size, LEAST_SIZE)), time_ns.shape) for size in sizes]
    return np.concatenate([features, np.stack([*logs, np.log(time_ns)], axis=-1)], axis=-1)


def design_matrix(features: Floats, mean: Floats, scale: Floats) -> Floats:
    """Return one and the standardised features, [..., f + 1]."""
    standard = np.clip((features - mean) / scale, -CLIP, CLIP)
    return np.concatenate([np.ones((*standard.shape[:-1], 1)), standard], axis=-1)


def proximity(left: Floats, right: Floats, reach: float) -> Floats:
    """Return how near the rows of [n, f] and [m, f] are, [n, m]: 1 for equal ones; 0 where there are no features.

    exp(-1/2) where all features differ by `reach` standard deviations.
    """
    if not left.shape[1]:
        return np.zeros((len(left), len(right)))
    squared = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    return np.asarray(np.exp(np.maximum(squared, 0.0) / (-2 * left.shape[1] * reach**2)))


def likeness(near: Floats, left: Codes, right: Codes, other_kind_ratio: float) -> Floats:
    """Return how alike problems of kinds [n] and [m] are that are so near, [n, m]: less between kinds of kernel."""
    return near * np.where(left[:, None] == right, 1.0, other_kind_ratio)


def correction_factor(calibration: Calibration, described: Floats, kinds: Codes) -> Floats:
    """Return by what the model's times are multiplied, for descriptors [..., d] and kinds of kernel [...]."""
    design = design_matrix(described[..., calibration.columns], calibration.mean, calibration.scale)
    log_factor = (design @ calibration.coefficients + _kind_offset(calibration, kinds)).ravel()
    rows = design.reshape(-1, design.shape[-1])[:, 1:]
    flat = np.broadcast_to(kinds, design.shape[:-1]).ravel()
    for block in row_blocks(len(rows), _BLOCK_ROW_COUNT):
        near = proximity(rows[block], calibration.taught, calibration.reach)
        alike = likeness(near, flat[block], calibration.taught_kinds, calibration.other_kind_ratio)
        log_factor[block] += alike @ calibration.weights
    factor = np.exp(np.clip(log_factor, -LIMIT, LIMIT)).reshape(design.shape[:-1])
    return np.where(np.isin(kinds, calibration.spared_kinds), 1.0, factor)


def _kind_offset(calibration: Calibration, kinds: Codes) -> Floats:
    """Return the offset of each kind; 0 for those that were not measured."""
    if not len(calibration.kinds):
        return np.zeros(np.shape(kinds))
    at = np.minimum(np.searchsorted(calibration.kinds, kinds), len(calibration.kinds) - 1)
    return np.where(calibration.kinds[at] == kinds, calibration.kind_offsets[at], 0.0)


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


def mean_network(members: Sequence[Network]) -> Network:
    """Return what says the mean of networks of the same features: wider layers, those between block-diagonal."""
    first, *between, last = zip(*(item.weights for item in members), strict=True)
    *hidden, output = zip(*(item.biases for item in members), strict=True)
    units = np.eye(len(members), dtype=np.float32)
    inner = (np.sum([*map(np.kron, map(np.diag, units), layer)], axis=0) for layer in between)
    mean = np.asarray(np.concatenate(last) / len(members), dtype=np.float32)
    return replace(
        members[0],
        weights=(np.concatenate(first, axis=1), *inner, mean),
        biases=(*map(np.concatenate, hidden), np.mean(output, axis=0)),
    )


CLIP = 4.0
CHUNK_ROWS = 256
"""Small enough that the linear algebra library starts no threads, which would cost more than they do."""


def correct(network: Network, features: Floats) -> Floats:
    """Return the log correction of every problem: features [..., f] give [...]; those that are NaN none, 0."""
    flat = features.reshape(-1, features.shape[-1])
    hidden = np.clip((flat.astype(np.float32) - network.mean) / network.scale, -CLIP, CLIP)
    output = np.empty(len(flat), dtype=np.float32)
    for chunk in row_blocks(len(flat), CHUNK_ROWS):
        output[chunk] = _forward(network, hidden[chunk])
    bounded = np.clip(np.nan_to_num(output) * network.shrink, -network.limit, network.limit)
    return np.asarray(bounded.reshape(features.shape[:-1]), dtype=np.float64)


def _forward(network: Network, hidden: Singles) -> Singles:
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        hidden = hidden @ weight
        hidden += bias
        np.maximum(hidden, 0.0, out=hidden)
    return np.asarray((hidden @ network.weights[-1] + network.biases[-1])[:, 0])
