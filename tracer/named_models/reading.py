"""What a model of transformers reads, and the sizes that its configuration gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, parameter
from ..meta.host_values import HostValues
from .subject import DEFAULT_IMAGE_SIZE, DEFAULT_SEQUENCE_LENGTH, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Hold a model on the meta device, its class's name, the parameters of its forward, and how it is to be run."""

    model: Any
    name: str
    accepted: frozenset[str]
    required: frozenset[str]
    settings: Settings
    values: HostValues

    @property
    def config(self) -> Any:
        """Return the whole configuration."""
        return self.model.config

    @property
    def text(self) -> Any:
        """Return the part of the configuration that tells of text, or all of it."""
        return self.config.get_text_config()

    @property
    def vision(self) -> Any:
        """Return the part that tells of images, or all of it."""
        return self._part("vision_config", "vision_tower_config", "encoder")

    @property
    def audio(self) -> Any:
        """Return the part that tells of sound, or all of it."""
        return self._part("audio_config", "audio_encoder_config", "encoder_config", "encoder")

    def _part(self, *names: str) -> Any:
        parts = (getattr(self.config, name, None) for name in names)
        return next((item for item in parts if hasattr(item, "to_dict")), self.config)

    @property
    def batch_size(self) -> int:
        """Return the number of samples."""
        return self.settings.batch_size

    @property
    def length(self) -> int:
        """Return the text tokens per sample; raises InputError where the model has fewer positions."""
        longest = first_number(self.text, "max_target_positions", "max_position_embeddings")
        given = self.settings.sequence_length
        if longest is not None and given is not None and given > longest:
            raise InputError(
                f"{parameter('sequence_length')}: {self.name} has at most {longest} positions here, got {given}"
            )
        return given or min(DEFAULT_SEQUENCE_LENGTH, longest or DEFAULT_SEQUENCE_LENGTH)

    @property
    def image_size(self) -> tuple[int, int]:
        """Return height and width of the images."""
        size = self.settings.image_size or getattr(self.vision, "image_size", None) or DEFAULT_IMAGE_SIZE
        if isinstance(size, dict):
            size = size.get("height", DEFAULT_IMAGE_SIZE), size.get("width", DEFAULT_IMAGE_SIZE)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return int(height), int(width)

    @property
    def special_ids(self) -> frozenset[int]:
        """Return the token ids that mean something to the model."""
        configs = {id(item): item for item in (self.config, self.text)}.values()
        found = (
            value
            for config in configs
            for name, value in config.to_dict().items()
            if name.endswith(("_token_id", "_token_index", "_token_ids"))
        )
        return frozenset(item for value in found for item in (value if isinstance(value, list) else [value]) if item)

    @property
    def plain_id(self) -> int:
        """Return a token id without a meaning of its own."""
        return next(item for item in range(3, len(self.special_ids) + 4) if item not in self.special_ids)

    def features(self, *shape: int) -> Tensor:
        """Return a tensor of the model's dtype without values."""
        return torch.empty(shape, dtype=self.settings.dtype, device="meta")

    def numbers(self, values: Tensor) -> Tensor:
        """Return integers or truth values that the step may look at."""
        return self.values.give(torch.empty(values.shape, dtype=values.dtype, device="meta"), values)

    def fill(self, value: int, *shape: int) -> Tensor:
        """Return one integer everywhere, which the step may look at."""
        return self.numbers(torch.full(shape, value, dtype=torch.long, device="cpu"))


def first_number(config: Any, *names: str) -> int | None:
    """Return the first attribute that is a number and not 0."""
    found = (getattr(config, name, None) for name in names)
    return next((item for item in found if isinstance(item, int) and item > 0), None)
