"""Operators of a graph that no lowering stands for: views as values, lists of tensors, empties, bookkeeping."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torch_tpu.binding.dispatcher import Operator
from torch_tpu.compile.errors import GraphError
from torch_tpu.eager.foreach import element_of
from torch_tpu.eager.spec import Spec, overload_name, spec_for
from torch_tpu.eager.spec import find as find_operator
from torch_tpu.lowering import checks, comparison, dtypes, registry

if TYPE_CHECKING:
    from torch_tpu.compile.evaluate import Context

Handler = Callable[[Any, dict[str, Any], Any, "Context", "Node | None"], Any]
_HANDLERS: dict[str, Handler] = {}


# The dtype of a number that a program computes.
NUMBER_TYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Declare a function as the meaning of the named overloads in a graph."""

    def declare(fn: Handler) -> Handler:
        for name in names:
            if name in _HANDLERS:
                raise ValueError(f"{name}: a graph operator is declared already")
            _HANDLERS[name] = fn
        return fn

    return declare


@functools.cache
def find(op: Any) -> Handler | None:
    """What an overload means in a graph, if it is not a lowering of its own."""
    name = overload_name(op)
    if name in _HANDLERS:
        return _HANDLERS[name]
    if name.startswith("aten::_foreach_"):
        return _foreach_handler(op)
    if spec_for(op) is None:
        copy = copy_form(op)
        if copy is not None:
            return functools.partial(_as_copy, copy)
    return None


def is_computed_number(value: Any) -> bool:
    """Whether a number of the graph is known when the program has run, not before."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and bool(free_unbacked_symbols(value))


def copy_form(op: Any) -> Spec | None:
    """The ``*_copy`` operator of a view operator: the view's values."""
    name, overload = op._schema.name, op._schema.overload_name
    twin = find_operator(f"{name}_copy" + (f".{overload}" if overload else ""))
    return spec_for(twin) if isinstance(twin, Operator) else None


def _as_copy(spec: Spec, op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    from torch_tpu.compile.evaluate import apply

    return apply(spec, bound, fake, context)


@handles("aten::copy_")
def write_input(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """The new value of one of the graph's inputs."""
    if node is None or not isinstance(node.args[0], Node) or node.args[0].op != "placeholder":
        raise GraphError("copy_ into a tensor that is not an input of the graph")
    self, src = bound["self"], bound["src"]
    value = jnp.broadcast_to(dtypes.cast(src, dtypes.to_torch(self.dtype)), self.shape)
    context.written[node.args[0]] = value
    return value


@handles("aten::empty.memory_format", "aten::empty_strided", "aten::new_empty", "aten::empty_like",
         "aten::empty_permuted", "aten::new_empty_strided", "aten::_efficientzerotensor")  # fmt: skip
def empty(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """Memory that was never written reads as zeros."""
    from torch_tpu.compile.evaluate import meta_of

    meta = meta_of(fake, context.sizes)
    assert meta is not None
    return jnp.zeros(meta.shape, dtypes.to_jax(meta.dtype))


@handles("aten::sym_size.int", "aten::sym_stride.int", "aten::sym_numel", "aten::sym_storage_offset")
def size(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    from torch_tpu.compile.evaluate import concrete

    return concrete(fake, context.sizes)


@handles("aten::_assert_async", "aten::_assert_async.msg")
def assert_async(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    what = bound.get("assert_msg", "Expected Tensor with single nonzero value, but got zero")
    comparison.functional_assert_async(bound["self"], what, None)


@handles("aten::_assert_scalar", "aten::_assert_tensor_metadata",
         "aten::sym_constrain_range", "aten::sym_constrain_range_for_size")  # fmt: skip
def promise(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """What the graph's maker knows of its values; nothing to compute."""
    return None


_FAILURES = {
    "inv": "the input matrix is singular (the diagonal element {value} is zero)",
    "solve": "the input matrix is singular",
    "cholesky": "the input is not positive-definite (the leading minor of order {value} is not)",
    "lstsq": "the input matrix does not have full rank (error code {value})",
    "lu_factor": "U[{value},{value}] is zero, and lu_solve would divide by it; linalg.lu_factor_ex does not check",
    "eig": "the algorithm failed to converge (error code {value})",
    "svd": "the algorithm failed to converge (error code {value})",
}


@handles("aten::_linalg_check_errors")
def linalg_check_errors(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """A factorization that fails is an error when the device is next waited for, as an index out of range is."""
    name = bound["api_name"]
    why = next((text for part, text in _FAILURES.items() if part in name), "it failed (error code {value})")
    checks.require(bound["info"] != 0, bound["info"], f"{name}: {why}", torch.linalg.LinAlgError)  # type: ignore


@handles("aten::lift_fresh_copy", "aten::alias", "aten::detach", "aten::lift_fresh")
def same(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    return bound["self"]


@handles("aten::as_strided")
def as_strided(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """Elements of the operand's storage: its values in the order in which they lie there."""
    from torch_tpu.compile.evaluate import apply, concrete

    source = node.args[0].meta.get("val") if node is not None and isinstance(node.args[0], Node) else None
    self = bound["self"]
    if isinstance(source, torch.Tensor):
        strides = concrete(tuple(source.stride()), context.sizes)
        order = sorted(range(self.ndim), key=lambda d: (-strides[d], d))
        self = jnp.transpose(self, order)
    spec = copy_form(op)
    assert spec is not None
    return apply(spec, {**bound, "self": self}, fake, context)


@handles("aten::_local_scalar_dense", "aten::item")
def item(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """A number that the program computes: an operand of what comes after, or a result; no size."""
    self = bound["self"]
    kind = dtypes.to_torch(self.dtype)
    number = bool if kind == torch.bool else complex if kind.is_complex else float if kind.is_floating_point else int
    return dtypes.Scalar(self.reshape(()).astype(dtypes.to_jax(NUMBER_TYPES[number])), number)


@handles("prims::convert_element_type")
def converted(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """What PyTorch's decompositions cast with."""
    return dtypes.cast(bound["a"], bound["dtype"])


@handles("aten::true_divide.Tensor")
def divided(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """What PyTorch makes of a division of numbers that became tensors."""
    from torch_tpu.compile.evaluate import call_operator

    return call_operator(torch.ops.aten.div.Tensor, (), bound, fake, context, node)


def _foreach_handler(op: Any) -> Handler | None:
    """A foreach operator as its element's operator, applied to each element."""
    element = element_of(op)
    if element is None:
        return None
    target = find_operator(element.name)
    lists = [a.name for a in op._schema.arguments if str(a.type).startswith("List[")]

    def handler(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
        from torch_tpu.compile.evaluate import call_operator

        made = []
        for i, result in enumerate(fake):
            one = [v[i] if n in lists else v for n, v in bound.items()]
            made.append(call_operator(target, (), dict(zip(element.params, one, strict=False)), result, context, None))
        return made

    return handler


def meta(shape: tuple[int, ...], dtype: torch.dtype) -> registry.Meta:
    return registry.Meta(shape, dtype)
