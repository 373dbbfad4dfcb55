"""Train the learned correction: a small perceptron on the simulator's log residuals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from ...analyzer.models.frame.correction import CLIP, Network
from ...arrays import Floats

EPOCHS: Final = 60
BATCH: Final = 512
LEARNING_RATE: Final = 3e-3
WEIGHT_DECAY: Final = 1e-2
HUBER_DELTA: Final = 0.15
"""Residuals beyond this count linearly, natural log."""


def train_network(
    features: Floats, residual: Floats, weight: Floats, hidden: Sequence[int], *, limit: float, seed: int
) -> Network:
    """Return a network whose output approximates `residual` [n] from `features` [n, f]; deterministic for a seed.

    The output is not yet shrunk: `shrink` is 1 until the driver has chosen it on GPUs that were left out. Rows whose
    features are NaN are left out: the network does not speak of them.
    """
    import torch

    torch.manual_seed(seed)
    known = np.isfinite(features).all(axis=1)
    features, residual, weight = features[known], residual[known], weight[known]
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    inputs = torch.from_numpy(np.clip((features - mean) / scale, -CLIP, CLIP).astype(np.float32))
    target = torch.from_numpy(residual.astype(np.float32))
    importance = torch.from_numpy((weight / weight.mean()).astype(np.float32))
    sizes = [features.shape[1], *hidden, 1]
    layers: list[torch.nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            output = network(inputs[rows])[:, 0]
            loss = torch.nn.functional.huber_loss(output, target[rows], reduction="none", delta=HUBER_DELTA)
            (loss * importance[rows]).mean().backward()
            optimizer.step()
            schedule.step()
    linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    return Network(
        mean=mean.astype(np.float32),
        scale=scale.astype(np.float32),
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        shrink=1.0,
        limit=limit,
    )
