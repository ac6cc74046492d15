"""The file: read by other processes, by JAX alone and by safetensors; damaged, foreign, or of another version."""

from __future__ import annotations

import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

from export.support import TOLERANCE, ConvNet, Mlp, gpt2
from torch_tpu.export import ArtifactError

export = torch.tpu.export
HERE = pathlib.Path(__file__).parent


def run(script: str | pathlib.Path, *args: str | pathlib.Path, where: pathlib.Path) -> str:
    """A Python process that cannot import the tests."""
    code = [script] if isinstance(script, pathlib.Path) else ["-c", script]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *map(str, code), *map(str, args)], cwd=where, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def jax_alone(path: pathlib.Path, where: pathlib.Path, **given: Any) -> dict[str, np.ndarray]:
    np.savez(where / "inputs.npz", **{k: np.asarray(v) for k, v in given.items()})
    run(HERE / "run_with_jax.py", path, where / "inputs.npz", where / "outputs.npz", where=where)
    return dict(np.load(where / "outputs.npz"))


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "model.tpu"


def test_jax_alone_runs_a_language_model_of_any_size(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    model = gpt2()
    shapes = {"input_ids": {0: Dim("batch", max=8), 1: Dim("length", max=32)}, "use_cache": None}
    program = torch.export.export(
        model, (torch.randint(0, 64, (2, 8)),), {"use_cache": False}, dynamic_shapes=shapes
    )  # fmt: skip
    export.save(program, path)
    ids = torch.randint(0, 64, (3, 11))
    found = jax_alone(path, tmp_path, input_0=ids)
    expected = model(ids, use_cache=False).logits.detach()
    torch.testing.assert_close(torch.from_numpy(found["output_0"]), expected, **TOLERANCE)


def test_jax_alone_updates_batch_norm(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    model, x = ConvNet().train(), torch.randn(2, 3, 8, 8)
    export.save(torch.export.export(model, (x,)), path)
    found = jax_alone(path, tmp_path, input_0=x)
    torch.testing.assert_close(torch.from_numpy(found["output_0"]), model(x).detach(), **TOLERANCE)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(
            torch.from_numpy(found[f"weight norm.{name}"]), getattr(model.norm, name), **TOLERANCE
        )


def test_jax_alone_runs_half_types_and_takes_a_key(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = Mlp(torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.bfloat16()).float()

    model = Model().train()
    export.save(torch.export.export(model, (torch.randn(3, 8),)), path)
    one, other = (np.array([0, seed], np.uint32) for seed in (1, 2))
    found = [jax_alone(path, tmp_path, input_0=torch.ones(3, 8), key=k)["output_0"] for k in (one, one, other)]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()


def test_a_process_without_the_models_code(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    model, ids = gpt2(), torch.randint(0, 64, (2, 8))
    export.save(torch.export.export(model, (ids,), {"use_cache": False}), path, platforms="cpu")
    torch.save((ids, model(ids, use_cache=False).logits.detach()), tmp_path / "expected.pt")
    script = """
import sys, torch
ids, expected = torch.load(sys.argv[2])
run = torch.tpu.export.load(sys.argv[1])
found = run(ids.to("tpu"), use_cache=False)
torch.testing.assert_close(found.logits.cpu(), expected, rtol=2e-5, atol=2e-5)
assert found["logits"] is found.logits and "transformers" not in sys.modules
made = torch.tpu.compiler.stats()
print(type(found).__name__, made["compiled"], made["loaded"])
"""
    first = run(script, path, tmp_path / "expected.pt", where=tmp_path).split()
    assert first in (["Record", "1", "0"], ["Record", "0", "1"])  # another test may have left the program on disk
    assert run(script, path, tmp_path / "expected.pt", where=tmp_path).split() == ["Record", "0", "1"]


def test_the_weights_are_safetensors(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = Mlp(torch.bfloat16)
    model.register_buffer("complex", torch.randn(2, dtype=torch.complex128))
    model.forward = lambda x: (Mlp.forward(model, x), model.complex * 2)  # type: ignore[method-assign]
    export.save(torch.export.export(model.eval(), (torch.randn(3, 8, dtype=torch.bfloat16),)), path, platforms="cpu")
    with zipfile.ZipFile(path) as archive:
        found = safetensors.load(archive.read("weights.safetensors"))
    for name, value in model.state_dict().items():
        if name != "complex":
            assert torch.equal(found[name], value)
    assert torch.equal(found["complex"].view(torch.complex128), model.complex)  # no code for it: bytes
    assert torch.equal(export.load(path).state_dict()["complex"].cpu(), model.complex)


def test_saving_again_keeps_what_has_changed(path: pathlib.Path) -> None:
    x = torch.randn(2, 3, 8, 8, device="tpu")
    artifact = export.export(torch.export.export(ConvNet().train(), (x.cpu(),)), platforms="cpu")
    artifact(x)
    artifact.save(path)
    loaded = export.load(path)
    assert loaded.state_dict()["norm.num_batches_tracked"].item() == 1
    assert torch.equal(loaded(x), artifact(x))


def test_a_file_replaces_another_whole_and_readable(path: pathlib.Path) -> None:
    program = torch.export.export(Mlp().eval(), (torch.randn(3, 8),))
    for _ in range(2):
        export.save(program, path, platforms="cpu")
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    with pytest.raises(FileNotFoundError):
        export.save(program, path.parent / "nowhere" / "model.tpu", platforms="cpu")


def edited(path: pathlib.Path, change: Callable[[dict[str, bytes]], object]) -> None:
    """Change the members of the archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)


def with_manifest(change: Callable[[Any], object]) -> Callable[[dict[str, bytes]], object]:
    def edit(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_manifest(lambda m: m.update(version=2)), "version 2 of the format, and this torch_tpu reads version 1"),
        (with_manifest(lambda m: m.update(format="other")), "is not an artifact of torch.tpu.export"),
        (with_manifest(lambda m: m.pop("signature")), "its signature cannot be read"),
        (
            with_manifest(lambda m: m["programs"][0].update(calling_convention=99)),
            r"was made with jax .* \(calling convention 99\); this jax .* reads \d+ to \d+. Install jax",
        ),
        (
            lambda m: m.update({"programs/0.jax": b"x" + m["programs/0.jax"][1:]}),
            "0.jax is not what was written",
        ),
        (lambda m: m.pop("programs/0.jax"), "is damaged"),
        (lambda m: m.update({"weights.safetensors": m["weights.safetensors"][:-4]}), "its weights cannot be read"),
        (lambda m: m.pop("manifest.json"), "is not an artifact of torch.tpu.export, or it is damaged"),
    ],
)
def test_files_that_are_refused(path: pathlib.Path, change: Callable[[dict[str, bytes]], object], message: str) -> None:
    export.save(torch.export.export(Mlp().eval(), (torch.randn(3, 8),)), path, platforms="cpu")
    edited(path, change)
    with pytest.raises(ArtifactError, match=message):
        export.load(path)


def test_a_damaged_weight_is_noticed(path: pathlib.Path) -> None:
    export.save(torch.export.export(Mlp().eval(), (torch.randn(3, 8),)), path, platforms="cpu")
    whole = bytearray(path.read_bytes())
    weight = export.load(path).state_dict()["layers.3.bias"].cpu().numpy().tobytes()
    whole[whole.find(weight)] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ArtifactError, match="its weights cannot be read"):
        export.load(path)


def test_files_that_are_something_else(path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        export.load(path)
    path.write_bytes(b"text")
    with pytest.raises(ArtifactError, match=r"is not an artifact of .*, or it is damaged"):
        export.load(path)
    stream = io.BytesIO()
    torch.export.save(torch.export.export(Mlp().eval(), (torch.randn(3, 8),)), stream)
    path.write_bytes(stream.getvalue())
    with pytest.raises(ArtifactError, match=r"is not an artifact of torch.tpu.export"):
        export.load(path)
    with pytest.raises(ValueError, match="an artifact runs on device tpu, not cpu"):
        export.load(path, device="cpu")
