"""One training or inference iteration of a model, as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import torch

from .subject import DTYPES, Settings, Subject

_MOMENTUM: Final = 0.9
"""Sutskever et al., On the importance of initialization and momentum in deep learning: the usual choice since."""
OPTIMIZERS: Final[dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]]] = {
    "adamw": torch.optim.AdamW,
    "adamw-fused": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=_MOMENTUM),
}


def build_step(subject: Subject, settings: Settings) -> Callable[[], object]:
    """Return a function that runs one training or inference iteration."""
    return _build_training(subject, settings) if settings.mode == "training" else _build_inference(subject, settings)


def _build_inference(subject: Subject, settings: Settings) -> Callable[[], object]:
    subject.model.eval()

    def predict() -> object:
        with torch.inference_mode(), _autocast(settings):
            return subject.predict()

    return predict


def _build_training(subject: Subject, settings: Settings) -> Callable[[], object]:
    subject.model.train()
    parameters = [item for item in subject.model.parameters() if item.requires_grad]
    optimizer: torch.optim.Optimizer | None = None

    def train() -> None:
        nonlocal optimizer
        if optimizer is None:  # made in the first run: a fused one is refused for meta tensors outside a recording
            optimizer = OPTIMIZERS[settings.optimizer or "adamw"](parameters)
        optimizer.zero_grad(set_to_none=True)
        with _autocast(settings):
            loss = subject.compute_loss()
        loss.backward()
        optimizer.step()

    return train


def _autocast(settings: Settings) -> AbstractContextManager[Any]:
    return nullcontext() if settings.autocast is None else torch.autocast("cuda", DTYPES[settings.autocast])
