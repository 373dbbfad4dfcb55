"""Sizes that convolutions and recurrent layers hand to their models."""

from __future__ import annotations

from typing import Any

import pytest
from wavecast.analyzer.work import work_of
from wavecast.analyzer.work.work import ConvolutionDims, Direction, RecurrentDims
from wavecast.formats.trace.signature import UNKNOWN, Argument, Signature, TensorSpec


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape, None)


def dims_of(name: str, *arguments: Argument) -> Any:
    work = work_of(f"aten::{name}", Signature(arguments, ()))
    assert work is not None
    return work.dims


def strided_gradients(*mask: bool) -> tuple[Argument, ...]:
    sizes = (tensor(2, 6, 4, 4), tensor(2, 4, 8, 8), tensor(6, 2, 3, 3))
    return (*sizes, (6,), (2, 2), (1, 1), (1, 1), False, (0, 0), 2, mask)


PLAIN = ConvolutionDims(
    batch=2, c_in=4, c_out=6, groups=2, input_size=(8, 8), output_size=(4, 4), kernel_size=(3, 3), stride=(2, 2)
)
GRADIENTS: dict[tuple[bool, ...], Direction] = {
    (True, True, False): Direction.BOTH_GRADIENTS,
    (True, False, True): Direction.INPUT_GRADIENT,
    (False, True, True): Direction.WEIGHT_GRADIENT,
}


def test_forward() -> None:
    arguments = (tensor(2, 4, 8, 8), tensor(6, 2, 3, 3), None, (2, 2), (1, 1), (1, 1), False, (0, 0), 2)
    assert dims_of("convolution", *arguments) == PLAIN


@pytest.mark.parametrize("mask", GRADIENTS)
def test_gradients(mask: tuple[bool, ...]) -> None:
    dims = dims_of("convolution_backward", *strided_gradients(*mask))
    assert dims.direction is GRADIENTS[mask]
    assert (dims.c_in, dims.c_out, dims.groups, dims.stride) == (4, 6, 2, (2, 2))


def test_a_bias_gradient_alone_is_no_convolution() -> None:
    assert dims_of("convolution_backward", *strided_gradients(False, False, True)) is None


def test_an_unrecorded_stride_follows_from_the_sizes() -> None:
    sizes = (tensor(2, 6, 4, 4), tensor(2, 4, 8, 8), tensor(6, 2, 3, 3), (6,), UNKNOWN)
    dims = dims_of("convolution_backward", *sizes, (1, 1), (1, 1), False, (0, 0), 2, (True, True, False))
    assert dims.stride == (2, 2)


def test_dilation() -> None:
    arguments = (tensor(2, 4, 8, 8), tensor(6, 2, 3, 3), None, (1, 1), (2, 2), (2, 2), False, (0, 0), 2)
    assert dims_of("convolution", *arguments).dilation == (2, 2)
    sizes = (tensor(2, 6, 8, 8), tensor(2, 4, 8, 8), tensor(6, 2, 3, 3))
    backward = (*sizes, (6,), (1, 1), (2, 2), (2, 2), False, (0, 0), 2, (True, True, False))
    assert dims_of("convolution_backward", *backward).dilation == (2, 2)


@pytest.mark.parametrize(
    ("x", "weight", "is_last", "copied"),
    [
        ((256, 64, 8, 1), (18, 9, 3, 1), False, 0),
        ((256, 1, 32, 4), (18, 9, 3, 1), True, 6 * 2 * 3 * 3),
        ((256, 64, 8, 1), (18, 1, 6, 2), True, 2 * 4 * 8 * 8),
        ((256, 1, 32, 4), (18, 1, 6, 2), True, 0),
        ((256, 1, 32, 4), None, True, 0),
        (None, None, False, 0),
    ],
)
def test_channels_last_in_either_operand(
    x: tuple[int, ...] | None, weight: tuple[int, ...] | None, *, is_last: bool, copied: int
) -> None:
    operands = (TensorSpec("float16", (2, 4, 8, 8), x), TensorSpec("float16", (6, 2, 3, 3), weight))
    arguments = (*operands, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 2)
    dims = dims_of("convolution", *arguments)
    assert (dims.is_channels_last, dims.copied_elements) == (is_last, copied)


def test_a_fused_addition_reads_one_more_tensor() -> None:
    arguments = (tensor(2, 4, 8, 8), tensor(6, 4, 3, 3), tensor(2, 6, 8, 8), 1.0, None, (1, 1), (1, 1), (1, 1), 1)
    assert dims_of("cudnn_convolution_add_relu", *arguments).added_tensors == 1
    plain = (tensor(2, 4, 8, 8), tensor(6, 4, 3, 3), None, (1, 1), (1, 1), (1, 1), 1)
    assert dims_of("cudnn_convolution_relu", *plain).added_tensors == 0


def test_transposed() -> None:
    arguments = (tensor(2, 6, 4), tensor(6, 2, 3), None, (2,), (1,), (1,), True, (1,), 2)
    dims = dims_of("convolution", *arguments)
    assert (dims.c_in, dims.c_out, dims.groups, dims.output_size) == (6, 4, 2, (8,))
    assert dims.is_transposed


def test_depthwise_has_a_group_per_channel() -> None:
    dims = dims_of("_conv_depthwise2d", tensor(2, 8, 5, 5), tensor(8, 1, 3, 3), (3, 3), None, (1, 1), (1, 1), (1, 1))
    assert dims.groups == 8


def lstm_weights(layers: int, directions: int, gates: int = 4) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    for layer in range(layers):
        width = 10 if layer == 0 else 20 * directions
        for _ in range(directions):
            found += [tensor(gates * 20, width), tensor(gates * 20, 20), tensor(gates * 20), tensor(gates * 20)]
    return tuple(found)


@pytest.mark.parametrize(("gates", "name"), [(4, "lstm"), (3, "gru")])
def test_recurrent_layers(gates: int, name: str) -> None:
    states: Argument = (tensor(4, 3, 20), tensor(4, 3, 20)) if gates == 4 else tensor(4, 3, 20)
    dims = dims_of(name, tensor(7, 3, 10), states, lstm_weights(2, 2, gates), True, 2, 0.0, True, True, False)
    assert dims == RecurrentDims(gates=gates, layers=2, directions=2, steps=7, batch=3, input_size=10, hidden_size=20)


def test_a_cell_is_one_step() -> None:
    dims = dims_of("gru_cell", tensor(3, 10), tensor(3, 20), *lstm_weights(1, 1, 3))
    assert (dims.gates, dims.layers, dims.steps, dims.batch) == (3, 1, 1, 3)


def test_recurrent_gradients() -> None:
    head = (tensor(7, 3, 10), lstm_weights(2, 1), 4, tensor(100), tensor(2, 3, 20), tensor(2, 3, 20))
    output = tensor(7, 3, 20)
    tail = (2, 20, 0, 2, False, 0.0, True, False, (), None, tensor(100), (True, True, True, True))
    dims = dims_of("_cudnn_rnn_backward", *head, output, output, None, None, *tail)
    assert (dims.layers, dims.directions, dims.steps) == (2, 1, 7)
    assert dims.direction is Direction.BOTH_GRADIENTS
