"""What is recorded of a library's model, how the user wants it run, and one iteration of it as a function."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import torch

from ...errors import InputError, parameter
from ...records import dataclass

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEFAULT_BATCH_SIZE: Final = 8
DEFAULT_SEQUENCE_LENGTH: Final = 512
DEFAULT_IMAGE_SIZE: Final = 224
"""The side of the images that most models of torchvision were trained with."""
_COUNTS: Final = ("batch_size", "sequence_length", "image_size", "cached_tokens")
_ONLY_WITH: Final = {
    "cached_tokens": "inference",
    "optimizer": "training",
    "gradient_checkpointing": "training",
    "as_engine": "inference",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Say how a model is run; sizes that are None are the model's own, or this module's defaults."""

    mode: str = "training"
    batch_size: int = DEFAULT_BATCH_SIZE
    sequence_length: int | None = None
    image_size: int | None = None
    precision: str = "fp32"
    autocast: str | None = None
    attention: str | None = None
    optimizer: str | None = None
    cached_tokens: int | None = None
    """Tokens in the key/value cache of a decoding step; None for a pass over the whole sequence."""
    channels_last: bool = False
    gradient_checkpointing: bool = False
    as_engine: bool = False
    """Whether it runs as serving engines run it (`engine`)."""
    reference_kernels: bool = False
    """Whether state-space layers run as they do without the libraries that hold their kernels."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"{parameter(name)}: expected 1 or more, got {count}")
        for name, mode in _ONLY_WITH.items():
            if getattr(self, name) not in (None, False) and self.mode != mode:
                raise InputError(f"{parameter(name)}: only with {parameter('mode', mode)}")

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of weights and inputs."""
        return DTYPES[self.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Hold a model on the meta device, and how its outputs and its loss come from it."""

    name: str
    model: torch.nn.Module
    predict: Callable[[], Any]
    compute_loss: Callable[[], torch.Tensor]


def refuse(settings: Settings, names: tuple[str, ...], why: str) -> None:
    """Raise InputError where the user gave a setting that means nothing here."""
    for name in names:
        if getattr(settings, name) not in (None, False):
            raise InputError(f"{parameter(name)}: {why}")


_MOMENTUM: Final = 0.9
"""Sutskever et al., On the importance of initialization and momentum in deep learning: the usual choice since."""
OPTIMIZERS: Final[dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]]] = {
    "adamw": torch.optim.AdamW,
    "adamw-fused": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=_MOMENTUM),
}


def build_step(subject: Subject, settings: Settings) -> Callable[[], object]:
    """Return a function that runs one training or inference iteration."""
    subject.model.train(settings.mode == "training")

    def predict() -> object:
        with torch.inference_mode(), _autocast(settings):
            return subject.predict()

    if settings.mode != "training":
        return predict
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
