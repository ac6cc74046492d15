"""What an operator needs before it sees padded values.

===============  ========================================================================================
pointwise        nothing: what does not count stays where it is
``MOVES``        nothing: views that take the front of a dimension to the front of a dimension
``NEUTRAL``      reductions: the value that changes nothing takes the place of what does not count
``ZEROS``        products, and sums over padded dimensions: zero does
``BATCHED``      nothing, if the dimensions that it works along are not padded
``_RULES``       operators with a rule of their own
===============  ========================================================================================

An operator that is in none of them raises ``Unpaddable``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.fx import Node

from torch_tpu.compile.evaluate import Context, call_operator, concrete, flat
from torch_tpu.compile.padded import Length, Lengths, Padded, Unpaddable, has_padding
from torch_tpu.eager.spec import Kind, overload_name, spec_for
from torch_tpu.lowering import checks, dtypes

Bound = dict[str, Any]
Rule = Callable[[Any, Bound, Node, Context, Lengths], Any]

_LOWEST, _HIGHEST = "lowest", "highest"
NEUTRAL: dict[str, Any] = {
    "sum": 0, "nansum": 0, "prod": 1, "any": False, "all": True, "amax": _LOWEST, "amin": _HIGHEST, "argmax": _LOWEST,
    "argmin": _HIGHEST, "max": _LOWEST, "min": _HIGHEST, "logsumexp": _LOWEST, "_softmax": _LOWEST,
    "_log_softmax": _LOWEST, "cumsum": 0, "cumprod": 1,
}  # fmt: skip
MOVES = {
    "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "alias", "detach", "clone", "_to_copy",
    "lift_fresh_copy", "view_as_real", "view_as_complex", "prims::convert_element_type", "true_divide", "triu", "tril",
}  # fmt: skip
ZEROS = {
    "mm", "bmm", "addmm", "baddbmm", "dot", "mv", "convolution_backward", "embedding_dense_backward",
    "_softmax_backward_data", "_log_softmax_backward_data",
}  # fmt: skip
# Operators that treat each element of their leading dimensions alike: name -> how many dimensions at the end they
# work along, of the operand's number of dimensions.
BATCHED: dict[str, Callable[[Bound, int], int]] = {
    "native_dropout": lambda bound, ndim: 0,
    "native_layer_norm": lambda bound, ndim: len(bound["normalized_shape"]),
    "_fused_rms_norm": lambda bound, ndim: len(bound["normalized_shape"]),
    "convolution": lambda bound, ndim: ndim - 1,
    "max_pool2d_with_indices": lambda bound, ndim: 3,
    "avg_pool2d": lambda bound, ndim: 3,
    "_adaptive_avg_pool2d": lambda bound, ndim: 3,
    "native_group_norm": lambda bound, ndim: ndim - 1,
}


def apply(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """The operator on values of which some are padded."""
    fake, name = node.meta.get("val"), op._schema.name.removeprefix("aten::")
    if not has_padding(list(bound.values())):
        return lengths.padded(call_operator(op, (), bound, fake, context, node), fake)
    if op is torch.ops.aten.copy_.default:
        raise Unpaddable("an input is overwritten in a graph of symbolic sizes")
    if name in _RULES:
        return _RULES[name](op, bound, node, context, lengths)
    if name in BATCHED:
        _check_batched(op, bound, BATCHED[name])
    elif name in NEUTRAL:
        neutral = NEUTRAL[name]
        return _run(op, bound, node, context, lengths, lambda p: p.filled(_extreme(p.array.dtype, neutral)))
    elif name in ZEROS:
        return _run(op, bound, node, context, lengths, lambda p: p.filled(0))
    elif torch.Tag.pointwise not in op.tags and name not in MOVES and _has_padded_tensor(bound):
        raise Unpaddable(f"{overload_name(op)} has no rule for padding")
    return _run(op, bound, node, context, lengths)


def _has_padded_tensor(bound: Bound) -> bool:
    return any(isinstance(v, Padded) for v in flat(list(bound.values())))


# Parts of rules ------------------------------------------------------------------------------------------------


def _run(
    op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths,
    arrays: Callable[[Padded], Any] = lambda p: p.array,
) -> Any:  # fmt: skip
    """The operator on padded values as ``arrays`` gives them, sizes as buckets and numbers as their values."""
    spec = spec_for(op)
    numbers = set() if spec is None else {p.name for p in spec.params if p.kind in (Kind.NUMBER, Kind.TENSOR)}

    def plain(x: Any, name: str) -> Any:
        if isinstance(x, Padded):
            return arrays(x)
        if isinstance(x, Length):
            return dtypes.Scalar(x.real, int) if name in numbers else x.bucket
        if isinstance(x, (list, tuple)):
            return [plain(e, name) for e in x]
        return x

    given = {name: plain(value, name) for name, value in bound.items()}
    fake = node.meta.get("val")
    return lengths.padded(call_operator(op, (), given, fake, context, node), fake)


def _extreme(dtype: Any, which: Any) -> Any:
    if which not in (_LOWEST, _HIGHEST):
        return which
    if jnp.issubdtype(dtype, jnp.floating):
        return -math.inf if which is _LOWEST else math.inf
    if dtype == jnp.bool_:
        return which is _HIGHEST
    limits = jnp.iinfo(dtype)
    return limits.min if which is _LOWEST else limits.max


def _check_batched(op: Any, bound: Bound, along: Callable[[Bound, int], int]) -> None:
    found = [v for v in flat(list(bound.values())) if isinstance(v, Padded)]
    source = bound.get("input", bound.get("self"))
    if not isinstance(source, Padded) or len(found) != 1 or source is not found[0]:
        raise Unpaddable(f"{overload_name(op)} with another padded operand than its input")
    ndim = source.array.ndim
    _refuse_padded(op, source, range(ndim - along(bound, ndim), ndim))


def _refuse_padded(op: Any, source: Any, dims: Iterable[int]) -> None:
    if any(_is_padded(source, d) for d in dims):
        raise Unpaddable(f"{overload_name(op)} along a padded dimension")


def _array(x: Any) -> Any:
    return x.array if isinstance(x, Padded) else x


def _is_padded(x: Any, dim: int) -> bool:
    return isinstance(x, Padded) and x.mask.shape[dim] > 1


def _real(length: Any) -> Any:
    return length.real if isinstance(length, Length) else jnp.asarray(int(length), jnp.int64)


def _fake(node: Node, position: int) -> torch.Tensor:
    return node.args[position].meta["val"]  # type: ignore[union-attr]


# Operators with rules of their own -----------------------------------------------------------------------------


def _mean(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    source, fake = bound["self"], node.meta["val"]
    dim = bound.get("dim")
    dims = tuple(d % source.array.ndim for d in dim) if dim else tuple(range(source.array.ndim))
    keep = bool(bound.get("keepdim", False))
    target = dtypes.to_jax(fake.dtype)
    wide = jnp.float32 if target.itemsize < 4 else target
    total = jnp.sum(source.filled(0).astype(wide), axis=dims, keepdims=keep)
    count = jnp.ones((), jnp.int64)
    for d in dims:
        count = count * _real(lengths.of(_fake(node, 0).shape[d]))
    return lengths.padded((total / count.astype(wide)).astype(target), fake)


def _along(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """Operators that work along dimensions (all, if none is named), which must not be padded."""
    source = bound["self"]
    ndim = _array(source).ndim
    default = [a.default_value for a in op._schema.arguments if a.name == "dim"]
    dim = bound.get("dim", bound.get("dims", default[0] if default else None))
    dims = [dim % ndim] if isinstance(dim, int) else [d % ndim for d in dim] if dim else range(ndim)
    _refuse_padded(op, source, dims)
    return _run(op, bound, node, context, lengths)


def _embedding(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    if isinstance(bound["weight"], Padded):
        raise Unpaddable("embedding with a padded table")
    return _run(op, bound, node, context, lengths, lambda p: p.filled(0))


def _gather(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """Indices that do not count become 0; those that do must not reach into the padding."""
    index, dim = bound["index"], bound["dim"]
    length = lengths.of(_fake(node, 0).shape[dim]) if _fake(node, 0).dim() else 1
    filled = index.filled(0) if isinstance(index, Padded) else index
    if isinstance(length, Length):
        message = f"{overload_name(op)}: index {{value}} is out of bounds for dimension {dim}"
        checks.require(filled >= length.real, filled, message)
    return _run(op, {**bound, "index": filled}, node, context, lengths)


def _index(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """Indices count from the real ends, and must not reach into the padding."""
    indices = []
    for d, index in enumerate(bound["indices"]):
        filled = index.filled(0) if isinstance(index, Padded) else index
        length = lengths.of(_fake(node, 0).shape[d]) if index is not None else None
        if isinstance(length, Length):
            if filled.dtype == jnp.bool_:
                raise Unpaddable("a mask as an index")
            filled = jnp.where(filled < 0, filled + length.real, filled.astype(jnp.int64))
            message = f"{overload_name(op)}: index {{value}} is out of bounds for dimension {d}"
            checks.require((filled >= length.real) | (filled < 0), filled, message)
        indices.append(filled)
    return _run(op, {**bound, "indices": indices}, node, context, lengths)


def _nll_loss(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """A target that does not count is the one to ignore."""
    target, ignored = bound["target"], bound.get("ignore_index", -100)
    if isinstance(target, Padded):
        bound = {**bound, "target": target.filled(ignored)}
    if isinstance(bound["self"], Padded) and (bound["self"].array.ndim < 2 or _is_padded(bound["self"], 1)):
        raise Unpaddable("nll_loss of padded classes")
    return _run(op, bound, node, context, lengths, lambda p: p.filled(0))


def _attention(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """Keys that do not count are masked out, beside what the user masks."""
    key, bias = bound["key"], bound.get("attn_bias")
    _refuse_counts_of_heads(op, bound, node)
    if isinstance(bias, Padded):
        bound = {**bound, "attn_bias": bias.filled(0)}
    if _is_padded(key, -2):
        bound = {**bound, "attn_bias": _with_key_mask(_array(bound.get("attn_bias")), key, bound["query"])}
    if op is torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default:
        asked = bound.get("grad_input_mask")
        if asked is not None and asked[3] and (isinstance(bias, Padded) or _is_padded(key, -2)):
            raise Unpaddable("a gradient for a padded attention mask")
    return _run(op, bound, node, context, lengths, lambda p: p.filled(0))


def _refuse_counts_of_heads(op: Any, bound: Bound, node: Node) -> None:
    """The default scale is made of the size of a head, and groups of the numbers of heads: not those of buckets."""
    names = [a.name for a in op._schema.arguments]
    query, key = (_fake(node, names.index(n)) for n in ("query", "key"))
    if bound.get("scale") is None and _is_padded(bound["query"], -1):
        raise Unpaddable("attention's default scale for a head of symbolic size")
    grouped = query.dim() == 4 and str(query.shape[1]) != str(key.shape[1])
    if grouped and (_is_padded(bound["query"], 1) or _is_padded(bound["key"], 1)):
        raise Unpaddable("groups of a symbolic number of heads")


def _norm_backward(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """The gradient of a norm has means over what it normalizes, which must not be padded."""
    source = bound["input"]
    ndim = _array(source).ndim
    along = ndim - len(bound["normalized_shape"]) if "normalized_shape" in bound else 1
    _refuse_padded(op, source, range(along, ndim))
    return _run(op, bound, node, context, lengths, lambda p: p.filled(0))


def _with_key_mask(bias: Any, key: Padded, query: Any) -> Any:
    rank = _array(query).ndim
    shape = [1] * rank
    shape[-1] = key.mask.shape[-2]
    counts = jnp.any(key.mask, axis=tuple(d for d in range(rank) if d != rank - 2)).reshape(shape)
    if bias is None:
        return counts
    if bias.dtype == jnp.bool_:
        return bias & counts
    return jnp.where(counts, bias, jnp.asarray(-math.inf, bias.dtype))


def _slice(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """A slice that starts at a number, with a length that is a size."""
    array, fake = _array(bound["self"]), node.meta["val"]
    dim = bound.get("dim", 0) % array.ndim
    start = bound.get("start") or 0
    size = concrete(tuple(fake.shape), context.sizes)[dim]
    if isinstance(start, Length) or start < 0 or bound.get("step", 1) != 1:
        raise Unpaddable("a slice from the end, or with a step, in a graph of symbolic sizes")
    if start + size > array.shape[dim]:
        raise Unpaddable("a slice that its operand's bucket is too short for")
    return lengths.padded(jax.lax.slice_in_dim(array, start, start + size, axis=dim), fake)


def _select(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """An index from the end of a padded dimension counts from its real end."""
    source, index = bound["self"], bound["index"]
    dim = bound["dim"] % _array(source).ndim
    if isinstance(index, Length):
        at = index.real
    else:
        length = lengths.of(_fake(node, 0).shape[dim])
        at = _real(length) + index if index < 0 else jnp.asarray(index, jnp.int64)
    result = jax.lax.dynamic_index_in_dim(_array(source), at, dim, keepdims=False)
    return lengths.padded(result, node.meta["val"])


def _slice_backward(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """What does not count of the gradient must not reach the operand's elements that do."""
    start, step = bound.get("start"), bound.get("step", 1)
    if isinstance(start, Length) or (start or 0) < 0 or step != 1:
        raise Unpaddable("the gradient of a slice from the end, or with a step")
    grad, fake = bound["grad_output"], node.meta["val"]
    array = grad.filled(0) if isinstance(grad, Padded) else grad
    shape = concrete(tuple(fake.shape), context.sizes)
    dim = bound["dim"] % len(shape)
    after = shape[dim] - array.shape[dim] - (start or 0)
    pads = [((start or 0), after, 0) if d == dim else (0, 0, 0) for d in range(len(shape))]
    return lengths.padded(jax.lax.pad(array, jnp.zeros((), array.dtype), pads), fake)


def _select_backward(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    grad, fake, index = bound["grad_output"], node.meta["val"], bound["index"]
    array = grad.filled(0) if isinstance(grad, Padded) else grad
    shape = concrete(tuple(fake.shape), context.sizes)
    dim = bound["dim"] % len(shape)
    length = lengths.of(fake.shape[dim])
    at = _real(index) if isinstance(index, Length) else _real(length) + index if index < 0 else _real(index)
    place = jax.lax.broadcasted_iota(jnp.int64, shape, dim) == at
    zero = jnp.zeros((), array.dtype)
    return lengths.padded(jnp.where(place, jnp.expand_dims(array, dim), zero), fake)


def _cat(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """Pieces one behind the other, each where the one before really ends."""
    pieces, fake = bound["tensors"], node.meta["val"]
    dim = bound.get("dim", 0) % fake.dim()
    dtype = dtypes.to_jax(fake.dtype)
    fakes = [n.meta["val"] for n in node.args[0]]  # type: ignore[union-attr]
    shape = concrete(tuple(fake.shape), context.sizes)
    # Room for the longest piece behind the end: dynamic_update_slice would move one that does not fit.
    longest = max(_array(p).shape[dim] for p in pieces if _array(p).ndim == len(shape))
    out = jnp.zeros(tuple(n + (longest if d == dim else 0) for d, n in enumerate(shape)), dtype)
    at = jnp.zeros((), jnp.int64)
    for piece, look in zip(pieces, fakes, strict=True):
        array = _array(piece).astype(dtype)
        if array.ndim != len(shape):
            continue  # the empty one-dimensional tensor, which cat takes for nothing
        starts = [at if d == dim else jnp.zeros((), jnp.int64) for d in range(len(shape))]
        out = jax.lax.dynamic_update_slice(out, array, starts)
        at = at + _real(lengths.of(look.shape[dim]))
    return lengths.padded(jax.lax.slice_in_dim(out, 0, shape[dim], axis=dim), fake)


def _reshape(op: Any, bound: Bound, node: Node, context: Context, lengths: Lengths) -> Any:
    """A reshape of the real sizes: plain where the padded dimensions stay or lead, else a gather of rows."""
    source, fake, before = bound["self"], node.meta["val"], _fake(node, 0)
    array = _array(source)
    shape = concrete(tuple(fake.shape), context.sizes)
    rest = _same_rest(before.shape, fake.shape)
    old, new = list(before.shape[: before.dim() - rest]), list(fake.shape[: fake.dim() - rest])
    if _leads(old) and _leads(new) and math.prod(array.shape[: len(old)]) == math.prod(shape[: len(new)]):
        return lengths.padded(array.reshape(shape), fake)
    reals_old = [_real(lengths.of(n)) for n in old]
    reals_new = [_real(lengths.of(n)) for n in new]
    linear: Any = jnp.zeros((1,) * len(new), jnp.int64)
    for d, real in enumerate(reals_new):
        linear = linear * real + jax.lax.broadcasted_iota(jnp.int64, shape[: len(new)], d)
    place, left, stride = jnp.zeros_like(linear), linear, 1
    for n, real in zip(reversed(array.shape[: len(old)]), reversed(reals_old), strict=True):
        at = left % jnp.maximum(real, 1)
        left, place, stride = left // jnp.maximum(real, 1), place + at * stride, stride * n
    rows = array.reshape(math.prod(array.shape[: len(old)]), *array.shape[len(old) :])
    return lengths.padded(jnp.take(rows, place, axis=0, mode="clip"), fake)


def _same_rest(before: Any, after: Any) -> int:
    """How many dimensions at the end are the same on both sides."""
    rest = 0
    for a, b in zip(reversed(before), reversed(after), strict=False):
        if str(a) != str(b):
            break
        rest += 1
    return rest


def _leads(sizes: list[Any]) -> bool:
    """Whether only the first dimension of more than one element is symbolic."""
    behind = False
    for n in sizes:
        if isinstance(n, torch.SymInt) and not n.node.expr.is_number:
            if behind:
                return False
            behind = True
        elif int(n) != 1:
            behind = True
    return True


_RULES: dict[str, Rule] = {
    "mean": _mean,
    **dict.fromkeys(
        ("var", "var_mean", "std", "split", "split_with_sizes", "unbind", "sort", "topk", "flip", "kthvalue", "roll"),
        _along,
    ),
    **dict.fromkeys(
        ("native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward"), _norm_backward
    ),
    "embedding": _embedding,
    "gather": _gather,
    "index_select": _gather,
    "index": _index,
    "nll_loss_forward": _nll_loss,
    "nll_loss_backward": _nll_loss,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention,
    "slice": _slice,
    "slice_backward": _slice_backward,
    "select": _select,
    "select_backward": _select_backward,
    "cat": _cat,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "reshape": _reshape,
    "_reshape_alias": _reshape,
}
