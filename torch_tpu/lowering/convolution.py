"""Convolution in one to three dimensions, transposed or not, and its gradients.

Everything is one of three maps, each the adjoint of another: ``_forward`` (input and kernel to output),
``_to_input`` (output and kernel to input, which is also the transposed convolution) and ``_to_kernel`` (input and
output to kernel). Groups are always XLA's feature groups: batch groups, which JAX's own gradient uses for the
kernel, take a hundred times longer on XLA:CPU.

PyTorch's composites end in ``convolution_overrideable`` on this device; registered directly, ``convolution`` and
``convolution_backward`` save the way there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.matmul import accumulator, contract, precision
from torch_tpu.lowering.registry import register


class _Geometry(NamedTuple):
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _correlate(
    x: Any,
    kernel: Any,
    groups: int,
    *,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
    input_dilation: Sequence[int] | None = None,
) -> Any:
    """XLA's convolution, channels second, in the accumulator's type."""
    if x.dtype == jnp.int64:
        ones = (1,) * len(stride)
        return _correlate_int64(x, kernel, groups, stride, padding, dilation or ones, input_dilation or ones)
    axes = "DHW"[3 - len(stride) :]
    return lax.conv_general_dilated(
        x, kernel, stride, padding, lhs_dilation=input_dilation, rhs_dilation=dilation,
        dimension_numbers=("NC" + axes, "OI" + axes, "NC" + axes), feature_group_count=groups,
        precision=precision(x.dtype), preferred_element_type=accumulator(x.dtype),
    )  # fmt: skip


def _correlate_int64(
    x: Any,
    kernel: Any,
    groups: int,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    input_dilation: Sequence[int],
) -> Any:
    """A matrix product for each place of the window: XLA:TPU has no convolution of 64-bit integers."""
    x = lax.pad(x, jnp.int64(0), [(0, 0, 0)] * 2 + [(*p, d - 1) for p, d in zip(padding, input_dilation, strict=True)])
    window = kernel.shape[2:]
    size = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], window, dilation, stride, strict=True)]
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    kernel = kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])
    total: Any = 0
    for place in itertools.product(*map(range, window)):
        seen = [
            slice(i * d, i * d + (m - 1) * s + 1, s) for i, d, m, s in zip(place, dilation, size, stride, strict=True)
        ]
        total = total + contract(kernel[(..., *place)], x[(..., *seen)], (2,), (2,), (0,), (1,))
    # (groups, outputs of a group, batch, *size)
    return jnp.moveaxis(total.reshape(-1, *total.shape[2:]), 1, 0)


def _forward(x: Any, kernel: Any, g: _Geometry) -> Any:
    padding = [(p, p) for p in g.padding]
    if x.size == 0 or kernel.size == 0:
        size = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(x.shape[2:], kernel.shape[2:], g.stride, g.padding, g.dilation, strict=True)
        ]
        return jnp.zeros((x.shape[0], kernel.shape[0], *size), accumulator(x.dtype))
    return _correlate(x, kernel, g.groups, stride=g.stride, padding=padding, dilation=g.dilation)


def _to_input(y: Any, kernel: Any, size: Sequence[int], g: _Geometry) -> Any:
    """The adjoint of ``_forward`` in its input, whose spatial sizes are ``size``."""
    outputs, inputs = kernel.shape[0] // g.groups, kernel.shape[1]
    if y.size == 0 or kernel.size == 0:
        return jnp.zeros((y.shape[0], g.groups * inputs, *size), accumulator(y.dtype))
    window = kernel.shape[2:]
    kernel = jnp.flip(kernel, range(2, kernel.ndim)).reshape(g.groups, outputs, inputs, *window)
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(g.groups * inputs, outputs, *window)
    padding = []
    for n, m, k, s, p, d in zip(size, y.shape[2:], window, g.stride, g.padding, g.dilation, strict=True):
        low = d * (k - 1) - p
        padding.append((low, n - (m - 1) * s - 1 - low + d * (k - 1)))
    ones = (1,) * len(window)
    return _correlate(y, kernel, g.groups, stride=ones, padding=padding, dilation=g.dilation, input_dilation=g.stride)


def _to_kernel(x: Any, y: Any, window: Sequence[int], g: _Geometry) -> Any:
    """The adjoint of ``_forward`` in its kernel, whose spatial sizes are ``window``."""
    batch, inputs, outputs = x.shape[0], x.shape[1] // g.groups, y.shape[1]
    if x.size == 0 or y.size == 0:
        return jnp.zeros((outputs, inputs, *window), accumulator(x.dtype))
    # The batch is what is summed over: features of each group; the group's input channels become the batch.
    x = jnp.moveaxis(x.reshape(batch, g.groups, inputs, *x.shape[2:]), (2, 1), (0, 1))
    x = x.reshape(inputs, g.groups * batch, *x.shape[3:])
    padding = [
        (p, (k - 1) * d + (m - 1) * s + 1 - n - p)
        for n, m, k, s, p, d in zip(x.shape[2:], y.shape[2:], window, g.stride, g.padding, g.dilation, strict=True)
    ]
    y = jnp.swapaxes(y, 0, 1)
    kernel = _correlate(x, y, g.groups, stride=g.dilation, padding=padding, dilation=g.stride)
    return jnp.swapaxes(kernel, 0, 1)


def _geometry(x: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> _Geometry:
    dims = x.ndim - 2
    if dims not in (1, 2, 3):
        raise NotImplementedError(f"convolution: an input of {x.ndim} dimensions; supported: 3 to 5")
    if x.dtype == jnp.bool_:
        raise NotImplementedError("convolution: bool input; supported: integer, floating and complex types")

    def each(value: Sequence[int]) -> tuple[int, ...]:
        return tuple(value) * dims if len(value) == 1 else tuple(value)

    return _Geometry(each(stride), each(padding), each(dilation), groups)


@register("aten::convolution", "aten::convolution_overrideable", precision=True, format_of=["input", "weight"])
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if any(p < 0 for p in padding):
        raise RuntimeError("negative padding is not supported")
    g = _geometry(input, stride, padding, dilation, groups)
    if transposed:
        extra = tuple(output_padding) * (len(g.stride) // len(output_padding))
        size = [
            (m - 1) * s - 2 * p + d * (k - 1) + e + 1
            for m, k, s, p, d, e in zip(
                input.shape[2:], weight.shape[2:], g.stride, g.padding, g.dilation, extra, strict=True
            )
        ]
        y = _to_input(input, weight, size, g)
    else:
        y = _forward(input, weight, g)
    return y if bias is None else y + bias.astype(y.dtype).reshape(1, -1, *[1] * (y.ndim - 2))


@register("aten::_convolution", precision=True, format_of=["input", "weight"])
def convolution_with_flags(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    cudnn_enabled: bool,
    allow_tf32: bool,
) -> Any:
    return convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@register("aten::convolution_backward_overrideable", precision=True, format_of=["input", "weight"])
def convolution_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    g = _geometry(input, stride, padding, dilation, groups)
    grad_input = grad_weight = grad_bias = None
    if jnp.issubdtype(input.dtype, jnp.complexfloating):
        input, weight = jnp.conj(input), jnp.conj(weight)
    if output_mask[0]:
        if transposed:
            # Output padding may be wider than the stride: the windows behind the last element are nobody's.
            grad_input = _forward(grad_output, weight, g)
            grad_input = grad_input[(..., *(slice(n) for n in input.shape[2:]))]
        else:
            grad_input = _to_input(grad_output, weight, input.shape[2:], g)
    if output_mask[1]:
        pair = (grad_output, input) if transposed else (input, grad_output)
        grad_weight = _to_kernel(*pair, weight.shape[2:], g)
    if output_mask[2]:
        axes = (0, *range(2, grad_output.ndim))
        grad_bias = jnp.sum(grad_output, axis=axes, dtype=accumulator(grad_output.dtype))
    return grad_input, grad_weight, grad_bias


@register("aten::convolution_backward", precision=True, format_of=["input", "weight"])
def convolution_backward_with_bias_sizes(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    return convolution_backward(
        grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


@register("aten::conv_tbc", precision=True)
def conv_tbc(self: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """(time, batch, channels) by (window, input channels, output channels)."""
    y = _forward(jnp.transpose(self, (1, 2, 0)), jnp.transpose(weight, (2, 1, 0)), _Geometry((1,), (pad,), (1,), 1))
    return jnp.transpose(y, (2, 0, 1)) + bias.astype(y.dtype)
