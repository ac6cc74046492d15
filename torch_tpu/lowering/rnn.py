"""Fused cells of LSTM and GRU, and their gradients.

``lstm``, ``gru`` and the cell modules are composites that call these on a PrivateUse1 device, once a time step; the
plain RNN cells are built from ordinary operators. ``_thnn_fused_lstm_cell_backward`` is a composite over ``_impl``.
PyTorch has no meta kernel for the GRU cell (hy is like hx, and the workspace (batch, 5 * hidden)), and the LSTM cell's
fails without biases: both check their operands here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_tpu.lowering.norm import common_type
from torch_tpu.lowering.registry import register


def _sigmoid_slope(y: Any) -> Any:
    return y * (1 - y)


def _tanh_slope(y: Any) -> Any:
    return 1 - y * y


def _check_cell(op: str, parts: int, input_gates: Any, hidden_gates: Any, state: Any, *biases: Any) -> None:
    """Raise as ATen's kernels do, unless the operands of a cell with ``parts`` gates fit together."""
    shape = input_gates.shape
    fit = len(shape) == 2 and hidden_gates.shape == shape and state.shape == (shape[0], shape[1] // parts)
    torch._check(
        fit,
        lambda: (
            f"{op}: expected gates of shape (batch, {parts} * hidden) and a state of shape (batch, hidden), "
            f"got {shape}, {hidden_gates.shape} and {state.shape}"
        ),
    )
    torch._check(
        all(b is None or b.shape == shape[1:] for b in biases),
        lambda: f"{op}: expected biases of shape ({shape[1]},), got {[b if b is None else b.shape for b in biases]}",
    )


@register("aten::_thnn_fused_lstm_cell", own_shapes=True)
def lstm_cell(
    input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> Any:  # fmt: skip
    """New hidden and cell state, and the gates after their activations (input, forget, cell, output)."""
    _check_cell("_thnn_fused_lstm_cell", 4, input_gates, hidden_gates, cx, input_bias, hidden_bias)
    like = cx.dtype
    gates, hidden, cx, *biases = common_type(input_gates, hidden_gates, cx, input_bias, hidden_bias)
    for term in (hidden, *biases):
        gates = gates if term is None else gates + term
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    hy = o * jnp.tanh(cy)
    return hy.astype(like), cy.astype(like), jnp.concatenate([i, f, g, o], axis=1).astype(input_gates.dtype)


@register("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    """Gradients of the gates, of the cell state, and of the bias (None without one)."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    like = workspace.dtype
    grad_hy, grad_cy, cx, cy, gates = common_type(grad_hy, grad_cy, cx, cy, workspace)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    squashed = jnp.tanh(cy)
    grad_o = jnp.zeros_like(o) if grad_hy is None else grad_hy * squashed * _sigmoid_slope(o)
    grad_cell = jnp.zeros_like(cx) if grad_cy is None else grad_cy
    if grad_hy is not None:
        grad_cell = grad_cell + grad_hy * o * _tanh_slope(squashed)
    grad_i, grad_f = grad_cell * g * _sigmoid_slope(i), grad_cell * cx * _sigmoid_slope(f)
    grad_gates = jnp.concatenate([grad_i, grad_f, grad_cell * i * _tanh_slope(g), grad_o], axis=1)
    grad_bias = jnp.sum(grad_gates, axis=0).astype(like) if has_bias else None
    return grad_gates.astype(like), (grad_cell * f).astype(like), grad_bias


@register("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> Any:  # fmt: skip
    """New hidden state, and (reset, update, new, hx, hidden part of new) for the gradient."""
    _check_cell("_thnn_fused_gru_cell", 3, input_gates, hidden_gates, hx, input_bias, hidden_bias)
    like = hx.dtype
    gates, hidden, hx, bias, hidden_bias = common_type(input_gates, hidden_gates, hx, input_bias, hidden_bias)
    gates = gates if bias is None else gates + bias
    hidden = hidden if hidden_bias is None else hidden + hidden_bias
    (r, z, n), (hr, hz, hn) = jnp.split(gates, 3, axis=1), jnp.split(hidden, 3, axis=1)
    r, z = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
    n = jnp.tanh(n + r * hn)
    hy = n + z * (hx - n)
    return hy.astype(like), jnp.concatenate([r, z, n, hx, hn], axis=1).astype(like)


@register("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> Any:
    """Gradients of input gates, hidden gates, hx, and of both biases (None without them)."""
    like = workspace.dtype
    grad, saved = common_type(grad_hy, workspace)
    r, z, n, hx, hn = jnp.split(saved, 5, axis=1)
    grad_n = grad * (1 - z) * _tanh_slope(n)
    grad_r, grad_z = grad_n * hn * _sigmoid_slope(r), grad * (hx - n) * _sigmoid_slope(z)
    grad_input = jnp.concatenate([grad_r, grad_z, grad_n], axis=1)
    grad_hidden = jnp.concatenate([grad_r, grad_z, grad_n * r], axis=1)
    biases = [jnp.sum(g, axis=0).astype(like) if has_bias else None for g in (grad_input, grad_hidden)]
    return grad_input.astype(like), grad_hidden.astype(like), (grad * z).astype(like), *biases
