"""Sizes as JAX's symbolic dimensions: a graph's sympy expressions evaluated where its symbols have no number yet.

A graph that is traced for one call has numbers for its symbols; one that is exported for many sizes has
``jax.export``'s symbolic dimensions, which sympy knows nothing of.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax.core
import sympy
import torch
from jax import export as jax_export

from torch_tpu.compile.errors import GraphError

is_symbolic = jax_export.is_symbolic_dim

# PyTorch's functions of symbolic numbers that dimensions have another one for.
OF_SIZES: dict[Any, Callable[..., Any]] = {torch.sym_max: jax.core.max_dim, torch.sym_min: jax.core.min_dim}


def _quotient(a: Any, b: Any) -> Any:
    return a // b


_RULES: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: functools.reduce(operator.add, terms),
    "FloorDiv": _quotient,
    "CleanDiv": _quotient,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "Max": lambda *terms: functools.reduce(jax.core.max_dim, terms),
    "Min": lambda *terms: functools.reduce(jax.core.min_dim, terms),
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *terms: all(terms),
    "Or": lambda *terms: any(terms),
    "Not": operator.not_,
}


def any_symbolic(sizes: Mapping[Any, Any]) -> bool:
    return any(is_symbolic(v) for v in sizes.values())


def evaluate(expression: Any, sizes: Mapping[Any, Any]) -> Any:
    """The expression with its symbols replaced; an int, a bool, or a symbolic dimension.

    Raises:
      GraphError: no dimension can say it (a float made of sizes, a size that depends on values).
    """
    if isinstance(expression, (bool, int)):
        return expression
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if isinstance(expression, sympy.Symbol) and expression in sizes:
        found = sizes[expression]
        return found if is_symbolic(found) else int(found)
    if isinstance(expression, sympy.Mul):
        return _product(expression, sizes)
    if isinstance(expression, sympy.Pow) and isinstance(expression.exp, sympy.Integer) and expression.exp > 0:
        return evaluate(expression.base, sizes) ** int(expression.exp)
    rule = _RULES.get(type(expression).__name__)
    if rule is None:
        raise GraphError(f"the size {expression} cannot be a symbolic dimension")
    return rule(*(evaluate(a, sizes) for a in expression.args))


def _product(expression: sympy.Mul, sizes: Mapping[Any, Any]) -> Any:
    """A product; its rational factors divide without a rest, since sizes are integers."""
    above: Any = 1
    below = 1
    for factor in expression.args:
        if isinstance(factor, sympy.Rational):
            above, below = above * int(factor.p), below * int(factor.q)
        else:
            above = above * evaluate(factor, sizes)
    if below == 1:
        return above
    return above // below


def to_number(dimension: Any, numbers: Mapping[str, Any]) -> Any:
    """A JAX symbolic dimension as arithmetic on PyTorch's symbolic numbers, by the names of its variables.

    Its text is the notation that ``jax.export.symbolic_shape`` reads: sums of products, ``^``, and the functions below.
    """
    text = str(dimension).replace("^", "**")
    words = {
        "floordiv": operator.floordiv, "mod": operator.mod, "max": torch.sym_max, "min": torch.sym_min, **numbers,
    }  # fmt: skip
    return eval(compile(text, "<symbolic dimension>", "eval"), {"__builtins__": {}}, words)
