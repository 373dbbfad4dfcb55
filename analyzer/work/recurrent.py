"""Recurrent layers and cells. Every weight matrix multiplies every step of every sequence once.

Gate arithmetic is not counted in whole layers (below 1 % of the products); fused cells are only gate arithmetic.

Gated delta nets, Mamba-2, Mamba and the causal convolutions before them hold a state per sequence and head, counted
token by token, which is the least: chunks save steps and memory traffic, not arithmetic.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES, Signature, TensorSpec
from .arguments import (
    LackingArgumentError,
    argument_at,
    flag_at,
    flags_at,
    optional_tensor_list_at,
    tensor_at,
    tensor_list_at,
    tensors_at,
)
from .traffic import bytes_of, tensor_bytes, total_bytes
from .work import Direction, Family, RecurrentDims, StateRule, StateSpaceDims, Work, build_work

# Per hidden unit. LSTM: 4 gates of 1 addition, 3 sigmoids of 4, 2 tanh, 4 to update cell and output.
# GRU: 3 gates of 1 addition, 2 sigmoids of 4, 1 tanh, 5 for the reset and the blend. Biases: 2 additions per gate.
_LSTM_FLOPS, _GRU_FLOPS = 22, 17
# Backward, per hidden unit: the chain rule through each gate (3 per sigmoid, 2 per tanh) and the products.
_LSTM_BACKWARD_FLOPS, _GRU_BACKWARD_FLOPS = 26, 20
_PROJECTED_GATES = 4
"""Only an LSTM can project its output, which makes its state narrower than the hidden size."""


def rnn(signature: Signature, *, states: tuple[int, ...], directions: int) -> Work:
    """Whole layers: input, weights, ..., hx, cx."""
    found = tensors_at(signature, *states)
    return _layers(signature, tensor_list_at(signature, 1), found, _directions(signature, directions))


def layers(signature: Signature) -> Work:
    """Whole layers: input, state, weights; packed sequences have their batch sizes second."""
    is_packed = isinstance(argument_at(signature, 1), TensorSpec) and isinstance(argument_at(signature, 3), tuple)
    state = 2 if is_packed else 1
    states = (*tensors_at(signature, state), *optional_tensor_list_at(signature, state))
    return _layers(signature, tensor_list_at(signature, state + 1), states, _directions(signature, state + 6))


def rnn_backward(signature: Signature, mask_position: int) -> Work:
    """Gradients of whole layers: one product per weight for the data, one more where the mask asks for weights."""
    x, weights, output = tensor_at(signature, 0), tensor_list_at(signature, 1), tensor_at(signature, 6)
    mask = flags_at(signature, mask_position, 4)
    products = _step_count(x) * _matrix_elements(weights)
    states = tensors_at(signature, 4, 5)
    written = tensor_bytes(x) + total_bytes(states) + (total_bytes(weights) if mask[3] else 0.0)
    direction = Direction.BOTH_GRADIENTS if mask[3] else Direction.INPUT_GRADIENT
    return Work(
        family=Family.RECURRENT,
        flops=2 * products * (1 + mask[3]),
        read_bytes=total_bytes((x, *weights, output, *states, *tensors_at(signature, 7, 8, 9))),
        written_bytes=written,
        dtype=x.dtype,
        is_matrix=True,
        dims=_dims(x, weights, states, _output_directions(output, weights), direction),
    )


def cell(signature: Signature) -> Work:
    """One step: input, state, weight of input, weight of state, biases."""
    states = (*tensors_at(signature, 1), *optional_tensor_list_at(signature, 1))
    weights = (tensor_at(signature, 2, rank=2), tensor_at(signature, 3, rank=2), *tensors_at(signature, 4, 5))
    return _layers(signature, weights, states, direction_count=0)


def fused_cell(signature: Signature, flops_per_unit: int, gates: int) -> Work:
    """Gate arithmetic of one step, after both products: gates of input and state, previous state, biases."""
    inputs = tensors_at(signature, 0, 1, 2, 3, 4)
    state = tensor_at(signature, 2)
    biases = tensors_at(signature, 3, 4)
    state_count = state.element_count
    has_cell = gates == 4
    # A GRU saves five values per unit for the backward, an LSTM its four gates.
    written_count = state_count * (1 + has_cell + (4 if has_cell else 5))
    return _gate_work(
        state_count * (flops_per_unit + gates * len(biases)), inputs, bytes_of(written_count, state.dtype), state.dtype
    )


def fused_cell_backward(signature: Signature, *, inputs: tuple[int, ...], state: int, flops: int, written: int) -> Work:
    """Gradients of the gates (a GRU's of input and of state), and of the previous cell or state."""
    x = tensor_at(signature, state)
    made = bytes_of(written * x.element_count, x.dtype)
    return _gate_work(flops * x.element_count, tensors_at(signature, *inputs), made, x.dtype)


def flatten_weight(signature: Signature) -> Work:
    """Copy all weights into one buffer."""
    weights = tensor_list_at(signature, 0)
    size = total_bytes(weights)
    return Work(family=Family.COPY, flops=0, read_bytes=size, written_bytes=size, dtype=weights[0].dtype)


def _layers(
    signature: Signature, weights: tuple[TensorSpec, ...], states: tuple[TensorSpec, ...], direction_count: int
) -> Work:
    """Return 2 FLOP per step and weight element; written: the last layer's output (a cell has none) and the states."""
    x = tensor_at(signature, 0)
    steps = _step_count(x)
    if not states or not states[0].shape:
        raise LackingArgumentError("no recurrent state")
    return Work(
        family=Family.RECURRENT,
        flops=2 * steps * _matrix_elements(weights),
        read_bytes=total_bytes((x, *weights, *states)),
        written_bytes=bytes_of(steps * states[0].shape[-1] * direction_count, x.dtype) + total_bytes(states),
        dtype=x.dtype,
        is_matrix=True,
        dims=_dims(x, weights, states, max(direction_count, 1)),
    )


def _dims(
    x: TensorSpec,
    weights: tuple[TensorSpec, ...],
    states: tuple[TensorSpec, ...],
    direction_count: int,
    direction: Direction = Direction.FORWARD,
) -> RecurrentDims | None:
    """Return the sizes that the weights tell; None where no matrix of the state is among them.

    Steps are the mean over the batch where sequences are packed.
    """
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    if len(matrices) < 2 or not matrices[1].shape[1] or not states:
        return None
    rows, columns = matrices[1].shape
    gates = rows // columns if rows in (columns, 3 * columns, 4 * columns) else _PROJECTED_GATES
    batch = states[0].shape[-2] if len(states[0].shape) > 1 else 1
    per_layer = 3 if gates * columns != rows else 2
    return RecurrentDims(
        gates=gates,
        layers=max(len(matrices) // (per_layer * direction_count), 1),
        directions=direction_count,
        steps=max(round(_step_count(x) / max(batch, 1)), 1),
        batch=batch,
        input_size=x.shape[-1],
        hidden_size=rows // gates,
        direction=direction,
    )


def _output_directions(output: TensorSpec, weights: tuple[TensorSpec, ...]) -> int:
    """Return 2 where the output is twice as wide as the state that the weights take."""
    matrices = [weight for weight in weights if len(weight.shape) == 2]
    if len(matrices) < 2 or not output.shape or not matrices[1].shape[1]:
        return 1
    return max(output.shape[-1] // matrices[1].shape[1], 1)


def _directions(signature: Signature, position: int) -> int:
    return 1 + flag_at(signature, position)


def _step_count(x: TensorSpec) -> int:
    if not x.shape:
        raise LackingArgumentError("a zero-dimensional input")
    return prod(x.shape[:-1])


def _matrix_elements(weights: tuple[TensorSpec, ...]) -> int:
    return sum(weight.element_count for weight in weights if len(weight.shape) == 2)


def _gate_work(flops: int, inputs: tuple[TensorSpec, ...], written_bytes: float, dtype: str) -> Work:
    return build_work(Family.RECURRENT, flops, total_bytes(inputs), written_bytes, dtype)


DEFAULT_BYTES: Final = 2
FLOPS_PER_STATE: Final[Mapping[StateRule, int]] = {
    StateRule.CAUSAL_CONVOLUTION: 2,
    StateRule.GATED_DELTA: 6,
    StateRule.SCALAR_DECAY: 5,
    StateRule.SELECTIVE_SCAN: 7,
}
"""Per token and element of the state. Delta: k S, + k vᵀ, q S (arXiv 2412.06464, equation 10; the decay is one more,
folded into the gates in chunks). Mamba-2: a·h + B xᵀ 3, C h 2 (arXiv 2405.21060, equation 1). Mamba: also the
exponential of dt·A, element by element."""
GATES: Final[Mapping[StateRule, int]] = {
    StateRule.CAUSAL_CONVOLUTION: 0,
    StateRule.GATED_DELTA: 2,
    StateRule.SCALAR_DECAY: 1,
    StateRule.SELECTIVE_SCAN: 1,
}
"""Per token and head: decay and strength of the update, or the time step."""

MATRIX_RULES: Final = (StateRule.GATED_DELTA, StateRule.SCALAR_DECAY)
"""In chunks they are products of matrices."""


def state_space_work(dims: StateSpaceDims, dtype: str) -> Work:
    """Return the work of one layer's state, without projections, norms and the gate of its output.

    Bytes: queries and keys (C and B) per group, values, gates and results once; the state written, in decoding also
    read.

    >>> decode = StateSpaceDims(rule=StateRule.GATED_DELTA, batch=64, steps=1, heads=32, head_dim=128, state_dim=128,
    ...                         groups=16, is_update=True)
    >>> state_space_work(decode, "bfloat16").written_bytes / 1e6
    134.742016
    """
    width = DTYPE_BYTES.get(dtype, DEFAULT_BYTES)
    tokens = dims.batch * dims.steps
    state = dims.heads * dims.head_dim * dims.state_dim
    values = tokens * dims.heads * dims.head_dim * width
    state_bytes = dims.batch * state * dims.state_bytes
    keys = 0 if dims.rule is StateRule.CAUSAL_CONVOLUTION else 2 * tokens * dims.groups * dims.state_dim * width
    gates = tokens * dims.heads * GATES[dims.rule] * width
    return Work(
        family=Family.STATE_SPACE,
        flops=FLOPS_PER_STATE[dims.rule] * tokens * state,
        read_bytes=keys + values + gates + (state_bytes if dims.is_update else 0.0),
        written_bytes=values + state_bytes,
        dtype=dtype,
        is_matrix=dims.rule in MATRIX_RULES and not dims.is_update,
        dims=dims,
    )
