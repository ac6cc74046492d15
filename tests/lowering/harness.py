"""Check a lowering against PyTorch on CPU, with float64 as the judge. Needs no device.

    check("aten::add.Tensor", torch.randn(3), torch.randn(3))

runs the operator on CPU, runs the lowering under a 64-bit JAX trace on the same values, and compares shape,
dtype and values of every result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu.lowering import dtypes, registry

registry.load_all()

# What the product compiles small programs with: compiling takes most of the time of these tests.
OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}

# Units of rounding a result may be away from PyTorch's, relative and absolute, by dtype of the result.
TOLERANCE = {
    torch.float16: (1e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}


def find(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def to_array(t: torch.Tensor) -> jax.Array:
    t = t.detach().contiguous()
    if t.numel() == 0:
        return jnp.zeros(tuple(t.shape), dtypes.to_jax(t.dtype))
    raw = t.reshape(-1).view(torch.uint8).numpy() if t.ndim or t.numel() else t.numpy()
    return jnp.asarray(np.frombuffer(raw.tobytes(), dtypes.to_jax(t.dtype)).reshape(tuple(t.shape)))


def to_tensor(a: Any) -> torch.Tensor:
    n = np.ascontiguousarray(np.asarray(a))
    flat = torch.frombuffer(bytearray(n.tobytes()), dtype=torch.uint8) if n.size else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtypes.to_torch(n.dtype)).reshape(np.shape(a))


def run(name: str, *args: Any, key: Any = None, **kwargs: Any) -> list[torch.Tensor]:
    """The lowering's results as CPU tensors. Python numbers for Scalar parameters become traced operands."""
    op, lowering = find(name), registry.get(name)
    assert lowering is not None, f"{name}: no lowering"
    schema = op._schema
    bound = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    expected = _flat(op(*args, **kwargs))
    meta = tuple(registry.Meta(tuple(e.shape), e.dtype) for e in expected)
    types = {a.name: str(a.type) for a in schema.arguments}
    defaults = {a.name: a.default_value for a in schema.arguments}
    with jax.enable_x64(True):
        arrays: dict[str, Any] = {}
        static: dict[str, Any] = {}
        kinds: dict[str, type] = {}
        for n, v in bound.items():
            if isinstance(v, torch.Tensor):
                arrays[n] = to_array(v)
            elif isinstance(v, (list, tuple)) and any(isinstance(e, torch.Tensor) for e in v):
                arrays[n] = [None if e is None else to_array(e) for e in v]
            elif _is_operand(lowering, n, types[n], v, defaults[n]):
                kinds[n] = type(v)
                arrays[n] = jnp.asarray(v, _operand_dtype(v, expected, bound, lowering.wide))
            else:
                static[n] = v

        def traced(values: dict[str, Any], key: Any) -> Any:
            values = {n: dtypes.Scalar(v, kinds[n]) if n in kinds else v for n, v in values.items()}
            return registry.call(lowering, schema, {**static, **values}, meta, key)

        if lowering.rng and key is None:
            key = jax.random.key(0)
        results = jax.jit(traced).lower(arrays, key).compile(compiler_options=OPTIONS)(arrays, key)
        return [to_tensor(r) for r in results]


def check(name: str, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert that the lowering agrees with CPU; a larger difference is judged against float64."""
    op = find(name)
    expected, got = _flat(op(*args, **kwargs)), run(name, *args, **kwargs)
    assert len(expected) == len(got)
    for i, (e, g) in enumerate(zip(expected, got, strict=True)):
        assert g.dtype == e.dtype and g.shape == e.shape, (name, i, g.dtype, e.dtype, g.shape, e.shape)
        r, a = TOLERANCE.get(e.dtype, (0.0, 0.0))
        r, a = (r if rtol is None else rtol), (a if atol is None else atol)
        if torch.allclose(_wide(g), _wide(e), r, a, equal_nan=True):
            continue
        if e.dtype.is_floating_point or e.dtype.is_complex:
            judge = _flat(op(*_widen(args), **{k: _widen(v) for k, v in kwargs.items()}))[i]
            # Wrong only if it is further from the float64 result than the tolerance and than CPU is, doubled.
            wrong, cpu = (_wide(g) - _wide(judge)).abs(), (_wide(e) - _wide(judge)).abs()
            allowed = torch.maximum(a + r * _wide(judge).abs(), 2 * cpu)
            if bool((~(wrong > allowed)).all()) and bool((_wide(g).isnan() == _wide(e).isnan()).all()):
                continue
        torch.testing.assert_close(g, e, rtol=r, atol=a, equal_nan=True, msg=lambda m, i=i: f"{name} result {i}: {m}")


def _flat(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for e in x for t in _flat(e)]


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.dtype.is_complex else torch.float64)


def _widen(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return _wide(x) if x.dtype.is_floating_point or x.dtype.is_complex else x
    if isinstance(x, (list, tuple)):
        return type(x)(_widen(e) for e in x)
    return torch.float64 if x in (torch.float32, torch.bfloat16, torch.float16) else x


def _is_operand(lowering: registry.Lowering, name: str, kind: str, value: Any, default: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, complex)):
        return False
    if name in lowering.operands:
        return True
    if not kind.removeprefix("Optional[").startswith(("number", "float")) or name in lowering.static:
        return False
    return value != default and value not in lowering.specialize.get(name, ())


def _operand_dtype(value: Any, results: list[torch.Tensor], bound: dict[str, Any], wide: bool) -> Any:
    tensors = [
        t for v in bound.values() for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, torch.Tensor)
    ]
    wide = wide or any(t.dtype in (torch.float64, torch.complex128) for t in [*results, *tensors])
    if isinstance(value, complex):
        return np.complex128 if wide else np.complex64
    if isinstance(value, float):
        return np.float64 if wide else np.float32
    return np.int64
