"""``jax_op``: a JAX function as a PyTorch operator of device tpu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import jax
import sympy
import torch
from jax import export as jax_export

from torch_tpu.binding import custom_operators, derivatives
from torch_tpu.compile import dimensions
from torch_tpu.lowering import dtypes, registry
from torch_tpu.lowering.registry import Lowering
from torch_tpu.pallas.function import JaxFunction, flatten
from torch_tpu.pallas.signature import Signature, signature_of


class JaxOp(custom_operators.CustomOpDef):
    """The operator of a JAX function: call it with tensors of device tpu.

    ``register_autograd``, ``register_fake``, ``register_vmap`` and ``register_autocast`` are those of every operator
    that ``torch.library.custom_op`` makes; the fake kernel and the vmap rule are there already.
    """

    def __init__(self, function: JaxFunction):
        namespace, _, name = function.name.partition("::")
        super().__init__(namespace, name, function.signature.schema, _unwrapped(function.fn))
        self._forget = custom_operators.register(
            self, lambda values: self.function.check(values), lambda: self.function.donated,
            lambda names: self.function.kernel(names),
        )  # fmt: skip
        custom_operators.override(self, "Autograd", self._autograd())
        self.define(function)

    def define(self, function: JaxFunction) -> None:
        """Let the operator be another function of the same schema; what was registered for the former one goes."""
        self.function = function
        registry.replace(_lowering(function))
        self._forget()
        _forget_graphs(self)
        self._backward_fn = self._setup_context_fn = None
        self.register_fake(self._fake)
        self.register_vmap(self._vmap)
        self._batched: JaxOp | None = None
        # What makes its derivatives from the dispatcher's keys and all arguments, where JAX derives them.
        self.differentiated: Callable[[Any, Sequence[Any]], Any] | None = None
        # Attributes: Dynamo traces what a call does.
        self._plain = all(p.given is None for p in function.signature.parameters)
        self._replaced = False
        self.__doc__ = getattr(function.fn, "__doc__", None)
        self.__name__ = getattr(function.fn, "__name__", self._name)

    def retire(self) -> None:
        """Another operator has the name now, and PyTorch has forgotten this one."""
        self._plain, self._replaced = False, True
        _forget_graphs(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._plain:
            return self._opoverload(*args, **kwargs)
        if self._replaced:
            raise RuntimeError(
                f"{self._qualname}: the operator was defined again with another signature; use the new one, which is "
                f"torch.ops.{self._namespace}.{self._name}"
            )
        given, named = _converted(self.function.signature, args, kwargs)
        return self._opoverload(*given, **named)

    def below_autograd(self, keys: Any, values: Sequence[Any]) -> Any:
        """Its results by what the dispatcher has behind autograd, for all arguments in the schema's order."""
        given = list(zip(self.function.signature.parameters, values, strict=True))
        args, kwargs = [v for p, v in given if not p.keyword], {p.name: v for p, v in given if p.keyword}
        return derivatives.below(self._opoverload, keys, args, kwargs)

    def _autograd(self) -> Callable[..., Any]:
        """The kernel of autograd: PyTorch's own but for derivatives by JAX."""
        registered = derivatives.registered(self)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            by_jax = self.differentiated if self._backward_fn is None else None
            if by_jax is not None and derivatives.asked_for(args):
                return by_jax(keys, list(_bound(self._opoverload, args, kwargs).values()))
            return registered(keys, *args, **kwargs)

        return kernel

    def batched(self) -> JaxOp:
        """The operator under ``vmap``: with a last argument that has the dimension of each array."""
        from torch_tpu.pallas import derived  # it makes operators

        if self._batched is None:
            self._batched = derived.batched(self.function)
            if self.differentiated is not None:
                derived.differentiate(self._batched)
        return self._batched

    def __repr__(self) -> str:
        return f"<JaxOp({self._qualname})>"

    # What the results look like ------------------------------------------------------------------------------------

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        self._in_graphs = True
        values = _bound(self._opoverload, args, kwargs)
        self.function.check(values)
        ordered = list(values.values())
        tensors = flatten(self.function.signature, ordered)[0]
        made = self._symbolic(ordered, tensors)
        if made is None:
            made = self.function.outputs(_specialized(ordered))
        device = tensors[0].device if tensors else values.get("device") or torch.device("tpu")
        out = [
            torch.empty(tuple(m.shape), dtype=dtypes.to_torch(m.dtype), device=device) if hasattr(m, "dtype") else m
            for m in made
        ]
        form = self.function.signature.result.form
        return None if form == "none" else out if form == "list" else out[0] if form == "one" else tuple(out)

    def _symbolic(self, values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any] | None:
        """Results for all values of symbolic sizes at once; None where the function has to be traced for each."""
        symbols = _symbols(tensors)
        if not symbols or any(isinstance(v, torch.SymInt) for v in values):
            return None
        names = {s: f"s{i}" for i, s in enumerate(symbols)}
        scope = jax_export.SymbolicScope()
        dims = {s: jax_export.symbolic_shape(n, scope=scope)[0] for s, n in names.items()}
        try:
            made = self.function.outputs(
                values, lambda t: tuple(dimensions.evaluate(_expression(n), dims) for n in t.shape)
            )
            return [_with_symbols(m, {n: symbols[s] for s, n in names.items()}) for m in made]
        except Exception:  # a shape is compared, or is the size of a kernel's grid: what JAX raises then is of any kind
            return None

    # vmap ----------------------------------------------------------------------------------------------------------

    def _vmap(self, info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        values = _bound(self._opoverload, args, kwargs)
        dims = [-1 if d is None else d for d in _flat_dims(self.function.signature, in_dims, list(values.values()))]
        result = self.batched()._opoverload(*values.values(), dims)
        form = self.function.signature.result.form
        if form == "list":
            return result, [0] * len(result)
        if form == "several":
            return result, tuple(0 if is_array else None for is_array in self.function.signature.result.parts)
        return result, 0


@overload
def jax_op(
    name: str, fn: None = None, /, *, donate_argnums: int | Sequence[int] | None = None, mesh: Any = None,
    input_partition_specs: Any = None, output_partition_specs: Any = None, differentiable: bool = False,
    x64: bool = False,
) -> Callable[[Callable[..., Any]], JaxOp]: ...  # fmt: skip


@overload
def jax_op(
    name: str, fn: Callable[..., Any], /, *, donate_argnums: int | Sequence[int] | None = None, mesh: Any = None,
    input_partition_specs: Any = None, output_partition_specs: Any = None, differentiable: bool = False,
    x64: bool = False,
) -> JaxOp: ...  # fmt: skip


def jax_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    donate_argnums: int | Sequence[int] | None = None,
    mesh: Any = None,
    input_partition_specs: Any = None,
    output_partition_specs: Any = None,
    differentiable: bool = False,
    x64: bool = False,
) -> JaxOp | Callable[[Callable[..., Any]], JaxOp]:
    """Make a JAX function, with or without Pallas kernels in it, an operator of PyTorch on device tpu.

    ::

        @jax_op("mylib::scaled")
        def scaled(x: jax.Array, factor: float = 2.0) -> jax.Array:
            return x * factor

        scaled(torch.ones(4, device="tpu"))        # also torch.ops.mylib.scaled

    The operator runs eagerly, under ``torch.compile`` (as part of the one XLA program), on fake and meta tensors, under
    ``torch.export``, ``torch.tpu.export`` and ``torch.tpu.aot``, and under ``torch.vmap``. Its schema comes from the
    annotations (``torch_tpu.pallas.signature`` has the table); arguments that are no arrays are part of the program: a
    new value of one compiles another. The function is traced in JAX's 32-bit mode: 64-bit tensors arrive in 32 bits.
    Sizes that change are traced again, where the function does not take symbolic ones.

    Args:
      name: ``"namespace::name"``; a second definition of a name replaces the first.
      fn: the function; without it, ``jax_op(name)`` is a decorator.
      donate_argnums: positions of array parameters whose memory the results may take. In eager, a tensor whose memory
        was taken has no values afterwards, and says so when it is read.
      mesh: a mesh over which the function runs, a part of each array on each device: that of ``get_pallas_mesh``, or
        what that takes. Such an operator is no part of a compiled graph.
      input_partition_specs, output_partition_specs: how the arrays lie over the mesh, a ``PartitionSpec`` each, or one
        for all; None: whole on each device.
      differentiable: derive the gradient by ``jax.vjp``. The backward pass runs the function again. Without it, use
        ``register_autograd``.
      x64: trace the function in JAX's 64-bit mode.

    Raises:
      ValueError: the name is not of the form ``ns::name``; a position of ``donate_argnums`` is not an array's.
      TypeError: a parameter has no annotation, or one that no schema can have.
    """
    if not isinstance(name, str) or name.count("::") != 1 or not all(map(str.isidentifier, name.split("::"))):
        raise ValueError(
            f"jax_op: the name {name!r} is not of the form 'namespace::name', with one '::' between two names"
        )
    if name.startswith(("aten::", "prim::", "prims::")):
        raise ValueError(f"jax_op: the namespace of {name!r} is PyTorch's own; use your project's name")

    def make(fn: Callable[..., Any]) -> JaxOp:
        if not callable(fn):
            raise TypeError(f"jax_op {name}: expected a function, got {type(fn).__name__}")
        signature = signature_of(name, fn)
        options = {"x64": x64, "donated": _donated(name, signature, donate_argnums)}
        if mesh is None:
            function = JaxFunction(name, fn, signature, **options)
        else:
            from torch_tpu.pallas import mesh as meshes  # its functions are these

            over = mesh if isinstance(mesh, jax.sharding.Mesh) else meshes.get_pallas_mesh(mesh)
            function = meshes.MeshedFunction(
                name, fn, signature, **options, mesh=over, in_specs=input_partition_specs,
                out_specs=output_partition_specs,
            )  # fmt: skip
        op = defined(function)
        if differentiable:
            from torch_tpu.pallas import derived

            derived.differentiate(op)
        return op

    return make if fn is None else make(fn)


_LIVE: dict[str, JaxOp] = {}


def defined(function: JaxFunction) -> JaxOp:
    """The operator of a function: a new one, or that of its name and schema (a module that is loaded again defines its
    operators again, and what was imported from it before still works)."""
    found = _LIVE.get(function.name)
    if found is not None and found.function.signature.schema == function.signature.schema:
        found.define(function)
        return found
    if found is not None:
        found.retire()
    made = _LIVE[function.name] = JaxOp(function)
    return made


def custom_jax_kernel(fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """The older form of ``jax_op``: a decorator, with or without arguments.

    Args:
      name: of the operator; by default ``"pallas::<name of the function>"``.
      options: those of ``jax_op``.
    """

    def make(fn: Callable[..., Any]) -> JaxOp:
        return jax_op(name or f"pallas::{fn.__name__}", fn, **options)

    if isinstance(fn, str):  # custom_jax_kernel("ns::name")
        return jax_op(fn, **options)
    return make if fn is None else make(fn)


def _forget_graphs(op: JaxOp) -> None:
    """Graphs that Dynamo has compiled hold what the operator did, and nothing that they are guarded on tells."""
    if getattr(op, "_in_graphs", False):
        op._in_graphs = False
        torch._dynamo.reset()


def _lowering(function: JaxFunction) -> Lowering:
    static = frozenset(p.name for p in function.signature.parameters if p.kind == "static")
    return Lowering(
        function.name, function, static=static, own_shapes=True, keeps_all=True, fingerprint=function.fingerprint,
        check=function.check, donated=function.donated,
    )  # fmt: skip


def _donated(name: str, signature: Signature, positions: int | Sequence[int] | None) -> frozenset[str]:
    """The names of donated parameters."""
    found = set()
    for i in [] if positions is None else [positions] if isinstance(positions, int) else positions:
        parameters = signature.parameters
        if not -len(parameters) <= i < len(parameters) or parameters[i].kind == "static":
            arrays = ", ".join(f"{n} ({p.name})" for n, p in enumerate(parameters) if p.kind != "static")
            raise ValueError(f"jax_op {name}: donate_argnums has {i}, which is no array; arrays are {arrays or 'none'}")
        found.add(parameters[i].name)
    return frozenset(found)


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.library`` asks for its name and its module."""
    return fn if hasattr(fn, "__name__") else getattr(fn, "func", fn)


def _bound(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name, in the schema's order."""
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    return {a.name: given.get(a.name, a.default_value) for a in op._schema.arguments}


def _converted(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Enums, literals and NumPy's dtypes as the schema has them."""
    given = list(args)
    named = dict(kwargs)
    for i, p in enumerate(signature.parameters):
        if p.given is None:
            continue
        if i < len(given):
            given[i] = p.given(given[i])
        elif p.name in named:
            named[p.name] = p.given(named[p.name])
    return given, named


def _specialized(values: Sequence[Any]) -> list[Any]:
    """The arguments with the sizes that they have now; whoever traces guards on them."""

    def fixed(v: Any) -> Any:
        if isinstance(v, torch.SymInt):
            return int(v)
        if isinstance(v, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in v.shape):
            return _Look(tuple(int(n) for n in v.shape), v.dtype)
        return [fixed(e) for e in v] if isinstance(v, (list, tuple)) else v

    return [fixed(v) for v in values]


class _Look:
    """Shape and dtype of a tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype):
        self.shape, self.dtype = shape, dtype


def _expression(n: Any) -> Any:
    return n.node.expr if isinstance(n, torch.SymInt) else n


def _symbols(tensors: Sequence[torch.Tensor]) -> dict[sympy.Symbol, Any]:
    """The symbols in the shapes, each with the symbolic number that stands for it alone."""
    found: dict[sympy.Symbol, Any] = {}
    for n in (n for t in tensors for n in t.shape if isinstance(n, torch.SymInt)):
        for symbol in sorted(n.node.expr.free_symbols, key=str):
            if symbol not in found:
                found[symbol] = n if n.node.expr == symbol else custom_operators.number_of(symbol, n)
    return found


def _with_symbols(made: Any, numbers: dict[str, Any]) -> Any:
    """A result whose shape has JAX's dimensions, with PyTorch's symbolic numbers in their place."""
    if not hasattr(made, "shape") or not any(map(jax_export.is_symbolic_dim, made.shape)):
        return made
    shape = tuple(dimensions.to_number(n, numbers) if jax_export.is_symbolic_dim(n) else n for n in made.shape)
    return _Look(shape, made.dtype)


def _flat_dims(signature: Signature, in_dims: Sequence[Any], values: Sequence[Any]) -> list[int | None]:
    """The batched dimension of each array, in the order of ``flatten``."""
    out: list[int | None] = []
    for p, d, v in zip(signature.parameters, [*in_dims, *[None] * len(values)], values, strict=False):
        if v is None or p.kind == "static":
            continue
        if p.kind == "arrays":
            out += list(d) if isinstance(d, (list, tuple)) else [d] * len(v)
        else:
            out.append(d)
    return out
