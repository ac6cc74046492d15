"""Operators whose results have shapes that depend on values, or that do what their schema does not say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import copies, fallback, metadata, modes, sdpa
from torch_tpu.lowering import batch_norm, dtypes, search
from torch_tpu.runtime import buffers, platform, programs, transfer

KERNELS: dict[str, Callable[..., Any]] = {}


def special(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the kernel of the named aten overloads."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in KERNELS:
                raise ValueError(f"aten::{name}: a special kernel is registered already")
            KERNELS[name] = fn
        return fn

    return declare


@functools.cache
def derived(name: str) -> Callable[..., Any]:
    """The kernel that a lowering gives for ``"aten::name.overload"``, for a special kernel to build on."""
    from torch_tpu.eager import install

    found = install.kernel_for(name)
    if found is None:
        raise RuntimeError(f"{name}: no lowering serves it")
    return found


@special("equal")
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool(torch.eq(self, other).all())


@special("is_set_to")
def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    return (
        self.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and self.storage_offset() == tensor.storage_offset()
        and self.shape == tensor.shape
        and self.stride() == tensor.stride()
    )


@special("_assert_async", "_assert_async.msg")
def assert_async(
    self: torch.Tensor, assert_msg: str = "Expected Tensor with single nonzero value, but got zero"
) -> None:
    derived("aten::_functional_assert_async.msg")(self, assert_msg, self)


# Strides over the storage ----------------------------------------------------------------------------------------


@special("as_strided_copy")
def as_strided_copy(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """Reads the storage, whatever part of it ``self`` is; the lowering takes an operand to be all of its storage."""
    return copies.contiguous_copy(metadata.as_strided(self, size, stride, storage_offset))


@special("as_strided_scatter")
def as_strided_scatter(
    self: torch.Tensor, src: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> torch.Tensor:
    """A copy of the storage with ``src`` written to the places that the strides name, seen as ``self`` is."""
    if any(n > 1 and step == 0 for n, step in zip(self.shape, self.stride(), strict=True)):
        storage = self = copies.contiguous_copy(self)
    else:
        numel = self.untyped_storage().nbytes() // self.itemsize
        storage = copies.clone(metadata.as_strided(self, (numel,), (1,), 0))
    own = int(self.storage_offset())
    metadata.as_strided(storage, size, stride, own if storage_offset is None else storage_offset).copy_(src)
    return metadata.as_strided(storage, self.shape, self.stride(), own)


def _out_of(name: str) -> Callable[..., Any]:
    """The ``out=`` form of a special kernel that shadows a lowering."""
    packet = getattr(torch.ops.aten, name)
    twin, op = packet.default, packet.out
    return lambda *args, out: fallback.by_twin(op, twin, {**fallback.named(op, args), "out": out})


for _name in ("as_strided_copy", "as_strided_scatter"):
    KERNELS[f"{_name}.out"] = _out_of(_name)


# PyTorch's own kernels of these serve every device by their schema, but only those that they have code for.


@special("conj_physical_")
def conj_physical_(self: torch.Tensor) -> torch.Tensor:
    return self.copy_(torch.ops.aten._conj_physical.default(self)) if self.is_complex() else self


@special("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: torch.dtype | None = None,
    layout: Any = None, device: Any = None, pin_memory: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise RuntimeError(f"kaiser_window expects floating point dtypes, got: {dtype}")
    if window_length < 0:
        raise RuntimeError(f"kaiser_window requires non-negative window_length, got window_length={window_length}")
    if window_length <= 1:
        return torch.ones(window_length, dtype=dtype, device=device)
    last = window_length if periodic else window_length - 1
    place = torch.arange(window_length, dtype=torch.float64, device=device) * (2 / last) - 1
    shape = torch.special.i0(beta * (1 - place * place).clamp(min=0).sqrt())
    return (shape / torch.special.i0(torch.full_like(shape, beta))).to(dtype)


# Attention -----------------------------------------------------------------------------------------------------

KERNELS["scaled_dot_product_attention"] = sdpa.scaled_dot_product_attention
KERNELS["_fused_sdp_choice"] = sdpa.fused_sdp_choice


@special("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """nn.TransformerEncoder asks this before it makes a nested tensor, and hands the mask on if the answer is no."""
    return False


# Batch norm ----------------------------------------------------------------------------------------------------


@special("native_batch_norm")
def native_batch_norm(
    input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """In training it updates the running statistics in place, which its schema does not say."""
    if not training or running_mean is None:
        return derived("aten::native_batch_norm")(
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )  # fmt: skip
    kernel = derived("aten::_native_batch_norm_legit")
    return kernel(input, weight, bias, running_mean, running_var, training, momentum, eps)


@special("_batch_norm_with_update")
def batch_norm_with_update(
    input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    out, mean, invstd = native_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return out, mean, invstd, torch.empty(0, dtype=torch.uint8, device=input.device)


@special("batch_norm_update_stats")
def batch_norm_update_stats(
    input: torch.Tensor, running_mean: torch.Tensor | None, running_var: torch.Tensor | None, momentum: float
) -> Any:
    """Mean and biased variance of the batch; updates the running statistics, which its schema does not say."""
    mean, var = derived("aten::batch_norm_update_stats")(input, running_mean, running_var, momentum)
    count = input.numel() // input.shape[1]
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((var * (count / max(count - 1, 1))).to(running_var.dtype), momentum)
    return mean, var


@special("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, momentum: float, eps: float, counts: torch.Tensor,
) -> Any:  # fmt: skip
    """SyncBatchNorm's: updates the running statistics, which its schema does not say.

    Args:
      mean, invstd: (processes, channels).
      counts: (processes,), elements of a channel.
    """
    kernel = derived("aten::batch_norm_gather_stats_with_counts")
    joint = kernel(input, mean, invstd, running_mean, running_var, momentum, eps, counts)
    if running_mean is not None and running_var is not None:
        running = (running_mean, running_var)
        numbers = torch.tensor([momentum, eps], dtype=torch.float64, device=input.device)
        arrays = [_array(t) for t in (mean, invstd, *running, counts, numbers)]
        device = input.get_device()

        def update(mean: Any, invstd: Any, running_mean: Any, running_var: Any, counts: Any, numbers: Any) -> Any:
            momentum, eps = numbers
            return batch_norm.gathered_running_stats(mean, invstd, running_mean, running_var, momentum, eps, counts)

        new = _program("aten::batch_norm_gather_stats (running)", (), update, *arrays, device=device)
        for t, array in zip(running, new):
            t.copy_(_front(array, t.numel(), t.dtype, device))
    return joint


@special("batch_norm_gather_stats")
def batch_norm_gather_stats(
    input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: Any, running_var: Any, momentum: float,
    eps: float, count: int,
) -> Any:  # fmt: skip
    """The same where every process has as many elements."""
    counts = torch.full((mean.shape[0],), count, dtype=mean.dtype, device=mean.device)
    return batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )  # fmt: skip


# Determinants --------------------------------------------------------------------------------------------------


def _determinant(name: str) -> Callable[..., Any]:
    def kernel(A: torch.Tensor) -> Any:
        # PyTorch's gradient takes the saved factors to be those of the transpose of a contiguous real matrix, and
        # of the matrix itself otherwise. The lowering takes a matrix to be contiguous; the determinant is that of the
        # transpose too.
        if A.is_contiguous() or A.is_complex():
            return derived(name)(A)
        return derived(name)(A.mT.contiguous())

    return kernel


KERNELS["_linalg_det"] = _determinant("aten::_linalg_det")
KERNELS["_linalg_slogdet"] = _determinant("aten::_linalg_slogdet")


# Shapes that depend on values ----------------------------------------------------------------------------------
#
# The count is read from the device first; then a program makes the values for the next power of two, and the result
# is a view of the front of them. So counts share programs: a new one compiles nothing.


def _bucket(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _program(label: str, key: tuple[Any, ...], fn: Callable[..., Any], *arrays: jax.Array, device: int) -> Any:
    place = platform.sharding(device)
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place) for a in arrays]
    shapes = tuple((tuple(a.shape), str(a.dtype)) for a in arrays)
    return programs.cache.get(("special", label, key, shapes, device), label, fn, avals, device=device).call(*arrays)


def _array(t: torch.Tensor) -> jax.Array:
    """The values of a device tensor as an array of its logical shape."""
    buffer, v = copies._view_of(t)
    if v.kind != "identity":
        buffer = binding_tensor.buffer_of(copies.contiguous_copy(t))
    return buffer.force().reshape(tuple(t.shape)) if buffer.layout.shape != tuple(t.shape) else buffer.force()


def _front(array: jax.Array, count: int, dtype: torch.dtype, device: int) -> torch.Tensor:
    """A tensor of the first ``count`` rows of the array; the storage holds the rest too."""
    layout = buffers.layout(tuple(array.shape), np.dtype(array.dtype), device)
    size = (count, *array.shape[1:])
    return binding_tensor.factory(size, buffers.canonical_strides(size), dtype, device).make(
        buffers.Buffer(layout, array)
    )


def _count(mask: jax.Array, device: int) -> int:
    modes.raise_failed()
    fn = lambda m: jnp.sum(m != 0, dtype=jnp.int64)  # noqa: E731
    return int(transfer.to_host(_program("aten::nonzero (count)", (), fn, mask, device=device)))


def _positions(mask: jax.Array, bucket: int) -> Any:
    """Flat positions of the first ``bucket`` true elements, in order, padded with zeros."""
    return jnp.nonzero(jnp.ravel(mask) != 0, size=bucket, fill_value=0)[0].astype(jnp.int64)


def padded_nonzero(t: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(int64 [bucket, t.ndim]: positions of true elements, zeros behind them; how many there are)."""
    device, array, ndim = t.get_device(), _array(t), t.ndim
    count = _count(array, device)
    bucket = _bucket(count)

    def body(mask: Any) -> Any:
        found = jnp.unravel_index(_positions(mask, bucket), mask.shape) if ndim else ()
        return jnp.stack([f.astype(jnp.int64) for f in found], 1) if ndim else jnp.zeros((bucket, 0), jnp.int64)

    if t.numel() == 0 or count == 0:
        return torch.empty((0, ndim), dtype=torch.int64, device=t.device), 0
    made = _program("aten::nonzero", (bucket,), body, array, device=device)
    return _front(made, bucket, torch.int64, device), count


def _narrowed(t: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` rows of a contiguous tensor, over its storage."""
    if t.shape[0] == count:
        return t
    return binding_tensor.view(t, (count, *t.shape[1:]), t.stride(), 0)


@special("nonzero")
def nonzero(self: torch.Tensor) -> torch.Tensor:
    found, count = padded_nonzero(self)
    # PyTorch's result lies column by column.
    return torch.ops.aten.clone.default(_narrowed(found, count).t(), memory_format=torch.contiguous_format).t()


@special("masked_select")
def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    if mask.device != self.device:
        raise RuntimeError(f"masked_select: expected self and mask on one device, got {self.device} and {mask.device}")
    self, mask = torch.broadcast_tensors(self, mask)
    device, values, where = self.get_device(), _array(self), _array(mask)
    count = _count(where, device) if self.numel() else 0
    if count == 0:
        return torch.empty((0,), dtype=self.dtype, device=self.device)
    bucket = _bucket(count)

    def body(x: Any, m: Any) -> Any:
        return jnp.take(jnp.ravel(x), _positions(m, bucket), mode="clip")

    made = _program("aten::masked_select", (bucket,), body, values, where, device=device)
    return _front(made, count, self.dtype, device)


@special("repeat_interleave.Tensor")
def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"repeat_interleave: repeats has to be Long or Int tensor, got {repeats.dtype}")
    if output_size is not None:
        return derived("aten::repeat_interleave.Tensor")(repeats, output_size=output_size)
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    device, array = repeats.get_device(), _array(repeats)
    modes.raise_failed()
    totals = lambda r: jnp.stack([jnp.sum(r, dtype=jnp.int64), jnp.min(r).astype(jnp.int64)])  # noqa: E731
    found = transfer.to_host(_program("aten::repeat_interleave (count)", (), totals, array, device=device))
    count, least = (int(n) for n in found)
    if least < 0:
        raise RuntimeError("repeats can not be negative")
    if count == 0:
        return torch.empty((0,), dtype=repeats.dtype, device=repeats.device)
    bucket = _bucket(count)

    def body(r: Any) -> Any:
        return search.repeated_positions(jnp.cumsum(r, dtype=jnp.int64), bucket).astype(r.dtype)

    made = _program("aten::repeat_interleave", (bucket,), body, array, device=device)
    return _front(made, count, repeats.dtype, device)


@special("_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None) -> Any:
    if total_L is None and len(offsets) == 1:
        total_L = int(offsets[0][-1])
    return derived("aten::_padded_dense_to_jagged_forward")(dense, offsets, total_L)


@special("bincount")
def bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if self.ndim != 1 or self.dtype.is_floating_point or self.dtype in (torch.bool, torch.complex64):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    device = self.get_device()
    if self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    low, high = (int(x) for x in torch.stack(torch.aminmax(self)).tolist())
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    count = max(high + 1, minlength)
    bucket = _bucket(count)

    def body(x: Any, *w: Any) -> Any:
        amount = w[0].astype(dtypes.to_jax(dtype)) if w else 1
        return jnp.zeros(bucket, dtypes.to_jax(dtype)).at[x].add(amount, mode="promise_in_bounds")

    arrays = [_array(self)] if weights is None else [_array(self), _array(weights)]
    return _front(_program("aten::bincount", (bucket,), body, *arrays, device=device), count, dtype, device)


# Indexing ------------------------------------------------------------------------------------------------------

_MASKS = (torch.bool, torch.uint8)
_INDEX_TYPES = (torch.int64, torch.int32, torch.bool, torch.uint8)


def _on_device(self: torch.Tensor, indices: Sequence[Any]) -> list[torch.Tensor | None]:
    """Indices may be on the host, as for CUDA."""
    if self.device.type != "tpu":
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({self.device})"
        )
    for i in indices:
        if i is not None and i.dtype not in _INDEX_TYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    return [i if i is None or i.device == self.device else i.to(self.device) for i in indices]


class _worded:
    """Indices that do not broadcast are an IndexError in the words of CPU and CUDA, not in the meta kernel's."""

    __slots__ = ("indices",)

    def __init__(self, indices: Sequence[torch.Tensor | None]):
        self.indices = indices

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None or not issubclass(kind, RuntimeError):
            return
        shapes = [tuple(i.shape) for i in self.indices if i is not None]
        try:
            torch.broadcast_shapes(*shapes)
        except RuntimeError:
            raise IndexError(
                "shape mismatch: indexing tensors could not be broadcast together with shapes "
                + ", ".join(str(list(s)) for s in shapes)
            ) from error


def _expanded(self: torch.Tensor, indices: Sequence[Any]) -> tuple[list[torch.Tensor | None], int | None]:
    """Masks among the indices as positions: (indices, how many rows count if they are padded).

    Only a single mask is padded, since positions of one would have to broadcast with the others.
    """
    out: list[torch.Tensor | None] = []
    masks = [i for i in indices if i is not None and i.dtype in _MASKS]
    others = [i for i in indices if i is not None and i.dtype not in _MASKS]
    count = None
    for i in indices:
        if i is None or i.dtype not in _MASKS:
            out.append(i)
            continue
        at = len(out)
        for k, n in enumerate(i.shape):
            if at + k >= self.ndim or self.shape[at + k] != n:
                raise IndexError(
                    f"The shape of the mask {list(i.shape)} at index {k} does not match the shape of the indexed "
                    f"tensor {list(self.shape)} at index {at + k}"
                )
        found, total = padded_nonzero(i)
        if len(masks) == 1 and not others and at == 0:
            count = total
        else:
            found = _narrowed(found, total)
        out.extend(found.unbind(1) if i.ndim else [found.new_zeros(found.shape[0])])
    return out, count


@special("index.Tensor", "_unsafe_index.Tensor")
def index(self: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
    indices = _on_device(self, indices)
    kernel = derived("aten::index.Tensor")
    if not any(i is not None and i.dtype in _MASKS for i in indices):
        with _worded(indices):
            return kernel(self, indices)
    if self.ndim == 0:
        return masked_select(self, indices[0]) if indices[0] is not None else self.clone()
    expanded, count = _expanded(self, indices)
    with _worded(expanded):
        result = kernel(self, expanded)
    return result if count is None else _narrowed(result.contiguous(), count)


def _index_put(self: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool) -> torch.Tensor:
    indices = _on_device(self, indices)
    only = [i for i in indices if i is not None]
    if values.device != self.device and values.ndim == 0:
        values = values.to(self.device)
    if len(only) == 1 and indices[0] is not None and only[0].dtype in _MASKS and not accumulate:
        mask = only[0]
        fits = mask.shape == self.shape[: mask.ndim]
        if fits and values.numel() == 1:
            mask = mask.to(torch.bool).reshape(*mask.shape, *[1] * (self.ndim - mask.ndim))
            return torch.ops.aten.masked_fill_.Tensor(self, mask, values.reshape(()).to(self.dtype))
    expanded = list(indices)
    if any(i.dtype in _MASKS for i in only):
        if self.ndim == 0:
            return self.copy_(torch.where(only[0] != 0, values.reshape(()), self))
        expanded, count = _expanded(self, indices)
        if count is not None:
            expanded = [None if i is None else _narrowed(i.contiguous(), count) for i in expanded]
    with _worded(expanded):
        derived("aten::index_put_")(self, expanded, values, accumulate)
    return self


@special("index_put_")
def index_put_(self: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False) -> Any:
    return _index_put(self, indices, values, accumulate)


@special("_index_put_impl_")
def index_put_impl_(
    self: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> Any:
    return _index_put(self, indices, values, accumulate)


@special("index_put", "_unsafe_index_put")
def index_put(self: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False) -> Any:
    return _index_put(copies.clone(self), indices, values, accumulate)


# Random numbers ------------------------------------------------------------------------------------------------


@special("uniform_")
def uniform_(self: torch.Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    """Both parts of a complex tensor are drawn; PyTorch's meta kernel of the functional operator refuses them."""
    drawn = torch.view_as_real(self) if self.is_complex() else self
    derived("aten::uniform_")(drawn, from_, to, generator=generator)
    return self
