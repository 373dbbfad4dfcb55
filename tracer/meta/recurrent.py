"""Keeps recurrent layers and cells whole, as CUDA runs them; the meta device would unroll them step by step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...records import dataclass

# cuDNN's numbers of the recurrent kinds (cudnnRNNMode_t).
_RELU, _TANH, _LSTM, _GRU = 0, 1, 2, 3
_FLAG_COUNT = 4
"""Of an op on sequences that are not packed: dropout, train, bidirectional, batch_first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Describe recurrent layers as cuDNN takes them."""

    mode: int
    weights_per_layer: int
    hidden_size: int
    projection_size: int
    """0: none."""
    count: int


def run_lstm(
    data: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, *flags: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM as one cuDNN op (schema of aten::lstm.input; flags: dropout, train, bidirectional, batch_first)."""
    hidden, cell = hx
    projection_size = hidden.shape[2] if hidden.shape[2] != cell.shape[2] else 0
    layers = _Layers(
        mode=_LSTM,
        weights_per_layer=(4 if has_biases else 2) + (1 if projection_size else 0),
        hidden_size=cell.shape[2],
        projection_size=projection_size,
        count=num_layers,
    )
    return _run_cudnn(data, params, hidden, cell, layers, flags)


def _layer_without_cell(mode: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        data: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, *flags: Any
    ) -> tuple[Tensor, Tensor]:
        """Run a recurrent layer without cell state as one cuDNN op (schema of aten::gru.input)."""
        layers = _Layers(
            mode=mode,
            weights_per_layer=4 if has_biases else 2,
            hidden_size=hx.shape[2],
            projection_size=0,
            count=num_layers,
        )
        return _run_cudnn(data, params, hx, None, layers, flags)[:2]

    return run


def _packed(run: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    def run_packed(data: Tensor, batch_sizes: Tensor, hx: Any, *rest: Any) -> tuple[Tensor, ...]:
        """Run layers over a packed sequence as one cuDNN op (schema of aten::gru.data; batch sizes are on the host)."""
        return run(data, hx, *rest, False, batch_sizes.tolist())

    return run_packed


run_gru = _layer_without_cell(_GRU)
run_rnn_tanh = _layer_without_cell(_TANH)
run_rnn_relu = _layer_without_cell(_RELU)
run_packed_lstm, run_packed_gru = _packed(run_lstm), _packed(run_gru)
run_packed_rnn_tanh, run_packed_rnn_relu = _packed(run_rnn_tanh), _packed(run_rnn_relu)


def shape_cudnn_rnn_backward(
    data: Tensor, weight: Sequence[Tensor], _stride: int, _buffer: Tensor, hx: Tensor, cx: Tensor | None, *_rest: Any
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Return the shapes of aten::_cudnn_rnn_backward, which torch has no meta kernel for."""
    weight_gradients = [torch.empty_like(item) for item in weight]
    return torch.empty_like(data), torch.empty_like(hx), None if cx is None else torch.empty_like(cx), weight_gradients


def _run_cudnn(
    data: Tensor, params: Sequence[Tensor], hx: Tensor, cx: Tensor | None, layers: _Layers, flags: Sequence[Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run layers; flags: dropout, train, bidirectional, batch_first, batch sizes (none: not packed)."""
    dropout, train, bidirectional, batch_first, batch_sizes = flags if len(flags) > _FLAG_COUNT else (*flags, [])
    # On CUDA, nn.LSTM keeps its weights in one flat buffer; the op takes it beside the list of views.
    buffer = params[0].new_empty(sum(item.numel() for item in params))
    output, hidden, cell, _, _ = torch.ops.aten._cudnn_rnn(
        data, params, layers.weights_per_layer, buffer, hx, cx, layers.mode, layers.hidden_size,
        layers.projection_size, layers.count, batch_first, dropout, train, bidirectional, batch_sizes, None,
    )  # fmt: skip
    return output, hidden, cell


_GRU_SAVED = 5
"""What a GRU's fused kernel keeps for its gradients, for each unit of the state; an LSTM's keeps its four gates."""


def run_gru_cell(
    data: Tensor,
    hidden: Tensor,
    input_weight: Tensor,
    hidden_weight: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Tensor:
    """Run a GRU's cell as two products and one op on the gates (schema of aten::gru_cell)."""
    gates = data.matmul(input_weight.t()), hidden.matmul(hidden_weight.t())
    output: Tensor = torch.ops.aten._thnn_fused_gru_cell(*gates, hidden, input_bias, hidden_bias)[0]
    return output


def run_lstm_cell(
    data: Tensor,
    states: Sequence[Tensor],
    input_weight: Tensor,
    hidden_weight: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run an LSTM's cell as two products and one op on the gates (schema of aten::lstm_cell)."""
    hidden, cell = states
    gates = data.matmul(input_weight.t()), hidden.matmul(hidden_weight.t())
    output, memory, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, cell, input_bias, hidden_bias)
    return output, memory


def shape_gru_cell(_gates: Tensor, _hidden_gates: Tensor, hidden: Tensor, *_biases: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shapes of aten::_thnn_fused_gru_cell: the state, and what its gradients need."""
    return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], _GRU_SAVED * hidden.shape[1])


def shape_gru_cell_backward(
    gradient: Tensor, _saved: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the shapes of aten::_thnn_fused_gru_cell_backward: of the gates, the state and the biases."""
    rows, columns = gradient.shape
    gates, hidden_gates = (gradient.new_empty(rows, 3 * columns) for _ in range(2))
    biases = [gradient.new_empty(3 * columns) if has_bias else None for _ in range(2)]
    return gates, hidden_gates, torch.empty_like(gradient), biases[0], biases[1]


def shape_lstm_cell(
    gates: Tensor, _hidden_gates: Tensor, cell: Tensor, *_biases: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the shapes of aten::_thnn_fused_lstm_cell: both states, and the gates."""
    return torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(gates)


def shape_lstm_cell_backward(
    _hidden_gradient: Tensor | None,
    _cell_gradient: Tensor | None,
    cell: Tensor,
    _new_cell: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the shapes of aten::_thnn_fused_lstm_cell_backward_impl: of the gates, the cell's state and the biases."""
    return torch.empty_like(gates), torch.empty_like(cell), gates.new_empty(gates.shape[1]) if has_bias else None
