"""Records models of transformers, timm and torchvision by name: shapes alone, no weights and nothing downloaded."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from ..errors import CaptureError, InputError, WavecastError
from ..formats.trace import Trace
from .session import trace_iteration

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEFAULT_BATCH_SIZE: Final = 8
DEFAULT_SEQUENCE_LENGTH: Final = 512
DEFAULT_IMAGE_SIZE: Final = 224
"""The side of the images that most models of torchvision were trained with."""
_TORCHVISION_SIZES: Final = {"inception_v3": 299}
"""Models that are not defined for smaller images (Szegedy et al., Rethinking the Inception Architecture)."""
_AUXILIARY_WEIGHT: Final = 0.3
"""What auxiliary classifiers count in the loss (Szegedy et al., Going Deeper with Convolutions, section 5)."""
_MESSAGE_LENGTH: Final = 200
_WHOLE_SAMPLE_HEADS: Final = ("ForSequenceClassification", "ForImageClassification")
"""Classes of transformers with one label per sample; the other heads for text have one per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Say how a model is run; sizes that are None are the model's own, or this module's defaults."""

    mode: str = "training"
    batch_size: int = DEFAULT_BATCH_SIZE
    sequence_length: int | None = None
    image_size: int | None = None
    precision: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("batch_size", "sequence_length", "image_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"--{name.replace('_', '-')}: expected 1 or more, got {count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Hold a model on the meta device, its inputs, and how its loss comes from them."""

    name: str
    model: torch.nn.Module
    predict: Callable[[], Any]
    compute_loss: Callable[[], torch.Tensor]


def record_model(library: str, model: str, settings: Settings, *, name: str | None = None) -> Trace:
    """Return one iteration's shapes of a model: `library` is a key of LIBRARIES, `model` what it calls the model.

    A training iteration is forward, backward and AdamW with torch's default settings, its state being there already.
    Raises InputError for what the library does not know, CaptureError where the model needs a tensor's values.
    """
    build = LIBRARIES[library]
    with _failures_in_one_line(model, "cannot be built on the meta device"), torch.device("meta"):
        subject = build(model, settings)
    with _failures_in_one_line(subject.name, "cannot run on the meta device"), _sequences_unpacked():
        return trace_iteration(
            build_step(subject, settings.mode),
            device="meta",
            name=name or subject.name,
            mode=settings.mode,
            batch_size=settings.batch_size,
            samples_per_iteration=settings.batch_size,
        )


def build_step(subject: Subject, mode: str) -> Callable[[], object]:
    """Return a function that runs one training or inference iteration."""
    if mode == "inference":
        subject.model.eval()

        def predict() -> object:
            with torch.inference_mode():
                return subject.predict()

        return predict
    subject.model.train()
    optimizer = torch.optim.AdamW(subject.model.parameters())

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        subject.compute_loss().backward()
        optimizer.step()

    return train


def _build_transformer(path: str, settings: Settings) -> Subject:
    config, name = _read_config(path)
    transformers = _import("transformers")
    config.use_cache = False
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise InputError(f"{path}: architectures: transformers {transformers.__version__} has no {name}")
    model = architecture(config).to(DTYPES[settings.precision])
    inputs = _make_inputs(model, name, settings)
    labels = _make_labels(name, inputs)
    accepted = inspect.signature(model.forward).parameters

    def predict() -> Any:
        given = dict(inputs)
        if config.is_encoder_decoder:
            given["decoder_input_ids"] = inputs["input_ids"]
        return model(**given)

    def compute_loss() -> torch.Tensor:
        loss = model(**inputs, **labels).loss if labels.keys() <= accepted.keys() else None
        if not isinstance(loss, torch.Tensor):
            raise InputError(f"{name} computes no loss: name a class with a head in architectures, or --mode inference")
        return loss

    return Subject(name=name, model=model, predict=predict, compute_loss=compute_loss)


@contextmanager
def _sequences_unpacked() -> Iterator[None]:
    """Answer for transformers that no sequence is packed: it looks at the positions' values, which meta has not."""
    masking = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    original = getattr(masking, name, None)
    if original is None:
        yield
        return
    setattr(masking, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masking, name, original)


def _read_config(path: str) -> tuple[Any, str]:
    """Return the configuration in a file, and the name of the model's class."""
    transformers = _import("transformers")
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file: expected the config.json of a transformers model")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise InputError(f"{path}: not a configuration that transformers can read: {_one_line(error)}") from error
    if not config.architectures:
        raise InputError(f'{path}: architectures: expected the model\'s class, for example ["LlamaForCausalLM"]')
    return config, config.architectures[0]


def _make_inputs(model: Any, name: str, settings: Settings) -> dict[str, torch.Tensor]:
    main, config = model.main_input_name, model.config
    if main == "input_ids":
        if settings.image_size is not None:
            raise InputError(f"--image-size: {name} reads text: use --sequence-length")
        longest = getattr(config, "max_position_embeddings", None)
        length = settings.sequence_length or min(DEFAULT_SEQUENCE_LENGTH, longest or DEFAULT_SEQUENCE_LENGTH)
        if longest is not None and length > longest:
            raise InputError(f"--sequence-length: {name} has at most {longest} positions here, got {length}")
        return {main: torch.zeros(settings.batch_size, length, dtype=torch.long)}
    if main == "pixel_values":
        _refuse_sequences(settings, name)
        size = settings.image_size or getattr(config, "image_size", None) or DEFAULT_IMAGE_SIZE
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape = settings.batch_size, getattr(config, "num_channels", 3), height, width
        return {main: torch.zeros(shape, dtype=DTYPES[settings.precision])}
    raise InputError(f"{name} reads {main}: only models of text (input_ids) or images (pixel_values) can be built here")


def _make_labels(name: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the model's own loss needs."""
    sample = next(iter(inputs.values()))
    per_sample = torch.zeros(len(sample), dtype=torch.long)
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": per_sample, "end_positions": per_sample}
    if name.endswith("ForPreTraining") and name.startswith("Bert"):
        return {"labels": torch.zeros_like(sample), "next_sentence_label": per_sample}
    is_per_sample = name.endswith(_WHOLE_SAMPLE_HEADS) or sample.is_floating_point()
    return {"labels": per_sample if is_per_sample else torch.zeros_like(sample)}


def _build_timm(name: str, settings: Settings) -> Subject:
    timm = _import("timm")
    _refuse_sequences(settings, name)
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    known = timm.get_pretrained_cfg(name)
    has_fixed_size = settings.image_size is not None and known is not None and known.fixed_input_size
    model = timm.create_model(name, pretrained=False, **({"img_size": settings.image_size} if has_fixed_size else {}))
    channel_count, height, width = model.pretrained_cfg.get("input_size", (3, DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE))
    if settings.image_size is not None:
        height = width = settings.image_size
    return _classify_images(name, model, (channel_count, height, width), settings)


def _build_torchvision(name: str, settings: Settings) -> Subject:
    models = _import("torchvision").models
    _refuse_sequences(settings, name)
    known = models.list_models(module=models)
    if name not in known:
        raise _unknown("torchvision.models (classification)", name, known)
    size = settings.image_size or _TORCHVISION_SIZES.get(name, DEFAULT_IMAGE_SIZE)
    options: dict[str, Any] = {"image_size": size} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # the others need no telling, and these warn
    model = models.get_model(name, weights=None, **options)
    return _classify_images(name, model, (3, size, size), settings)


def _classify_images(name: str, model: torch.nn.Module, shape: tuple[int, int, int], settings: Settings) -> Subject:
    dtype = DTYPES[settings.precision]
    model = model.to(dtype)
    images = torch.zeros(settings.batch_size, *shape, dtype=dtype)
    labels = torch.zeros(settings.batch_size, dtype=torch.long)

    def compute_loss() -> torch.Tensor:
        outputs = model(images)
        main, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = functional.cross_entropy(main, labels)
        for output in auxiliary:
            loss = loss + _AUXILIARY_WEIGHT * functional.cross_entropy(output, labels)
        return loss

    return Subject(name=name, model=model, predict=lambda: model(images), compute_loss=compute_loss)


LIBRARIES: Final[dict[str, Callable[[str, Settings], Subject]]] = {
    "transformers": _build_transformer,
    "timm": _build_timm,
    "torchvision": _build_torchvision,
}


def _import(library: str) -> Any:
    """Return an optional library; raises InputError where it is missing or does not load."""
    try:
        with torch.device("cpu"):
            return import_module(library)
    except ModuleNotFoundError as error:
        if error.name == library:
            raise InputError(f"{library} is not installed: pip install {library}") from error
        raise InputError(f"{library} needs {error.name}, which is not installed: pip install {error.name}") from error
    except Exception as error:
        raise InputError(
            f"{library} cannot be imported beside torch {torch.__version__}: {_one_line(error)}"
        ) from error


def _refuse_sequences(settings: Settings, name: str) -> None:
    if settings.sequence_length is not None:
        raise InputError(f"--sequence-length: {name} reads images: use --image-size")


def _unknown(where: str, name: str, known: list[str]) -> InputError:
    near = get_close_matches(name, known)
    advice = f"did you mean {', '.join(near)}?" if near else "see its list_models()"
    return InputError(f"{where} has no model {name!r}: {advice}")


@contextmanager
def _failures_in_one_line(name: str, what: str) -> Iterator[None]:
    """Turn what third-party code raises into a CaptureError; ours passes through."""
    try:
        yield
    except WavecastError:
        raise
    except Exception as error:
        raise CaptureError(f"{name} {what}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text[:_MESSAGE_LENGTH]}" if text else type(error).__name__
