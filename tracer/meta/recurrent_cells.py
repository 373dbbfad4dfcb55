"""Keeps the gates of recurrent cells in one op, as CUDA has them; the meta device would run them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
