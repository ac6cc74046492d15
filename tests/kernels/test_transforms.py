"""A differentiable JAX function under torch.func, in forward mode, under vmap; against the same in PyTorch on CPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.autograd.forward_ad as forward_ad

from torch_tpu.pallas import jax_op

func = torch.func
leaves = torch.utils._pytree.tree_leaves


@jax_op("test_transforms::wave", differentiable=True)
def wave(x: jax.Array, y: jax.Array | None = None, *, k: float = 1.0) -> jax.Array:
    return jnp.sin(x) * (x if y is None else y) * k


def _wave(x: Any, y: Any = None, *, k: float = 1.0) -> Any:
    return torch.sin(x) * (x if y is None else y) * k


def _dual(f: Any, x: Any, y: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, y))).tangent


def _behind_vmap(f: Any, x: Any, y: Any) -> Any:
    x = x.clone().requires_grad_()
    torch.vmap(f)(x).sum().backward()
    return x.grad


def _behind_jvp(f: Any, x: Any, y: Any) -> Any:
    x = x.clone().requires_grad_()
    func.jvp(f, (x,), (y,))[1].sum().backward()
    return x.grad


CALLS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x, y: func.grad(lambda a, b: f(a, b, k=2.0).sum(), argnums=(0, 1))(x, y),
    "hessian": lambda f, x, y: func.hessian(lambda a: f(a).sum())(x[0]),
    "jacfwd": lambda f, x, y: func.jacfwd(f)(x),
    "jacrev twice": lambda f, x, y: func.jacrev(func.jacrev(lambda a: f(a).sum()))(x[0]),
    "jacfwd twice": lambda f, x, y: func.jacfwd(func.jacfwd(f))(x[0]),
    "jacrev of jacfwd": lambda f, x, y: func.jacrev(func.jacfwd(f))(x[0]),
    "backward behind jvp": _behind_jvp,
    "jvp": lambda f, x, y: func.jvp(f, (x, y), (y, x)),
    "jvp of one": lambda f, x, y: func.jvp(lambda a: f(a, y, k=3.0), (x,), (y,)),
    "per sample": lambda f, x, y: torch.vmap(func.grad(lambda a, b: f(a, b).sum()), in_dims=(1, None))(x, y[:, 0]),
    "dual numbers": _dual,
    "backward behind vmap": _behind_vmap,
}


@pytest.mark.parametrize("name", CALLS)
def test_agrees_with_pytorch(name: str) -> None:
    x, y = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    got = leaves(CALLS[name](wave, x.to("tpu"), y.to("tpu")))
    for g, w in zip(got, leaves(CALLS[name](_wave, x.double(), y.double())), strict=True):
        torch.testing.assert_close(g.cpu().double(), w, rtol=1e-4, atol=1e-5)


def test_backward_behind_vmap_of_the_operator() -> None:
    x = torch.randn(3, 4, device="tpu", requires_grad=True)
    torch.vmap(lambda a: torch.ops.test_transforms.wave(a))(x).sum().backward()
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())


def test_lists_numbers_and_integers() -> None:
    @jax_op("test_transforms::taken", differentiable=True)
    def taken(xs: list[jax.Array], i: jax.Array) -> tuple[jax.Array, int, jax.Array]:
        return (xs[0] * xs[1])[i], 3, i + 1

    x, y = torch.randn(2, 3, device="tpu")
    i = torch.tensor([2, 0], device="tpu")
    of_x, of_y = func.grad(lambda a, b: taken([a, b], i)[0].sum(), argnums=(0, 1))(x, y)
    seen = torch.tensor([1.0, 0, 1], device="tpu")
    torch.testing.assert_close((of_x, of_y), (y * seen, x * seen))
    value, tangent = func.jvp(lambda a: taken([a, a], i)[0], (x,), (y,))
    torch.testing.assert_close((value, tangent), ((x * x)[i], (2 * x * y)[i]))
    a = x.clone().requires_grad_()
    out, number, following = taken([a, a], i)
    out.sum().backward()
    assert number == 3 and not following.requires_grad
    torch.testing.assert_close(a.grad, 2 * x * seen)


def test_compiled() -> None:
    x = torch.randn(3, 4, device="tpu")
    torch.testing.assert_close(torch.compile(lambda a: torch.vmap(wave)(a), fullgraph=True)(x), _wave(x))
    by_x = torch.compile(lambda a: func.grad(lambda b: wave(b).sum())(a) * 2, fullgraph=True)
    torch.testing.assert_close(by_x(x), 2 * (x.cos() * x + x.sin()))
