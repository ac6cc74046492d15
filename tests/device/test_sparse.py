"""Sparse COO and CSR tensors on the device, and clear errors for what there is not."""

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore")

INDICES = torch.tensor([[0, 1, 1, 2, 0], [2, 0, 0, 1, 2]])
VALUES = torch.tensor([1.0, 2, 3, 4, 5])


def coo(device, values=VALUES):
    return torch.sparse_coo_tensor(INDICES, values, (3, 3), device=device)


def dense(device, *shape):
    return torch.randn(shape or (3, 3), generator=torch.Generator().manual_seed(0)).to(device)


def csr(device):
    return dense(device).relu().to_sparse_csr()


def hybrid(device):
    return torch.sparse_coo_tensor(INDICES[:1], torch.arange(10.0).reshape(5, 2), (3, 2), device=device)


def check(make):
    theirs, ours = make("cpu"), make("tpu")
    assert ours.device.type == "tpu" and ours.layout == theirs.layout
    if theirs.layout != torch.strided:
        if theirs.layout == torch.sparse_coo:
            assert ours.is_coalesced() == theirs.is_coalesced()
        theirs, ours = theirs.to_dense(), ours.to_dense()
    torch.testing.assert_close(ours.cpu(), theirs)


COO = {
    "made": coo,
    "coalesce": lambda d: coo(d).coalesce(),
    "indices": lambda d: coo(d).coalesce().indices(),
    "values": lambda d: coo(d).coalesce().values(),
    "to_dense": lambda d: coo(d).to_dense(),
    "of bool": lambda d: coo(d, VALUES > 2).coalesce(),
    "of bool, dense": lambda d: coo(d, VALUES > 2).to_dense(),
    "hybrid": lambda d: hybrid(d).coalesce(),
    "hybrid, dense": lambda d: hybrid(d).to_dense(),
    "to_sparse": lambda d: dense(d).relu().to_sparse(),
    "to_sparse of one dimension": lambda d: dense(d).relu().to_sparse(1),
    "from the host": lambda d: coo("cpu").to(d),
    "zeros": lambda d: torch.zeros(3, 3, layout=torch.sparse_coo, device=d),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "clone": lambda d: coo(d).clone(),
    "double": lambda d: coo(d).double(),
    "copy_": lambda d: torch.zeros(3, 3, layout=torch.sparse_coo, device=d).copy_(coo(d)),
    "zero_": lambda d: coo(d).zero_(),
    "transpose": lambda d: coo(d).transpose(0, 1).coalesce(),
    "mm": lambda d: coo(d) @ dense(d, 3, 4),
    "mm of dense and sparse": lambda d: dense(d) @ coo(d),
    "mv": lambda d: coo(d) @ dense(d)[0],
    "addmm": lambda d: torch.addmm(dense(d, 3, 4), coo(d), dense(d, 3, 4), beta=2, alpha=3),
    "add": lambda d: coo(d) + coo(d),
    "add of coalesced ones": lambda d: coo(d).coalesce() + coo(d).coalesce(),
    "add to dense": lambda d: dense(d) + coo(d),
    "add_ to dense": lambda d: dense(d).add_(coo(d), alpha=0.5),
    "add_": lambda d: coo(d).add_(coo(d)),
    "sub": lambda d: coo(d) - coo(d),
    "mul": lambda d: coo(d) * 2,
    "mul_": lambda d: coo(d).mul_(2),
    "mul by dense": lambda d: coo(d) * dense(d),
    "div": lambda d: coo(d) / 2,
    "neg": lambda d: -coo(d),
    "abs_": lambda d: (-coo(d)).coalesce().abs_(),
    "sqrt": lambda d: coo(d).sqrt(),
    "sum": lambda d: coo(d).sum(),
    "sparse_mask": lambda d: dense(d).sparse_mask(coo(d).coalesce()),
    "product of sparse ones, on the host": lambda d: torch.sparse.mm(coo(d), coo(d)),
    "softmax, on the host": lambda d: torch.sparse.softmax(coo(d), 1),
}


@pytest.mark.parametrize("name", COO)
def test_coo(name):
    check(COO[name])


CSR = {
    "made": csr,
    "crow_indices": lambda d: csr(d).crow_indices(),
    "col_indices": lambda d: csr(d).col_indices(),
    "of parts": lambda d: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2], (2, 2), device=d),
    "from the host": lambda d: csr("cpu").to(d),
    "clone": lambda d: csr(d).clone(),
    "mm": lambda d: csr(d) @ dense(d, 3, 4),
    "addmm": lambda d: torch.addmm(dense(d, 3, 4), csr(d), dense(d, 3, 4)),
    "sampled_addmm": lambda d: torch.sparse.sampled_addmm(csr(d), dense(d, 3, 4), dense(d, 4, 3), beta=0.5, alpha=2),
    "sum": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 4), "sum"),
    "mean": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 4), "mean"),
    "amax": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 4), "amax"),
    "amin": lambda d: torch.sparse.mm(csr(d), dense(d, 3, 4), "amin"),
    "sampled_addmm with out": lambda d: torch.sparse.sampled_addmm(
        csr(d), dense(d, 3, 4), dense(d, 4, 3), out=torch.zeros_like(csr(d))
    ),
    "neg": lambda d: -csr(d),
    "sqrt": lambda d: csr(d).sqrt(),
    "abs_": lambda d: csr(d).abs_(),
    "fill_": lambda d: csr(d).fill_(3),
    "sum of all": lambda d: csr(d).sum(),
    "conj_physical": lambda d: csr(d).to(torch.complex64).conj_physical(),
    "mul, on the host": lambda d: csr(d) * 2,
    "csc, on the host": lambda d: dense(d).to_sparse_csc(),
    "bsr, on the host": lambda d: dense(d, 4, 4).to_sparse_bsr((2, 2)),
}


@pytest.mark.parametrize("name", CSR)
def test_csr(name):
    check(CSR[name])


def _embedding(device, optimizer):
    module = torch.nn.Embedding(5, 3, sparse=True)
    module.weight.data.copy_(dense("cpu", 5, 3))
    module = module.to(device)
    step = optimizer(module.parameters())
    for _ in range(2):
        step.zero_grad()
        (module(torch.tensor([0, 1, 1, 4], device=device)) ** 2).sum().backward()
        step.step()
    return module.weight.detach()


def test_optimizers_of_sparse_gradients():
    check(lambda d: _embedding(d, lambda p: torch.optim.SGD(p, lr=0.1)))
    check(lambda d: _embedding(d, lambda p: torch.optim.SparseAdam(list(p), lr=0.1)))
    check(lambda d: _embedding(d, lambda p: torch.optim.Adagrad(p, lr=0.1)))


def test_gradients():
    def of_dense(d):
        x, y = coo(d).requires_grad_(), dense(d, 3, 4).requires_grad_()
        torch.sparse.mm(x, y).sum().backward()
        return y.grad

    def of_sparse(d):
        x = coo(d).coalesce().detach().requires_grad_()
        torch.sparse.mm(x, dense(d, 3, 4)).sum().backward()
        return x.grad.to_dense()

    def through(d):
        x = dense(d).requires_grad_()
        (x.to_sparse().to_dense() * dense(d)).sum().backward()
        return x.grad

    for make in (of_dense, of_sparse, through):
        check(make)


def test_prints():
    assert "nnz=5" in str(coo("tpu")) and "tpu:0" in str(coo("tpu"))
    assert "crow_indices" in str(csr("tpu"))


UNSUPPORTED = {
    "cumsum": lambda: coo("tpu").cumsum(0),
    "exp": lambda: coo("tpu").exp(),
    "exp of csr": lambda: csr("tpu").exp(),
    "inv": lambda: torch.linalg.inv(coo("tpu")),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_says_what_to_do(name):
    with pytest.raises(NotImplementedError, match=r"not supported for sparse tensors on tpu; use .to_dense\(\)"):
        UNSUPPORTED[name]()


def test_nested_tensors_of_the_old_layout_are_refused():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="tpu")
    with pytest.raises(NotImplementedError, match=r"nested tensors of layout torch.strided are not supported on tpu"):
        nested + 1
