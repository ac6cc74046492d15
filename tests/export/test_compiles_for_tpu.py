"""Programs lowered for a TPU on this machine compile for one, by libtpu, with no TPU attached."""

from __future__ import annotations

import jax
import pytest
import torch
import tpu_compile  # sets what libtpu reads, before it is loaded
from torch.export import Dim

from export.support import AttentionBlock, ConvNet, Mlp, gpt2

pytest.importorskip("libtpu")


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (lambda: Mlp(torch.bfloat16).eval(), (torch.randn(3, 8, dtype=torch.bfloat16),)),
        (lambda: Mlp().train(), (torch.randn(3, 8),)),
        (lambda: ConvNet().train(), (torch.randn(2, 3, 8, 8),)),
        (AttentionBlock, (torch.randn(2, 16, 4, 4), torch.randn(2, 5, 12))),
        (gpt2, (torch.randint(0, 64, (2, 8)),)),
    ],
)
def test_models(make: object, args: tuple[torch.Tensor, ...]) -> None:
    program = torch.export.export(make(), args, {"use_cache": False} if make is gpt2 else None)  # type: ignore[operator]
    compiled(torch.tpu.export.export(program, platforms="tpu"))


def test_symbolic_sizes() -> None:
    shapes = {"image": {0: Dim("batch", min=2)}}
    program = torch.export.export(ConvNet().train(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=shapes)
    compiled(torch.tpu.export.export(program, platforms="tpu"), batch=6)


def compiled(artifact: torch.tpu.export.Artifact, **sizes: int) -> None:  # type: ignore[name-defined]
    exported = artifact.programs[0].exported
    assert exported.platforms == ("tpu",)
    place = tpu_compile.place("v6e:2x2")
    with jax.enable_x64(True):
        avals = [
            jax.ShapeDtypeStruct([d if isinstance(d, int) else sizes[str(d)] for d in a.shape], a.dtype, sharding=place)
            for a in exported.in_avals
        ]
        arguments, _ = jax.tree_util.tree_unflatten(exported.in_tree, avals)
        made = jax.jit(exported.call).lower(*arguments).compile()
    assert made.memory_analysis() is not None
