"""One step of text generation: one new token per sample, the state of those before it being there already."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...errors import InputError, parameter
from .inputs import Inputs
from .library_kernels import kernels_for
from .reading import Reading, first_number
from .subject import Subject

_STATES: Final = ("cache", "past_key_values", "cache_params", "state", "mems")
"""What outputs and forward call what the next token needs: keys and values, or a state-space model's state.

Of transformers `cache` since 5.24, one of the others before."""


def build_decoding(reading: Reading, inputs: Inputs) -> Subject:
    """Return the step that reads one token per sample after the cached ones, in the library's default cache.

    Raises InputError for models that generate no text, or have fewer positions than the step needs.
    """
    model, name, count = reading.model, reading.name, reading.settings.cached_tokens or 0
    longest = first_number(reading.text, "max_target_positions", "max_position_embeddings")
    if longest is not None and count >= longest:
        raise InputError(
            f"{parameter('cached_tokens')}: {name} has at most {longest} positions here, {longest - 1} before the last"
        )
    model.eval()
    is_sequence_model = bool(reading.config.is_encoder_decoder)
    tokens = "decoder_input_ids" if is_sequence_model else "input_ids"
    with torch.inference_mode(), kernels_for(model, reading.settings):
        prompt = {
            **(inputs if is_sequence_model else {}),
            tokens: reading.fill(reading.plain_id, reading.batch_size, count),
        }
        outputs = model(**prompt, use_cache=True)
    state = next(
        (item for item in _STATES if item in reading.accepted and getattr(outputs, item, None) is not None), None
    )
    if state is None or tokens not in reading.accepted:
        raise InputError(f"{parameter('cached_tokens')}: {name} keeps no state from one token to the next")
    given: dict[str, Any] = {
        tokens: reading.fill(reading.plain_id, reading.batch_size, 1),
        state: getattr(outputs, state),
    }
    if is_sequence_model:
        given["encoder_outputs"] = (outputs.encoder_last_hidden_state,)

    def predict() -> Any:
        return model(**given, use_cache=True)

    def compute_loss() -> torch.Tensor:
        raise InputError(f"{parameter('cached_tokens')}: only with {parameter('mode', 'inference')}")

    return Subject(name=name, model=model, predict=predict, compute_loss=compute_loss)
