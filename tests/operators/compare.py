"""Results of the device against results of the CPU, with float64 as the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Relative and absolute, by dtype of the result: torch.testing.assert_close's own.
TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}


class Mismatch(AssertionError):
    pass


def flat(x: Any) -> list[Any]:
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return [t for e in x for t in flat(e)]
    return [x]


def wide(t: torch.Tensor) -> torch.Tensor:
    t = t.detach().resolve_conj().resolve_neg()
    return t.to(torch.complex128 if t.dtype.is_complex else torch.float64)


def close(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """By element: within assert_close's tolerance of the expected one, or the same infinity, or NaN like it."""
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return got == expected
    return torch.isclose(wide(got), wide(expected), rtol, atol, equal_nan=True)


def near_judge(got: torch.Tensor, expected: torch.Tensor, judge: torch.Tensor) -> torch.Tensor:
    """By element: not further from the float64 result than the tolerance or than twice CPU's own error."""
    rtol, atol = TOLERANCE[expected.dtype]
    reference = wide(judge)
    ours, theirs = (wide(got) - reference).abs(), (wide(expected) - reference).abs()
    worst = theirs[theirs.isfinite()].max() if theirs.isfinite().any() else theirs.new_zeros(())
    near = ours <= torch.maximum(atol + rtol * reference.abs(), 2 * worst)
    limit = torch.finfo(expected.dtype).max
    # Beyond the type's range, the nearest values are its largest and infinity.
    over = (reference.abs() >= limit * 0.999) & (wide(got).abs() >= limit * 0.99)
    return near | over | (got.isnan() & judge.isnan()) | (wide(got) == reference)


def same_type(got: Any, expected: Any, where: str) -> None:
    if isinstance(expected, torch.Tensor) != isinstance(got, torch.Tensor):
        raise Mismatch(f"{where}: a {type(got).__name__} for a {type(expected).__name__}")
    if not isinstance(expected, torch.Tensor):
        return
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise Mismatch(f"{where}: {got.dtype}{list(got.shape)} for CPU's {expected.dtype}{list(expected.shape)}")
    if got.device.type != "tpu" and expected.device.type == "cpu" and got.numel() + got.ndim > 0:
        raise Mismatch(f"{where}: is on {got.device}")


def compare(got: Any, expected: Any, judge: Callable[[], Any] | None, *, values: bool = True) -> None:
    """Raise ``Mismatch`` unless device results equal CPU's.

    Args:
      judge: computes the results in float64 (asked for only where the two disagree), or None.
      values: compare values too, not only types and shapes.
    """
    ours, theirs = flat(got), flat(expected)
    if len(ours) != len(theirs):
        raise Mismatch(f"{len(ours)} results for CPU's {len(theirs)}")
    references: list[Any] | None = None
    for i, (g, e) in enumerate(zip(ours, theirs, strict=True)):
        where = f"result {i}"
        same_type(g, e, where)
        if not values:
            continue
        if not isinstance(e, torch.Tensor):
            if g != e and not (g != g and e != e):
                raise Mismatch(f"{where}: {g!r} for CPU's {e!r}")
            continue
        g = (g.to_dense() if g.layout != torch.strided else g).detach().cpu().resolve_conj().resolve_neg()
        e = (e.to_dense() if e.layout != torch.strided else e).detach().resolve_conj().resolve_neg()
        good = close(g, e)
        if bool(good.all()):
            continue
        if judge is not None and e.dtype in TOLERANCE:
            references = flat(judge()) if references is None else references
            if isinstance(references[i], torch.Tensor) and references[i].shape == e.shape:
                good = good | near_judge(g, e, references[i])
        if not bool(good.all()):
            raise Mismatch(f"{where}: {described(g, e, ~good)}")


def described(got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements of {expected.dtype}{list(expected.shape)}; "
        f"first at {list(at)}: {got[at].item()!r} for CPU's {expected[at].item()!r}"
    )


def significant_strides(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1) if t.numel() else ()


def same_strides(got: Any, expected: Any, meta: Callable[[], Any]) -> str | None:
    """What differs in strides from CPU's and from those of PyTorch's meta kernel, or None."""
    on_meta: list[Any] | None = None
    for i, (g, e) in enumerate(zip(flat(got), flat(expected), strict=True)):
        if not isinstance(e, torch.Tensor) or e.layout != torch.strided:
            continue
        if significant_strides(g) == significant_strides(e):
            continue
        if on_meta is None:
            try:
                on_meta = flat(meta())
            except Exception:
                on_meta = []
        at = on_meta[i] if i < len(on_meta) else None
        if isinstance(at, torch.Tensor) and significant_strides(g) == significant_strides(at):
            continue
        return f"result {i}: strides {g.stride()} for CPU's {e.stride()}, shape {list(e.shape)}"
    return None
