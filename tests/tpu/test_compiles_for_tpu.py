"""The lowerings of training and generation compile for a real TPU, by libtpu, with no TPU attached."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
import tpu_compile  # sets what libtpu reads, before it is loaded
from harness import find

from torch_tpu.lowering import dtypes, registry
from torch_tpu.runtime import programs

F, B, I = torch.float32, torch.bfloat16, torch.int64  # noqa: E741


def t(*shape: int, dtype: torch.dtype = F) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture(scope="module")
def place() -> jax.sharding.Sharding:
    return tpu_compile.place("v6e:2x2")


CONV = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, transposed, output padding, groups

CASES = {
    "mm": ("aten::mm", t(256, 512), t(512, 128)),
    "mm bf16": ("aten::mm", t(256, 512, dtype=B), t(512, 128, dtype=B)),
    "mm int64": ("aten::mm", t(64, 64, dtype=I), t(64, 64, dtype=I)),
    "addmm": ("aten::addmm", t(128), t(256, 512), t(512, 128)),
    "bmm": ("aten::bmm", t(4, 64, 32), t(4, 32, 64)),
    "add float64": ("aten::add.Tensor", t(16, dtype=torch.float64), t(16, dtype=torch.float64)),
    "gelu": ("aten::gelu", t(256, 512, dtype=B)),
    "silu": ("aten::silu", t(256, 512)),
    "softmax": ("aten::_softmax", t(16, 128), -1, False),
    "log_softmax backward": ("aten::_log_softmax_backward_data", t(16, 128), t(16, 128), -1, F),
    "layer_norm": ("aten::native_layer_norm", t(8, 64, 256), [256], t(256), t(256), 1e-5),
    "group_norm": ("aten::native_group_norm", t(2, 32, 16, 16), t(32), t(32), 2, 32, 256, 8, 1e-5),
    "convolution": (
        "aten::convolution",
        t(2, 8, 32, 32),
        t(16, 8, 3, 3),
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
    ),
    "max_pool2d": ("aten::max_pool2d_with_indices", t(2, 8, 32, 32), [2, 2], [2, 2]),
    "embedding": ("aten::embedding", t(1000, 64), t(4, 16, dtype=I)),
    "embedding backward": ("aten::embedding_dense_backward", t(4, 16, 64), t(4, 16, dtype=I), 1000, -1, False),
    "gather": ("aten::gather", t(16, 32), 1, t(16, 8, dtype=I)),
    "index": ("aten::index.Tensor", t(16, 32), [t(4, dtype=I)]),
    "index_put": ("aten::index_put", t(16, 32), [t(4, dtype=I)], t(4, 32), True),
    "scatter_add": ("aten::scatter_add", t(16, 32), 0, t(4, 32, dtype=I), t(4, 32)),
    "cumsum": ("aten::cumsum", t(16, 128), 1),
    "sort": ("aten::sort", t(16, 128)),
    "topk": ("aten::topk", t(16, 128), 5),
    "argmax": ("aten::argmax", t(16, 128), -1),
    "cat": ("aten::cat", [t(4, 8), t(4, 8)], 1),
    "nll_loss": ("aten::nll_loss_forward", t(16, 100), t(16, dtype=I), None, 1, -100),
    "sum int64": ("aten::sum", t(128, dtype=I)),
    "var": ("aten::var.correction", t(16, 128), [1]),
    "where": ("aten::where.self", t(8, 8, dtype=torch.bool), t(8, 8), t(8, 8)),
    "upsample": ("aten::upsample_bilinear2d", t(1, 3, 16, 16), [32, 32], False),
}


@pytest.mark.parametrize("case", CASES)
def test_compiles(case, place):
    name, *args = CASES[case]
    op, lowering = find(name), registry.get(name)
    results = op(*args)
    flat = results if isinstance(results, (list, tuple)) else [results]
    meta = tuple(registry.Meta(tuple(r.shape), r.dtype) if isinstance(r, torch.Tensor) else None for r in flat)
    names = [a.name for a in op._schema.arguments]
    tensors = [a for x in args for a in (x if isinstance(x, list) else [x]) if isinstance(a, torch.Tensor)]

    def program(*arrays):
        rest = iter(arrays)
        take = lambda x: (  # noqa: E731
            next(rest) if isinstance(x, torch.Tensor)
            else [take(e) for e in x] if isinstance(x, list) and any(isinstance(e, torch.Tensor) for e in x) else x
        )  # fmt: skip
        bound = dict(zip(names, (take(a) for a in args), strict=False))
        return registry.call(lowering, op._schema, bound, meta)

    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct(tuple(a.shape), dtypes.to_jax(a.dtype), sharding=place) for a in tensors]
        compiled = jax.jit(program).lower(*avals).compile()
    assert compiled.memory_analysis() is not None
    for got, expected in zip(jax.tree_util.tree_leaves(compiled.out_info), [m for m in meta if m], strict=True):
        assert (tuple(got.shape), np.dtype(got.dtype)) == (expected.shape, dtypes.to_jax(expected.dtype))


def test_what_ends_libtpu_is_refused():
    with jax.enable_x64(True):
        text = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((2,), np.complex128)).as_text()
        plain = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((2,), np.complex64)).as_text()
    programs.refuse_for_tpu("aten::mul", plain)
    with pytest.raises(NotImplementedError, match=r"aten::mul: XLA has no complex128 on TPU"):
        programs.refuse_for_tpu("aten::mul", text)
