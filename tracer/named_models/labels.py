"""What the losses of transformers' models need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from .inputs import Inputs
from .reading import Reading, first_number

_PER_SAMPLE: Final = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioClassification",
    "ForImageClassificationWithTeacher",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForXVector",
)
"""Heads with one label per sample; the others for text have one per token."""
_LABEL_LENGTH: Final = 64
"""Characters or word pieces in ten seconds of speech."""
_OBJECT_COUNT: Final = 8
"""Objects per image: COCO's mean is 7.3 (Lin et al., Microsoft COCO, section 5)."""


def make_labels(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    """Return what the model's own loss needs, beside its inputs."""
    if "return_loss" in reading.accepted:
        return {"return_loss": True}
    if "mask_labels" in reading.accepted:
        return _make_segments(reading, inputs)
    make = next((rule for ending, rule in _RULES.items() if reading.name.endswith(ending)), _label_tokens)
    return make(reading, inputs)


def _label_tokens(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    return {"labels": _per_token(reading, inputs)}


def _label_samples(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    return {"labels": reading.fill(0, reading.batch_size)}


def _label_answers(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    if "start_positions" not in reading.accepted:
        return _label_tokens(reading, inputs)
    return {name: reading.fill(0, reading.batch_size) for name in ("start_positions", "end_positions")}


def _label_pretraining(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    extra = "next_sentence_label"
    following = {extra: reading.fill(0, reading.batch_size)} if extra in reading.accepted else {}
    return _label_tokens(reading, inputs) | following


def _label_characters(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    return {"labels": reading.fill(1, reading.batch_size, _LABEL_LENGTH)}


def _label_pixels(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    return {"labels": reading.fill(0, reading.batch_size, *reading.image_size)}


def _label_depths(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    return {"labels": reading.features(reading.batch_size, *reading.image_size)}


def _per_token(reading: Reading, inputs: Inputs) -> Tensor:
    """Return labels for every token that is read, or written where another part reads."""
    ids = inputs.get("input_ids")
    if ids is not None and "decoder_input_ids" not in reading.accepted:
        return reading.fill(reading.plain_id, *ids.shape)
    return reading.fill(reading.plain_id, reading.batch_size, reading.length)


def _label_objects(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    objects = [
        {"class_labels": reading.fill(0, _OBJECT_COUNT), "boxes": torch.empty(_OBJECT_COUNT, 4, device="meta")}
        for _ in range(reading.batch_size)
    ]
    return {"labels": objects}


def _make_segments(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    masks = [torch.empty(_OBJECT_COUNT, *reading.image_size, device="meta") for _ in range(reading.batch_size)]
    return {"mask_labels": masks, "class_labels": [reading.fill(0, _OBJECT_COUNT) for _ in masks]}


def _mask_patches(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    if "bool_masked_pos" not in reading.accepted:
        return _label_tokens(reading, inputs)
    size = first_number(reading.vision, "patch_size") or 16
    rows, columns = (side // size for side in reading.image_size)
    is_masked = torch.arange(rows * columns, device="cpu") % 2 == 0
    return {"bool_masked_pos": reading.numbers(is_masked.expand(reading.batch_size, -1).contiguous())}


_RULES: Final[dict[str, Callable[[Reading, Inputs], dict[str, Any]]]] = {
    **dict.fromkeys(_PER_SAMPLE, _label_samples),
    "ForQuestionAnswering": _label_answers,
    "ForPreTraining": _label_pretraining,
    "ForCTC": _label_characters,
    "ForObjectDetection": _label_objects,
    "ForSegmentation": _label_objects,
    "ForMaskedImageModeling": _mask_patches,
    "ForSemanticSegmentation": _label_pixels,
    "ForDepthEstimation": _label_depths,
}
"""The ending of a class's name → its labels; what is not here has a label per token."""
