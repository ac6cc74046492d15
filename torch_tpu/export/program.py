"""An ExportedProgram as one JAX function."""

from __future__ import annotations

import contextlib
import keyword
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from jax import export as jax_export
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import GraphModule, Node

from torch_tpu.binding import exported as binding_exported
from torch_tpu.compile import dimensions
from torch_tpu.compile.backend import decompositions, is_known, prepare
from torch_tpu.compile.evaluate import Context, constants_of, draws, evaluate
from torch_tpu.eager.sdpa import scaled_dot_product_attention
from torch_tpu.export.errors import ExportError
from torch_tpu.export.shared import raise_if_written_twice
from torch_tpu.export.signature import Dim, Input, Output, Signature, constant
from torch_tpu.export.structure import Structure
from torch_tpu.lowering import checks, dtypes, registry
from torch_tpu.runtime import interpretation, transfer
from torch_tpu.runtime import platform as device_platform

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_WRITTEN_WEIGHTS = {"PARAMETER_MUTATION", "BUFFER_MUTATION"}
_JAX_ADVICE = re.compile(r"\nUsing symbolic scope.*?for more details\.\n?", re.DOTALL)
_SOME_SIZE = 8
_NOT_NAMES = {"mod", "floordiv", "max", "min", "non_negative"}  # words of JAX's symbolic shapes


class Function:
    """An exported program, decomposed to operators that have lowerings, with its signature and weights.

    Attributes:
      weights: name -> tensor, each tensor once; on whatever device they are.
      symbols: name of a dimension -> its sympy symbol.

    Raises:
      ExportError: an argument or result that no artifact can have (a script object, an effect token).
    """

    def __init__(self, program: ExportedProgram):
        if not isinstance(program, ExportedProgram):
            raise TypeError(
                f"expected a torch.export.ExportedProgram, got {type(program).__name__}; make one by "
                "torch.export.export(model, args)"
            )
        registry.load_all()
        try:
            program = program.run_decompositions(_table())
        except Exception as e:
            raise_if_written_twice(program, e)
            raise
        self.module: GraphModule = program.graph_module
        prepare(self.module)
        self.placeholders: list[Node] = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        self.specs: list[InputSpec] = list(program.graph_signature.input_specs)
        self.output_specs: list[OutputSpec] = list(program.graph_signature.output_specs)
        self.symbols = self._symbols(program)
        self.weights, self.same = _weights(program, self.specs)
        self.name_of = {s.arg.name: str(s.target) for s in self.specs if s.kind in _WEIGHTS}
        self.signature = self._signature(program)

    # Analysis --------------------------------------------------------------------------------------------------

    def _symbols(self, program: ExportedProgram) -> dict[str, sympy.Symbol]:
        """The symbols in the shapes of what the user passes, by name."""
        found: dict[sympy.Symbol, str] = {}
        for node, spec in zip(self.placeholders, self.specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                value = node.meta.get("val")
                is_tensor = isinstance(value, torch.Tensor)
                for i, size in enumerate(value.shape if is_tensor else (value,)):
                    if isinstance(size, torch.SymInt):
                        name = f"{spec.arg.name}_dim{i}" if is_tensor else spec.arg.name
                        for symbol in sorted(size.node.expr.free_symbols, key=str):
                            found.setdefault(symbol, name)
        given = {**found, **binding_exported.dimension_names(program)}
        names: dict[str, sympy.Symbol] = {}
        for symbol in found:
            name = re.sub(r"\W", "_", given[symbol])
            while not name.isidentifier() or keyword.iskeyword(name) or name in _NOT_NAMES or name in names:
                name = f"d{name}_"
            names[name] = symbol
        return names

    def _signature(self, program: ExportedProgram) -> Signature:
        inputs = [self._input(n, s) for n, s in self._user()]
        position = {s.arg.name: i for i, (_, s) in enumerate(self._user())}
        outputs: list[Output] = []
        written_weights: list[str] = []
        written_inputs: list[int] = []
        for spec in self.output_specs:
            if spec.kind.name in _WRITTEN_WEIGHTS:
                written_weights.append(self.same.get(str(spec.target), str(spec.target)))
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                written_inputs.append(position[str(spec.target)])
            elif spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(_output(spec, position))
            elif spec.kind is not OutputKind.TOKEN:
                raise ExportError(f"an exported program with an output of kind {spec.kind.name} is not supported")
        assert program.call_spec.in_spec is not None and program.call_spec.out_spec is not None
        return Signature(
            tuple(inputs), tuple(outputs),
            Structure.of(program.call_spec.in_spec).text, Structure.of(program.call_spec.out_spec).text,
            tuple(self.weights), self.same, tuple(written_weights), tuple(written_inputs),
            {name: _limits(program.range_constraints.get(s)) for name, s in self.symbols.items()},
            draws(self.module),
        )  # fmt: skip

    def _user(self) -> list[tuple[Node, InputSpec]]:
        pairs = zip(self.placeholders, self.specs, strict=True)
        return [(n, s) for n, s in pairs if s.kind is InputKind.USER_INPUT]

    def _input(self, node: Node, spec: InputSpec) -> Input:
        name, fake = spec.arg.name, node.meta.get("val")
        if isinstance(spec.arg, TensorArgument):
            assert isinstance(fake, torch.Tensor)
            return Input(name, "tensor", str(fake.dtype).removeprefix("torch."), self._named(tuple(fake.shape)))
        if isinstance(spec.arg, SymIntArgument):
            return Input(name, "size", shape=self._named((fake,)))
        if isinstance(spec.arg, ConstantArgument):
            return Input(name, "constant", value=constant(spec.arg.value, name))
        raise ExportError(f"{name}: an argument of kind {type(spec.arg).__name__} is not supported")

    def _named(self, shape: Sequence[Any]) -> tuple[Dim, ...]:
        """Sizes with the names of dimensions for their symbols."""
        names = {s: sympy.Symbol(n) for n, s in self.symbols.items()}
        return tuple(str(d.node.expr.xreplace(names)) if isinstance(d, torch.SymInt) else int(d) for d in shape)

    # Programs --------------------------------------------------------------------------------------------------

    def export(
        self, platform: str, sizes: Mapping[str, int] | None = None
    ) -> tuple[jax_export.Exported, list[tuple[str, str]]]:
        """(the program for one platform, the messages and error types of its index checks).

        Args:
          sizes: of every named dimension; None for a program of all sizes.

        Raises:
          ExportError: an operator of the graph does not take symbolic sizes.
          GraphError: an operator has no lowering.
        """
        values = self._sizes(sizes)
        notes: list[tuple[str, str]] = []

        def program(weights: dict[str, Any], inputs: list[Any], key: Any = None) -> dict[str, Any]:
            return self._body(values, notes, weights, inputs, key)

        device_platform.start()  # or JAX would look for hardware that is not there, and complain
        operands = self._operands(values)
        with (
            jax.enable_x64(True), self._symbolic_errors(values), _without_source_lines(),
            interpretation.lowering_for(platform),
        ):  # fmt: skip
            function = jax.jit(program)
            if platform != "tpu":
                function = interpretation.storable(function, operands)
            return jax_export.export(function, platforms=[platform])(*operands), notes

    def _operands(self, values: Mapping[Any, Any]) -> list[Any]:
        """What the program takes, without values."""
        weights = {n: jax.ShapeDtypeStruct(tuple(t.shape), dtypes.to_jax(t.dtype)) for n, t in self.weights.items()}
        inputs = [self._abstract(n, s, values) for n, s in self._user() if not isinstance(s.arg, ConstantArgument)]
        return [weights, inputs, *([jax.ShapeDtypeStruct((2,), np.uint32)] if self.signature.is_random else [])]

    def _sizes(self, sizes: Mapping[str, int] | None) -> dict[sympy.Symbol, Any]:
        if not self.symbols:
            return {}
        if sizes is not None:
            return {s: sympy.Integer(sizes[n]) for n, s in self.symbols.items()}
        limits = self.signature.dimensions
        constraints = [f"{n} >= {low}" for n, (low, _) in limits.items() if low > 1]
        constraints += [f"{n} <= {high}" for n, (_, high) in limits.items() if high is not None]
        scope = jax_export.SymbolicScope(constraints)
        return {s: jax_export.symbolic_shape(n, scope=scope)[0] for n, s in self.symbols.items()}

    def _abstract(self, node: Node, spec: InputSpec, values: Mapping[Any, Any]) -> jax.ShapeDtypeStruct:
        fake = node.meta["val"]
        if isinstance(spec.arg, TensorArgument):
            shape = tuple(dimensions.evaluate(_expression(d), values) for d in fake.shape)
            return jax.ShapeDtypeStruct(shape, dtypes.to_jax(fake.dtype))
        return jax.ShapeDtypeStruct((), np.int64)

    @contextlib.contextmanager
    def _symbolic_errors(self, values: Mapping[Any, Any]) -> Iterator[None]:
        if not dimensions.any_symbolic(values):
            yield
            return
        names = ", ".join(self.symbols)
        advice = (
            f"cannot be one program for all sizes of {names}: export it for the sizes that you need, as in "
            f"sizes=[{{{', '.join(f'{n!r}: 8' for n in self.symbols)}}}], or without dynamic_shapes"
        )
        for x in self.signature.inputs:
            if x.kind == "size":
                raise ExportError(f"the int argument {x.name}, which may change, {advice}")
        try:
            yield
        except Exception as e:
            self._raise_if_it_fails_for_any_sizes()
            text = _JAX_ADVICE.sub("", str(e))
            raise ExportError(f"the exported program {advice}.\n  {text}") from e

    def _raise_if_it_fails_for_any_sizes(self) -> None:
        """What is wrong with known sizes too is not the fault of unknown ones."""
        limits = self.signature.dimensions
        sizes = {n: max(low, min(_SOME_SIZE, high or _SOME_SIZE)) for n, (low, high) in limits.items()}
        values = self._sizes(sizes)
        jax.eval_shape(lambda *operands: self._body(values, [], *operands), *self._operands(values))

    def _body(
        self, sizes: Mapping[Any, Any], notes: list[tuple[str, str]], weights: Mapping[str, Any],
        inputs: Sequence[Any], key: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The program: see ``Signature`` for what it takes and gives."""
        rest = iter(inputs)
        values = []
        for node, spec in zip(self.placeholders, self.specs, strict=True):
            if spec.kind in _WEIGHTS:
                name = str(spec.target)
                values.append(weights[self.same.get(name, name)])
            elif spec.kind is InputKind.TOKEN:
                values.append(None)
            elif isinstance(spec.arg, ConstantArgument):
                values.append(spec.arg.value)
            else:
                value = next(rest)
                is_tensor = isinstance(spec.arg, TensorArgument)
                values.append(value if is_tensor else dimensions.evaluate(_expression(node.meta["val"]), sizes))
        # Without a key of its own a program has operators that could draw, but do not (attention without dropout).
        random = jax.random.wrap_key_data(key, impl="threefry2x32") if key is not None else jax.random.key(0)
        constants = {n: jnp.asarray(to_numpy(t)) for n, t in constants_of(self.module).items()}
        context = Context(sizes=sizes, key=random, constants=constants)
        with checks.collect() as made:
            computed = evaluate(self.module, values, context)
        notes[:] = [(c.message, c.error.__name__) for c in made]
        found = self._results(computed)
        if made:
            found["checks"] = jnp.stack([c.report for c in made])
        return found

    def _results(self, computed: Sequence[Any]) -> dict[str, Any]:
        outputs: list[Any] = []
        new_weights: list[Any] = []
        new_inputs: list[Any] = []
        nodes: Any = next(n for n in self.module.graph.nodes if n.op == "output").args[0]
        of_user = iter(self.signature.outputs)
        for spec, node, value in zip(self.output_specs, nodes, computed, strict=True):
            if spec.kind is OutputKind.TOKEN:
                continue
            fake = node.meta.get("val") if isinstance(node, Node) else None
            if isinstance(fake, torch.Tensor):
                value = dtypes.cast(value, fake.dtype)
            if spec.kind.name in _WRITTEN_WEIGHTS:
                new_weights.append(value)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                new_inputs.append(value)
            elif (described := next(of_user)).kind == "program":
                outputs.append(value)
            elif described.kind == "number":
                outputs.append(jnp.asarray(_plain(value), _NUMBERS[described.value]))
        found: dict[str, Any] = {"outputs": outputs}
        if new_weights:
            found["weights"] = dict(zip(self.signature.written_weights, new_weights, strict=True))
        if new_inputs:
            found["inputs"] = dict(zip(map(str, self.signature.written_inputs), new_inputs, strict=True))
        return found


_config_lock = threading.Lock()


@contextlib.contextmanager
def _without_source_lines() -> Iterator[None]:
    """An artifact does not tell where on its maker's disk the lowerings are."""
    option = "jax_traceback_in_locations_limit"
    with _config_lock:
        before = getattr(jax.config, option)
        jax.config.update(option, 0)
        try:
            yield
        finally:
            jax.config.update(option, before)


_NUMBERS = {"int": np.int64, "float": np.float64, "bool": np.bool_}
_NUMBER_OF = {SymIntArgument: "int", SymFloatArgument: "float", SymBoolArgument: "bool"}


def _output(spec: OutputSpec, position: Mapping[str, int]) -> Output:
    if isinstance(spec.arg, ConstantArgument):
        return Output("constant", constant(spec.arg.value, "a result"))
    if spec.arg.name in position:
        return Output("input", position[spec.arg.name])
    if isinstance(spec.arg, TensorArgument):
        return Output("program")
    kind = _NUMBER_OF.get(type(spec.arg))  # type: ignore[arg-type]
    if kind is None:
        raise ExportError(f"a result of kind {type(spec.arg).__name__} is not supported")
    return Output("number", kind)


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, dtypes.Scalar) else value


def _table() -> dict[Any, Callable[..., Any]]:
    """What is decomposed: composite operators, those without a lowering, and attention into the fused operator."""
    composite = {op: fn for op, fn in binding_exported.composite_decompositions().items() if not is_known(op)}
    attention = {torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention}
    # A composite operator is what its own kernel makes of it, as under torch.compile; the references are of prims.
    return {**decompositions(), **composite, **attention}


def _weights(program: ExportedProgram, specs: Sequence[InputSpec]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(name -> tensor, each once; other names of a tensor -> its name)."""
    found: dict[str, torch.Tensor] = {}
    same: dict[str, str] = {}
    first: dict[Any, str] = {}
    for spec in specs:
        if spec.kind is InputKind.CUSTOM_OBJ:
            raise ExportError(f"{spec.arg.name}: a script object in an exported program is not supported")
        if spec.kind not in _WEIGHTS:
            continue
        name = str(spec.target)
        value: Any = program.state_dict[name] if name in program.state_dict else program.constants[name]
        identity = (str(value.device), value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.device.type == "meta" or not value.numel():
            identity = (name,)
        if identity in first:
            same[name] = first[identity]
        else:
            first[identity] = name
            found[name] = value.detach()
    return found, same


def _limits(found: Any) -> tuple[int, int | None]:
    if found is None:
        return 0, None
    low, high = found.lower, found.upper
    return (
        int(low) if isinstance(low, (int, sympy.Integer)) else 0,
        int(high) if isinstance(high, (int, sympy.Integer)) else None,
    )


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """The values of a tensor of any device, in C order; may alias a CPU tensor.

    Raises:
      ExportError: the tensor has no values (device "meta", a fake tensor).
    """
    if value.device.type == "meta" or type(value).__name__ == "FakeTensor":
        raise ExportError("a weight has no values (it is a fake or meta tensor); export the model with real weights")
    on_host = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return transfer.numpy_view(on_host, dtypes.to_jax(value.dtype))
