"""torch.func over device tensors."""

import pytest
import torch
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from device.support import both, check

CASES = {
    "vmap": lambda x: vmap(lambda v: (v * 2).sum())(x),
    "vmap nested": lambda x: vmap(vmap(lambda v: v.sin()))(x),
    "vmap in_dims": lambda x: vmap(torch.dot, in_dims=(0, 1))(x, x.t()),
    "vmap out_dims": lambda x: vmap(lambda v: v * 2, out_dims=1)(x),
    "vmap of matmul": lambda x: vmap(lambda v: x @ v)(x.t()[:, :, None].expand(3, 4, 3).transpose(1, 2)),
    "vmap chunks": lambda x: vmap(lambda v: v.exp().sum(), chunk_size=2)(x),
    "grad": lambda x: grad(lambda v: v.sin().sum())(x),
    "grad_and_value": lambda x: grad_and_value(lambda v: (v**2).sum())(x),
    "grad of grad": lambda x: grad(lambda v: grad(lambda u: (u**3).sum())(v).sum())(x),
    "per-sample grad": lambda x: vmap(grad(lambda v: (v.tanh() ** 2).sum()))(x),
    "vjp": lambda x: vjp(torch.sin, x)[1](torch.ones_like(x))[0],
    "jvp": lambda x: jvp(lambda v: v.cos() * v, (x,), (torch.ones_like(x),)),
    "jacrev": lambda x: jacrev(lambda v: v.sin())(x[0]),
    "jacfwd": lambda x: jacfwd(lambda v: v.sin() * v)(x[0]),
    "hessian": lambda x: hessian(lambda v: (v**3).sum())(x[0]),
    "linearize": lambda x: linearize(torch.sin, x)[1](torch.ones_like(x)),
    "vmap over indexing": lambda x: vmap(lambda v, i: v[i])(x, torch.tensor([0, 2, 1, 0], device=x.device)[: len(x)]),
    "vmap softmax": lambda x: vmap(lambda v: torch.softmax(v, 0))(x),
    "vmap of layer_norm": lambda x: vmap(lambda v: torch.nn.functional.layer_norm(v, v.shape))(x),
}


@pytest.mark.parametrize("name", [n for n in CASES if n != "vmap of matmul"])
def test_as_on_cpu(name):
    x, y = both(3, 4)
    check(CASES[name](y), CASES[name](x), rtol=1e-4, atol=1e-5)


def test_functional_call_and_ensembles():
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 2).to("tpu") for _ in range(4)]
    params, buffers = stack_module_state(models)
    x = torch.ones(5, 3, device="tpu")
    base = torch.nn.Linear(3, 2, device="meta")
    out = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers)
    for o, m in zip(out, models):
        torch.testing.assert_close(o.cpu(), m(x).cpu())
    one = functional_call(models[0], {"weight": torch.zeros(2, 3, device="tpu")}, (x,))
    assert torch.equal(one[0].cpu(), models[0].bias.cpu())


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_vmap_randomness(randomness):
    x = torch.ones(3, 50, device="tpu")
    out = vmap(lambda v: torch.nn.functional.dropout(v, 0.5), randomness=randomness)(x)
    assert torch.equal(out[0].cpu(), out[1].cpu()) == (randomness == "same")
