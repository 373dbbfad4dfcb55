"""The inputs of transformers' models: one rule per parameter of their forward, with shapes from the configuration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ...errors import InputError, parameter
from ...records import dataclass
from ..meta.host_values import HostValues
from .subject import DEFAULT_IMAGE_SIZE, DEFAULT_SEQUENCE_LENGTH, Settings, refuse

Inputs = dict[str, Any]
_AUDIO_SAMPLES: Final = 160_000
"""Ten seconds at 16 kHz, what models of speech are trained with."""
_AUDIO_FRAMES: Final = 1_000
"""Ten seconds of spectra, one per 10 ms."""
_BAND_COUNT: Final = 80
"""Mel bands per frame, what most models of speech read."""
_BANDS: Final = (
    "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "input_dim", "input_feat_size",
)  # fmt: skip
"""What configurations call the numbers per frame of a spectrum."""
_LAST_TOKENS: Final = ("eos_token_id", "decoder_start_token_id")
_VIDEO_NAMES: Final = ("Video", "Vivit", "Timesformer")
"""What is in the names of classes that read frames as `pixel_values`."""


def make_inputs(reading: Reading) -> Inputs:
    """Return what the forward of a model needs, without labels and without what only its decoder reads.

    Text, images and sound are given where the model takes them; videos to models of nothing else.
    Raises InputError where a required input has no rule.
    """
    inputs: Inputs = {}
    _refuse_sizes(reading)
    for name, make in _RULES.items():
        if name in reading.accepted and _is_wanted(reading, name, inputs):
            made = make(reading, inputs)
            if made is not None:
                inputs[name] = made
    missing = sorted(reading.required - inputs.keys())
    if missing or not inputs:
        read = ", ".join(missing) or reading.model.main_input_name
        raise InputError(f"{reading.name} reads {read}: only text, images and sound can be made here")
    return _add_placeholders(reading, inputs)


def make_decoder_inputs(reading: Reading) -> Inputs:
    """Return the tokens that a decoder reads where the labels don't give them."""
    name = "decoder_input_ids"
    if name not in reading.accepted:
        return {}
    return {name: reading.fill(reading.plain_id, reading.batch_size, reading.length)}


def _is_wanted(reading: Reading, name: str, inputs: Inputs) -> bool:
    if name in reading.required:
        return True
    main = reading.model.main_input_name
    mains = main if isinstance(main, list) else [main]
    if name == "pixel_values_videos":
        return name in mains and "pixel_values" not in inputs
    if name in ("input_features", "input_values") and name not in mains:
        return "audio" in _modalities(reading) and not {"input_features", "input_values"} & inputs.keys()
    return True


def _modalities(reading: Reading) -> tuple[str, ...]:
    given = getattr(reading.model, "input_modalities", ())
    return (given,) if isinstance(given, str) else tuple(given)


def _refuse_sizes(reading: Reading) -> None:
    reads_images = bool(reading.accepted & {"pixel_values", "pixel_values_videos", "flattened_patches"})
    reads_text = bool(reading.accepted & {"input_ids", "decoder_input_ids"}) or "text" in _modalities(reading)
    if not reads_images:
        refuse(reading.settings, ("image_size", "channels_last"), f"{reading.name} reads no images")
    if not reads_text:
        refuse(reading.settings, ("sequence_length", "cached_tokens"), f"{reading.name} reads no text")


def _make_ids(reading: Reading, _inputs: Inputs) -> Tensor:
    ids = torch.full((reading.batch_size, reading.length), reading.plain_id, device="cpu")
    last = first_number(reading.text, *_LAST_TOKENS)
    if last is not None:
        ids[:, -1] = last
    if reading.name.endswith("ForMultipleChoice"):
        ids = ids.unsqueeze(1).expand(-1, 2, -1).contiguous()
    return reading.numbers(ids)


def _make_images(reading: Reading, _inputs: Inputs) -> Tensor:
    vision, (height, width) = reading.vision, reading.image_size
    channels = first_number(vision, "num_channels", "in_channels", "in_chans") or 3
    accepted = reading.accepted
    if "image_grid_thw" in accepted:
        rows, columns = _grid(reading)
        depth = first_number(vision, "temporal_patch_size") or 1
        return reading.features(reading.batch_size * rows * columns, channels * depth * _patch(reading) ** 2)
    if "spatial_shapes" in accepted:
        rows, columns = _grid(reading)
        return reading.features(reading.batch_size, rows * columns, channels * _patch(reading) ** 2)
    tiles = _tiles(reading)
    images = reading.features(reading.batch_size, *((tiles,) if tiles else ()), channels, height, width)
    if "pixel_attention_mask" in accepted:  # looks for images that are all zeros: padding
        reading.values.give(images, torch.ones((), device="cpu", dtype=images.dtype).expand(images.shape))
    return images


def _tiles(reading: Reading) -> int:
    """Return how many images, frames or tiles stand for a sample in a dimension of their own; 0 for no dimension."""
    frames = first_number(reading.vision, "num_frames")
    if frames and any(item in reading.name for item in _VIDEO_NAMES):
        return frames
    pinpoints = getattr(reading.config, "image_grid_pinpoints", None)
    if "image_sizes" in reading.accepted and pinpoints:
        count = getattr(sys.modules[type(reading.model).__module__], "image_size_to_num_patches")  # noqa: B009
        return int(count(list(reading.image_size), pinpoints, reading.image_size[0]))
    return 1 if "pixel_attention_mask" in reading.accepted else 0


def _patch(reading: Reading) -> int:
    size = getattr(reading.vision, "patch_size", None) or 16
    return int(size[0] if isinstance(size, list | tuple) else size)


def _grid(reading: Reading) -> tuple[int, int]:
    """Return rows and columns of patches, each a multiple of what is merged into one token."""
    merged = first_number(reading.vision, "spatial_merge_size", "merge_size") or 1
    return tuple(max(1, side // (_patch(reading) * merged)) * merged for side in reading.image_size)  # type: ignore[return-value]


def _make_sizes(find: Callable[[Reading], Sequence[int]]) -> Callable[[Reading, Inputs], Tensor]:
    """Return what makes the same row of sizes for each sample."""
    return lambda reading, _: reading.numbers(torch.tensor([find(reading)] * reading.batch_size, device="cpu"))


def _make_image_sizes(reading: Reading, _inputs: Inputs) -> Tensor | None:
    looks = hasattr(reading.config, "image_grid_pinpoints") or reading.vision.model_type == "pixtral"
    if not looks and "image_sizes" not in reading.required:
        return None
    return _make_sizes(lambda _: reading.image_size)(reading, _inputs)


def _make_pixel_mask(reading: Reading, inputs: Inputs) -> Tensor | None:
    images = inputs.get("pixel_values")
    if images is None or "spatial_shapes" not in reading.accepted:
        return None
    return reading.fill(1, *images.shape[:2])


def _make_video(reading: Reading, _inputs: Inputs) -> Tensor:
    vision = reading.vision
    frames = first_number(vision, "num_frames", "frames_per_clip") or 16
    side = getattr(vision, "crop_size", None)
    height, width = reading.image_size if side is None else (side, side)
    return reading.features(reading.batch_size, frames, first_number(vision, "num_channels") or 3, height, width)


def _make_spectra(reading: Reading, _inputs: Inputs) -> Tensor:
    audio = reading.audio
    bands = first_number(audio, *_BANDS) or _BAND_COUNT
    positions = first_number(audio, "max_source_positions")
    if _convolves_bands(reading, bands):
        return reading.features(reading.batch_size, bands, 2 * positions if positions else _AUDIO_FRAMES)
    return reading.features(reading.batch_size, _AUDIO_FRAMES, bands)


def _convolves_bands(reading: Reading, bands: int) -> bool:
    """Return whether spectra come with their bands before time, for a stem that convolves in time, of stride 2."""
    if first_number(reading.audio, "num_mel_bins") is None:
        return False
    return any(isinstance(item, torch.nn.Conv1d) and item.in_channels == bands for item in reading.model.modules())


def _make_spectra_mask(reading: Reading, inputs: Inputs) -> Tensor | None:
    spectra = inputs.get("input_features")
    if spectra is None:
        return None
    bands = first_number(reading.audio, *_BANDS) or _BAND_COUNT
    frames = spectra.shape[-1 if _convolves_bands(reading, bands) else -2]
    return reading.fill(1, reading.batch_size, frames)


def _make_frame_mask(reading: Reading, inputs: Inputs) -> Tensor | None:
    """Return the mask that some losses of alignment count frames by."""
    return _make_spectra_mask(reading, inputs) if reading.name.endswith("ForCTC") else None


def _make_sound(reading: Reading, _inputs: Inputs) -> Tensor:
    audio = reading.audio
    bands, frames = first_number(audio, "num_mel_bins"), first_number(audio, "max_length")
    if bands and frames and not hasattr(audio, "conv_dim"):
        return reading.features(reading.batch_size, frames, bands)
    return reading.features(reading.batch_size, _AUDIO_SAMPLES)


_RULES: Final[dict[str, Callable[[Reading, Inputs], Tensor | None]]] = {
    "input_ids": _make_ids,
    "pixel_values": _make_images,
    "pixel_values_videos": _make_video,
    "image_grid_thw": _make_sizes(lambda reading: (1, *_grid(reading))),
    "spatial_shapes": _make_sizes(_grid),
    "image_sizes": _make_image_sizes,
    "pixel_attention_mask": _make_pixel_mask,
    "input_features": _make_spectra,
    "input_features_mask": _make_spectra_mask,
    "feature_attention_mask": _make_spectra_mask,
    "attention_mask": _make_frame_mask,
    "input_values": _make_sound,
    "lang_ids": lambda it, _: it.fill(0, it.batch_size) if getattr(it.config, "languages", None) else None,
    "bbox": lambda reading, inputs: reading.fill(0, *inputs["input_ids"].shape, 4),
    "flattened_patches": lambda it, _: it.features(it.batch_size, 2_048, 2 + 3 * _patch(it) ** 2),
}
"""How each parameter is made; what comes first is there for what follows."""


def _add_placeholders(reading: Reading, inputs: Inputs) -> Inputs:
    """Put the tokens in front of the text that stand for images and sound."""
    if "input_ids" not in inputs:
        return inputs
    kinds = torch.zeros(0, dtype=torch.long, device="cpu")
    lead = torch.zeros(0, dtype=torch.long, device="cpu")
    for kind, (what, names) in enumerate(_PLACEHOLDERS.items(), start=1):
        token = first_number(reading.config, *names)
        count = 0 if token is None else _count_features(reading, what, inputs)
        if token is None or not count:
            continue
        start = first_number(reading.config, f"{'vision' if what == 'image' else 'audio'}_start_token_id")
        starts = [] if start is None else [start]
        lead = torch.cat([lead, torch.tensor(starts, dtype=torch.long, device="cpu"), lead.new_full((count,), token)])
        kinds = torch.cat([kinds, kinds.new_zeros(len(starts)), kinds.new_full((count,), kind)])
    if not len(lead):
        return inputs
    text = reading.values.find(inputs["input_ids"])
    assert text is not None  # noqa: S101
    ids = torch.cat([lead.expand(reading.batch_size, -1), text], dim=1)
    added = {"input_ids": reading.numbers(ids)}
    if "mm_token_type_ids" in reading.accepted:
        row = torch.cat([kinds, kinds.new_zeros(text.shape[1])])
        added["mm_token_type_ids"] = reading.numbers(row.expand(reading.batch_size, -1).contiguous())
    return inputs | added


_PLACEHOLDERS: Final = {
    "image": ("image_token_id", "image_token_index", "media_token_id"),
    "audio": ("audio_token_id", "audio_token_index"),
}


def _count_features(reading: Reading, what: str, inputs: Inputs) -> int:
    """Return how many tokens stand for a sample's image or sound: as many as the model's own encoder returns."""
    owners = (reading.model, getattr(reading.model, "model", None))
    encode = next((item for item in (getattr(o, f"get_{what}_features", None) for o in owners) if item), None)
    if encode is None:
        return 0
    queries = first_number(reading.config, "num_query_tokens")
    if queries is not None:
        return queries
    known = inspect.signature(encode).parameters
    given = {name: item for name, item in inputs.items() if name in known}
    if not given:
        return 0
    with torch.no_grad():
        found = encode(**given)
    found = getattr(found, "pooler_output", None) if hasattr(found, "pooler_output") else found
    parts = found if isinstance(found, list | tuple) else [found]
    rows = sum(item.numel() // item.shape[-1] for item in parts if isinstance(item, Tensor))
    return rows // reading.batch_size


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


def check_positions(reading: Reading) -> None:
    """Raise InputError where a step after cached tokens needs more positions than the model has."""
    longest = first_number(reading.text, "max_target_positions", "max_position_embeddings")
    if longest is not None and (reading.settings.cached_tokens or 0) >= longest:
        raise InputError(
            f"{parameter('cached_tokens')}: {reading.name} has at most {longest} positions here, {longest - 1} before "
            "the last"
        )


def first_number(config: Any, *names: str) -> int | None:
    """Return the first attribute that is a number and not 0."""
    found = (getattr(config, name, None) for name in names)
    return next((item for item in found if isinstance(item, int) and item > 0), None)
