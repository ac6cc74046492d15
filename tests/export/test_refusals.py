"""Sizes made of others, weights that share memory, and paths that cannot be written: what is said of them."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
import torch
from torch.export import Dim

from export.support import Mlp, compare
from export.test_programs import Calls
from torch_tpu.export import ArtifactError, ExportError

export = torch.tpu.export
K = Dim("k", max=64)


def test_a_multiple_of_a_dimension(tmp_path: pathlib.Path) -> None:
    program = torch.export.export(
        Calls(lambda x: x.view(-1, 4).sum(1)), (torch.ones(16),), dynamic_shapes=(({0: 4 * K},),)
    )
    export.save(program, tmp_path / "model.tpu", platforms="cpu")
    artifact = export.load(tmp_path / "model.tpu")
    for n in (8, 12, 256):
        compare(artifact(torch.ones(n, device="tpu")), torch.full((n // 4,), 4.0))
    # PyTorch takes one of an unnamed size as a case of its own: k=1 is outside of what it exported.
    with pytest.raises(
        ValueError, match=re.escape("dimension 0, 4 = 4*k: k=1 is outside of what was exported: at least 2")
    ):
        artifact(torch.ones(4, device="tpu"))
    with pytest.raises(ValueError, match=re.escape("dimension 0: expected a size that is 4*k for some k, got 10")):
        artifact(torch.ones(10, device="tpu"))
    of_sizes = export.export(program, platforms="cpu", sizes=[{"k": 2}, {"k": 3}])
    compare(of_sizes(torch.ones(12, device="tpu")), torch.full((3,), 4.0))
    with pytest.raises(ArtifactError, match=re.escape("no program for (k=5); it has (k=2), (k=3)")):
        of_sizes(torch.ones(20, device="tpu"))


def test_a_sum_of_a_dimension_and_a_number() -> None:
    shapes = (({0: K}, {0: 2 * K + 1}),)
    program = torch.export.export(
        Calls(lambda x, y: y[1:].view(-1, 2) * x[:, None]), (torch.ones(3), torch.ones(7)), dynamic_shapes=shapes
    )
    artifact = export.export(program, platforms="cpu")
    for n in (1, 2, 5):
        compare(artifact(torch.ones(n, device="tpu"), torch.ones(2 * n + 1, device="tpu")), torch.ones(n, 2))
    with pytest.raises(ValueError, match=re.escape("args_1, dimension 0: expected 2*k + 1 = 5, since k=2, got 6")):
        artifact(torch.ones(2, device="tpu"), torch.ones(6, device="tpu"))


class Shared(torch.nn.Module):
    cache: torch.Tensor
    part: torch.Tensor

    def __init__(self, view: object) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, 3))
        self.register_buffer("part", view(self.cache))  # type: ignore[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.add_(x)
        return self.cache.sum(0) + x


@pytest.mark.parametrize("view", [lambda t: t[1], lambda t: t.t(), lambda t: t])
def test_buffers_that_share_memory_and_are_written(view: object) -> None:
    program = torch.export.export(Shared(view), (torch.ones(3),))
    expected = r"(?s)writes to part, which shares memory with cache.*line \d+, in forward: self.part.add_\(x\)"
    with pytest.raises(ExportError, match=expected):
        export.export(program)


def test_buffers_apart_in_one_storage() -> None:
    model = Shared(lambda t: torch.zeros(3))
    both = torch.zeros(4, 3)
    model.cache, model.part = both[:3], both[3]
    artifact = export.export(torch.export.export(model, (torch.ones(3),)), platforms="cpu")
    for _ in range(2):
        compare(artifact(torch.ones(3, device="tpu")), model(torch.ones(3)) * 0 + 1)
    assert artifact.state_dict()["part"].tolist() == [2, 2, 2]


def test_paths(tmp_path: pathlib.Path) -> None:
    artifact = export.export(torch.export.export(Mlp().eval(), (torch.randn(3, 8),)), platforms="cpu")
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    refused = {
        tmp_path / "none" / "m.tpu": (FileNotFoundError, "there is no folder .*none to write m.tpu to"),
        tmp_path / "file" / "m.tpu": (NotADirectoryError, "file is a file, not a folder"),
        tmp_path: (IsADirectoryError, "is a folder; name a file in it"),
        tmp_path / "pipe": (OSError, "pipe is no regular file"),
        tmp_path / "m.pt2": (ValueError, r"torch.export.save writes files of that ending.*call it m\.tpu"),
        tmp_path / "m.safetensors": (ValueError, r"safetensors.*call it m\.tpu"),
        "": (ValueError, "is no name"),
        None: (TypeError, "expected the path of a file to write, got NoneType"),
    }
    for path, (error, message) in refused.items():
        with pytest.raises(error, match=message):
            export.save(artifact, path)  # type: ignore[arg-type]
        with pytest.raises(error, match=message):
            artifact.save(path)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "pipe"]
    for _ in range(2):  # what is there is replaced
        export.save(artifact, os.fsencode(tmp_path / ("m" * 240 + ".tpu")))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"an artifact has its platforms \(cpu\)"):
        export.save(artifact, tmp_path / "m.tpu", platforms=("tpu",))
    with pytest.raises(ValueError, match=r"no platform in \(\)"):
        export.export(torch.export.export(Mlp().eval(), (torch.randn(3, 8),)), platforms=())
    other = tmp_path / "weights.pt"
    torch.save({}, other)
    with pytest.raises(ArtifactError, match=r"torch.save writes files of that ending"):
        export.load(other)
