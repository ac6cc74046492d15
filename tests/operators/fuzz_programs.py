"""Random programs of a few lines: tensors of odd shapes and strides, views, in-place writes, chains of operators.

A program is Python source, a statement a line, that makes tensors by ``make(shape, dtype, seed)`` and keeps each
result in a variable. It is drawn line by line while it runs on CPU, so that lines fit the tensors that they use.
Values are small quarters: most operators give exact results for them, and those whose result jumps (``floor``,
comparisons, ``sort``) only see tensors that are exact.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import torch

FLOATS = ("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16")
INTS = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8")
COMPLEX = ("torch.complex64", "torch.complex128")
DTYPES = (*FLOATS, *FLOATS[:1] * 3, *INTS, "torch.bool", "torch.bool", *COMPLEX)
_DIMS = (0, 1, 1, 2, 2, 3, 3, 4)


def maker(device: str) -> Callable[..., torch.Tensor]:
    def make(shape: list[int], dtype: torch.dtype, seed: int, special: bool = False) -> torch.Tensor:
        """Quarters between -2 and 2 in an order that looks random; with ``special``, NaN, infinities and -0 too."""
        n = torch.Size(shape).numel()
        steps = (torch.arange(n) * 7919 + seed * 104729) % 8191 % 17 - 8
        if dtype == torch.bool:
            values = steps % 2 == 0
        elif dtype.is_complex:
            values = torch.complex(steps.double() / 4, steps.flip(0).double() / 2)
        elif dtype.is_floating_point:
            values = steps.double() / 4
            if special:
                values[::3], values[1::5], values[2::7] = float("nan"), float("-inf"), -0.0
        else:
            values = steps.abs() if dtype == torch.uint8 else steps
        return values.to(dtype).view(shape).to(device)

    return make


class Draft:
    """A program being drawn: its lines, the CPU's tensors by name, and which of them are exact."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "make": maker("cpu")}
        self.exact: dict[str, bool] = {}

    def names(self) -> list[str]:
        return list(self.exact)

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda t: True, *, exact: bool = False) -> str | None:
        found = [n for n in self.exact if fits(self.scope[n]) and (self.exact[n] or not exact)]
        # The newest ones more often, so that lines build on each other.
        return self.rng.choice(found[-2:] if self.rng.random() < 0.5 else found) if found else None

    def tensor(self, name: str) -> torch.Tensor:
        return self.scope[name]

    def dim(self, name: str) -> int:
        n = max(self.tensor(name).ndim, 1)
        return self.rng.randint(-n, n - 1)

    def number(self, name: str) -> str:
        """A Python number; one that keeps integers integers most of the time."""
        kinds = ["-2", "3", "0", "1", "True", "0.5", "-1.25"]
        return self.rng.choice([*kinds, "1.5j"] if self.tensor(name).is_complex() else kinds)

    def shape(self, most: int = 3) -> list[int]:
        return [self.rng.choice(_DIMS) for _ in range(self.rng.randint(0, most))]

    def fresh(self, shape: list[int], dtype: str = "") -> str:
        dtype = dtype or self.rng.choice(DTYPES)
        special = ", True" if dtype in FLOATS and self.rng.random() < 0.1 else ""
        return f"make({shape}, {dtype}, {self.rng.randint(0, 9)}{special})"

    def fitting(self, name: str, dtype: str = "") -> str:
        """A new tensor that broadcasts with this one."""
        shape = [1 if self.rng.random() < 0.3 else n for n in self.tensor(name).shape]
        return self.fresh(shape[self.rng.randint(0, len(shape)) :] if self.rng.random() < 0.3 else shape, dtype)

    def other(self, name: str, dtype: str = "") -> str:
        """Another operand for this one: a tensor that is there, or one that fits."""
        t = self.tensor(name)
        there = self.pick(lambda o: (o.shape == t.shape or o.ndim == 0) and (not dtype or str(o.dtype) == dtype))
        return there if there and self.rng.random() < 0.4 else self.fitting(name, dtype)

    def operands(self, expression: str) -> list[str]:
        return [n for n in dict.fromkeys(re.findall(r"\bt\d+\b", expression)) if n in self.exact]

    def _may_be_taken(self, expression: str) -> bool:
        """CPU has fewer kernels for half types than other devices, and does not look at types where nothing is."""
        half = re.search(r"torch\.b?float16", expression)
        there = [self.tensor(n) for n in self.operands(expression)]
        empty = re.search(r"make\(\[[^]]*\b0\b", expression) or any(t.numel() == 0 for t in there)
        return bool(half or empty or any(t.dtype in (torch.float16, torch.bfloat16) for t in there))

    def add(self, expression: str, *, exact: bool = True, writes: str | None = None) -> str | None:
        """Run a line on CPU; what raises stays in the program, as a line that has to raise. Returns why not added."""
        exact = exact and all(self.exact[n] for n in self.operands(expression))
        name = f"t{len(self.lines)}"
        line = expression if writes and expression.startswith(writes + "[") else f"{name} = {expression}"
        try:
            exec(line, self.scope)
        except (ZeroDivisionError, MemoryError):
            return "depends on values"
        except Exception as e:
            # Storages of results whose length depends on values (unique, masked_select) are longer on the device.
            beyond = "out of bounds for storage" in str(e)
            if beyond or "ZeroDivision" in str(e) or "non-negative" in str(e) or self._may_be_taken(expression):
                return "depends on values"
            self.lines.append(f"raises({type(e).__name__}, lambda: {expression})")
            return None
        result = self.scope.get(name)
        if isinstance(result, torch.Tensor) and result.dtype == torch.complex32:  # XLA has no such type: a named gap
            del self.scope[name]
            return "no type of XLA's"
        self.lines.append(line)
        if isinstance(result, torch.Tensor):
            self.exact[name] = exact
        if writes and not exact:
            at = self.tensor(writes).untyped_storage().data_ptr()
            for n in self.exact:
                if self.tensor(n).untyped_storage().data_ptr() == at:
                    self.exact[n] = False
        return None


# What lines are drawn from: each returns the expression, whether it is exact, and what it writes to -----------------

Drawn = tuple[str, bool, str | None]


def _views(d: Draft) -> Drawn | None:
    a = d.pick()
    if a is None:
        return None
    t, rng = d.tensor(a), d.rng
    n = max(t.ndim, 1)
    start, size = rng.randint(-2, 3), rng.randint(0, 4)
    ranks = rng.sample(range(t.ndim), t.ndim)
    forms = [
        f"{a}.transpose({d.dim(a)}, {d.dim(a)})",
        f"{a}.permute({[r - t.ndim if rng.random() < 0.3 else r for r in ranks]})",
        f"{a}.unsqueeze({rng.randint(-n - 1, n)})",
        f"{a}.squeeze({d.dim(a)})",
        f"{a}.squeeze()",
        f"{a}.expand({[rng.choice((2, 3)), *(-1 if s != 1 else rng.choice((1, 2, 3)) for s in t.shape)]})",
        f"{a}.reshape(-1)" if t.numel() else f"{a}.reshape({list(t.shape[::-1])})",
        f"{a}.reshape({[*t.shape, 1][::-1]})",
        f"{a}.view({[1, *t.shape]})",
        f"{a}.flatten()",
        f"{a}.movedim({d.dim(a)}, {d.dim(a)})",
        f"{a}.detach()",
        f"{a}[None, ..., None]",
        f"{a}.mT" if t.ndim >= 2 else f"{a}.unsqueeze(0).mT" if t.ndim else f"{a}.view(1, 1).mT",
    ]
    if t.ndim:
        forms += [
            f"{a}[{start}:{start + size}:{rng.randint(1, 3)}]",
            f"{a}[..., {rng.randint(0, 1)}::{rng.randint(1, 3)}]",
            f"{a}.select({d.dim(a)}, {rng.randint(-2, 2)})",
            f"{a}.narrow({d.dim(a)}, {rng.randint(0, 1)}, {rng.randint(0, 2)})",
            f"{a}.chunk({rng.randint(1, 3)}, {d.dim(a)})[-1]",
            f"{a}.split({rng.randint(1, 3)}, {d.dim(a)})[0]",
            f"{a}.unfold({d.dim(a)}, {rng.randint(1, 2)}, {rng.randint(1, 2)})",
            f"{a}.unbind({d.dim(a)})[0]",
            f"{a}.as_strided([2, 2], [1, 1], {t.storage_offset()})",
        ]
    if t.ndim >= 2:
        forms += [f"{a}.diagonal({rng.randint(-1, 1)}, -1, 0)", f"{a}.flatten(-2)", f"{a}.t()"]
    if t.is_complex():
        forms += [f"{a}.real", f"{a}.imag", f"torch.view_as_real({a})", f"{a}.conj()"] * 3
    if t.dtype == torch.float32:
        forms.append(f"{a}.view(torch.int32)" if d.exact[a] else f"{a}.view_as({a})")
    return rng.choice(forms), True, None


_EXACT_UNARY = (
    "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "relu", "square", "logical_not", "bitwise_not", "isnan",
    "isfinite", "isinf", "signbit", "frac", "clone", "contiguous", "tril", "triu", "nan_to_num", "positive", "sgn",
    "conj_physical", "flip", "fliplr", "isreal", "erfinv_", "angle",
)  # fmt: skip
_JUMPS = frozenset({"sign", "floor", "ceil", "round", "trunc", "frac", "sgn", "isreal", "angle", "signbit", "relu"})
_INEXACT_UNARY = (
    "exp", "log", "sin", "cos", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "erf", "log1p", "expm1", "atan",
    "sinh", "asinh", "exp2", "log2", "logit", "sinc", "tan", "erfc",
)  # fmt: skip
_ACTIVATIONS = ("gelu", "silu", "softplus", "elu", "leaky_relu", "hardswish", "mish", "logsigmoid", "hardtanh")


def _unary(d: Draft) -> Drawn | None:
    rng = d.rng
    name = rng.choice(_EXACT_UNARY)
    if rng.random() < 0.3:
        a = d.pick()
        if a is None:
            return None
        if rng.random() < 0.2:
            return f"F.{rng.choice(_ACTIVATIONS)}({a})", False, None
        return f"torch.{rng.choice(_INEXACT_UNARY)}({a})", False, None
    a = d.pick(exact=name in _JUMPS)
    if a is None or name == "erfinv_":
        return None
    if name == "flip":
        return f"{a}.flip([{d.dim(a)}])" if d.tensor(a).ndim else f"{a}.flip([])", True, None
    return (f"{a}.{name}()" if name in ("contiguous",) else f"torch.{name}({a})"), name != "angle", None


def _converted(d: Draft) -> Drawn | None:
    """``.to`` of another type: into integers only what they can hold, where C++ leaves the rest undefined."""
    target = d.rng.choice(DTYPES)
    integral = target in INTS

    def fits(t: torch.Tensor) -> bool:
        if not integral or t.dtype == torch.bool or not t.numel():
            return True
        real = t.real.double() if t.is_complex() else t.double()
        inside = bool((real.abs() < 100).all())
        return inside and (target != "torch.uint8" or bool((real >= 0).all()))

    a = d.pick(fits, exact=integral or target == "torch.bool")
    return None if a is None else (f"{a}.to({target})", True, None)


_ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift")
_INEXACT_BINARY = ("div", "hypot", "atan2", "logaddexp", "xlogy", "pow", "true_divide")
_DIVISIONS = ("fmod", "remainder", "floor_divide", "copysign", "nextafter", "heaviside", "gcd", "lcm")


def _binary(d: Draft) -> Drawn | None:
    rng = d.rng
    kind = rng.random()
    if kind < 0.4:
        a = d.pick()
        if a is None:
            return None
        b = d.number(a) if rng.random() < 0.3 else d.other(a)
        name = rng.choice(_ARITHMETIC[:3] if not b.startswith(("t", "make")) or b == "True" else _ARITHMETIC)
        alpha = f", alpha={rng.choice((2, -1))}" if name in ("add", "sub") and rng.random() < 0.2 else ""
        return f"torch.{name}({a}, {b}{alpha})", True, None
    exact = kind < 0.8
    a = d.pick(exact=exact)
    if a is None:
        return None
    b = d.other(a)
    if exact and b in d.exact and not d.exact[b]:
        return None
    if kind < 0.6:
        return f"torch.{rng.choice(_COMPARE)}({a}, {b})", True, None
    if kind < 0.7:
        b = d.other(a, rng.choice(("torch.uint8", "torch.bool")))
        return (f"torch.{rng.choice(_BITS)}({a}, {b})", True, None) if b not in d.exact or d.exact[b] else None
    if kind < 0.8:
        return f"torch.{rng.choice(_DIVISIONS)}({a}, {b})", True, None
    return f"torch.{rng.choice(_INEXACT_BINARY)}({a}, {b})", False, None


def _ternary(d: Draft) -> Drawn | None:
    a = d.pick()
    if a is None:
        return None
    b, c, rng = d.other(a), d.other(a), d.rng
    forms = [
        (f"torch.where({d.fitting(a, 'torch.bool')}, {a}, {b})", True),
        (f"torch.where({d.fitting(a, 'torch.bool')}, {a}, {d.number(a)})", True),
        (f"torch.lerp({a}, {b}, 0.25)", False),
        (f"torch.addcmul({a}, {b}, {c}, value={rng.choice((1, 2))})", False),
        (f"torch.clamp({a}, -1, {rng.choice((1, 1.5))})", True),
        (f"torch.clamp({a}, min={b})", True),
        (f"{a}.masked_fill({d.fitting(a, 'torch.bool')}, {rng.choice((1, 2))})", True),
    ]
    return (*rng.choice(forms), None)


_SUMS = ("sum", "mean", "prod", "nansum", "logsumexp", "cumsum", "cumprod", "var", "std", "norm", "softmax",
         "log_softmax", "logcumsumexp")  # fmt: skip
_CHOICES = ("amax", "amin", "max", "min", "any", "all", "argmax", "argmin", "count_nonzero", "cummax", "sort", "topk",
            "median", "aminmax")  # fmt: skip


def _reduced(d: Draft) -> Drawn | None:
    rng = d.rng
    if rng.random() < 0.5:
        a, name = d.pick(), rng.choice(_SUMS)
        if a is None:
            return None
        keep = rng.choice(("", ", keepdim=True"))
        if name in ("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"):
            return f"torch.{name}({a}, {d.dim(a)})", name in ("cumsum",), None
        if name in ("sum", "mean", "prod", "nansum") and rng.random() < 0.3:
            return f"torch.{name}({a})", name == "sum", None
        if name in ("norm", "var", "std"):
            return f"torch.{name}({a}, dim={d.dim(a)}{keep})", False, None
        dims = f"[{d.dim(a)}]" if name in ("sum", "mean", "nansum", "logsumexp") and rng.random() < 0.4 else d.dim(a)
        return f"torch.{name}({a}, {dims}{keep})", name == "sum", None
    a, name = d.pick(exact=True), rng.choice(_CHOICES)
    if a is None:
        return None
    keep = rng.choice(("", ", keepdim=True"))
    form = {
        "count_nonzero": f"torch.count_nonzero({a}, {d.dim(a)})",
        "cummax": f"torch.cummax({a}, {d.dim(a)})[0]",
        "sort": f"torch.sort({a}, dim={d.dim(a)}, stable=True, descending={rng.random() < 0.5})[{rng.randint(0, 1)}]",
        "topk": f"torch.topk({a}, 1, {d.dim(a)})[0]",
        "median": f"torch.median({a}, {d.dim(a)}{keep})[0]",
        "aminmax": f"torch.aminmax({a}, dim={d.dim(a)}{keep}).max",
        "max": f"torch.max({a}, {d.dim(a)}{keep})[{rng.randint(0, 1)}]",
        "min": f"torch.min({a}, {d.dim(a)}{keep})[0]" if rng.random() < 0.7 else f"torch.min({a})",
    }
    return form.get(name, f"torch.{name}({a}, {d.dim(a)}{keep})"), True, None


def _indexed(d: Draft) -> Drawn | None:
    a = d.pick(lambda t: t.ndim > 0)
    if a is None:
        return None
    t, rng, dim = d.tensor(a), d.rng, d.dim(a)
    at = f"(make([{rng.randint(0, 3)}], torch.uint8, {rng.randint(0, 9)}).long() % {max(t.shape[dim], 1)})"
    places = f"(make({list(t.shape)}, torch.uint8, {rng.randint(0, 9)}).long() % {max(t.shape[dim], 1)})"
    forms = [
        f"{a}.roll({rng.randint(-2, 2)}, {dim})",
        f"{a}.repeat({[rng.randint(0, 2) for _ in t.shape]})",
        f"{a}.repeat_interleave(2, {dim})",
        f"torch.cat([{a}, {a}], {dim})",
        f"torch.cat([{a}, {d.fresh(list(t.shape))}], {dim})",
        f"torch.stack([{a}, {d.fresh(list(t.shape), str(t.dtype))}], {dim})",
        f"{a}.gather({dim}, {places})",
        f"{a}.scatter({dim}, {places}, 1)",
        f"{a}[make({list(t.shape)}, torch.bool, {rng.randint(0, 9)})]",
        f"F.pad({a}, [{rng.randint(-1, 2)}, {rng.randint(0, 2)}])",
        f"torch.diff({a}, dim={dim})",
        f"torch.tile({a}, (2,))",
        f"{a}.diag_embed()",
    ]
    if t.shape[dim]:
        forms += [f"{a}.index_select({dim}, {at})", f"{a}[..., {at.replace(str(t.shape[dim]) + ')', str(t.shape[-1]) + ')')}]" if t.shape[-1] else f"{a}.nonzero()", f"torch.take_along_dim({a}, {places}, {dim})"]  # fmt: skip # noqa: E501
    if d.exact[a]:
        forms += [f"{a}.nonzero()", f"{a}.unique()", f"torch.searchsorted({a}.sort()[0], {a})"]
    return rng.choice(forms), True, None


def _products(d: Draft) -> Drawn | None:
    a = d.pick(lambda t: t.ndim >= 1)
    if a is None:
        return None
    t, rng = d.tensor(a), d.rng
    k, n = t.shape[-1], rng.choice(_DIMS)
    dtype = str(t.dtype)
    forms = [f"torch.matmul({a}, {d.fresh([k], dtype)})", f"torch.matmul({a}, {d.fresh([k, n], dtype)})",
             f"F.linear({a}, {d.fresh([n, k], dtype)})", f"torch.tensordot({a}, {d.fresh([k, n], dtype)}, 1)",
             f"torch.einsum('...k,kn->n...', {a}, {d.fresh([k, n], dtype)})"]  # fmt: skip
    if t.ndim == 2:
        forms.append(f"torch.addmm({d.fresh([n], dtype)}, {a}, {d.fresh([k, n], dtype)}, beta={rng.choice((0, 1, 2))})")
    if t.ndim == 3:
        forms.append(f"torch.bmm({a}, {d.fresh([t.shape[0], k, n], dtype)})")
    return rng.choice(forms), True, None


def overlaps(t: torch.Tensor) -> bool:
    """Whether two elements lie at one place: writing to it is undefined."""
    if t.numel() < 2:
        return False
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return int(torch.arange(reach).as_strided(t.shape, t.stride()).unique().numel()) != t.numel()


def _written(d: Draft) -> Drawn | None:
    a = d.pick(lambda t: not overlaps(t))
    if a is None:
        return None
    t, rng = d.tensor(a), d.rng
    b = d.fitting(a)
    shares = [n for n in d.names() if d.tensor(n).shape == t.shape]
    clone = f"{rng.choice(shares)}.clone()"
    mask = d.fitting(a, "torch.bool")
    forms = [
        (f"{a}.add_({b})", True), (f"{a}.sub_({d.number(a)})", True), (f"{a}.mul_({b})", True),
        (f"{a}.mul_({d.number(a)})", True), (f"{a}.add_({clone})", True), (f"{a}.zero_()", True),
        (f"{a}.fill_({rng.choice((1, 2))})", True), (f"{a}.neg_()", True), (f"{a}.abs_()", True),
        (f"{a}.clamp_(-1, 1)", True), (f"{a}.masked_fill_({mask}, 1)", True), (f"{a}.div_({b})", False),
        (f"{a}.exp_()", False), (f"{a}.tril_()", True), (f"{a}.add_({a})", True), (f"{a}.mul_({a})", True),
        (f"{a}.logical_not_()", True), (f"{a}.cumsum_({d.dim(a)})", True), (f"{a}.square_()", True),
        (f"torch.add({d.fitting(a)}, {b}, out={a})", True),
        (f"torch.mul({clone}, 2, out={a})", True),
        (f"{a}.transpose_({d.dim(a)}, {d.dim(a)})", True), (f"{a}.unsqueeze_({d.dim(a)})", True),
        (f"{a}.swapaxes(0, -1).add_(1)", True) if t.ndim else (f"{a}.add_(1)", True),
    ]  # fmt: skip
    if t.ndim:
        sub = rng.choice(("0:1", "::2", "1:", "..., :1", "..., None, ::2", "-1:"))
        dim = d.dim(a)
        at = f"(make([2], torch.uint8, {rng.randint(0, 9)}).long() % {max(t.shape[dim], 1)})"
        forms += [(f"{a}[{sub}] = {rng.choice((1, 2))}", True), (f"{a}[{sub}] = {d.fresh([1])}", True),
                  (f"{a}[{sub}].mul_(2)", True), (f"{a}[make({list(t.shape)}, torch.bool, 3)] = 1", True)]  # fmt: skip
        if t.shape[dim]:
            forms += [(f"{a}.index_fill_({dim}, {at}, 1)", True)]
    # A copy between types whose values do not fit is undefined: only what every type holds.
    if t.dtype != torch.bool and str(t.dtype) not in INTS:
        forms += [(f"{a}.copy_({b})", True), (f"{a}.copy_({clone})", True)]
    expression, exact = rng.choice(forms)
    return expression, exact, a


KINDS = (_views, _views, _views, _unary, _converted, _binary, _binary, _ternary, _reduced, _indexed, _products,
         _written, _written, _written)  # fmt: skip


def draw(rng: random.Random) -> list[str]:
    """The lines of a program of one to three tensors and three to six operations."""
    d = Draft(rng)
    for _ in range(rng.randint(1, 2)):
        d.add(d.fresh(d.shape()))
    wanted = len(d.lines) + rng.randint(3, 6)
    for _ in range(4 * wanted):
        drawn = rng.choice(KINDS)(d)
        if drawn is not None and _small(d):
            d.add(drawn[0], exact=drawn[1], writes=drawn[2])
        if len(d.lines) >= wanted:
            break
    return d.lines


def _small(d: Draft) -> bool:
    return all(d.tensor(n).numel() <= 4096 and d.tensor(n).ndim <= 6 for n in d.names())
