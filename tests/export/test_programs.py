"""What a program is made of: writes, structures, random numbers, numbers, sizes, text; and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.export import Dim

from export.support import ConvNet, Mlp, check, compare, moved
from torch_tpu.export import ArtifactError, ExportError
from torch_tpu.export.structure import Structure

export = torch.tpu.export
Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Answer:
    total: torch.Tensor
    parts: list[torch.Tensor]
    nothing: torch.Tensor | None = None


torch.export.register_dataclass(Answer, serialized_type_name="tests.export.Answer")


class Calls(torch.nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def exported(fn: Callable[..., Any], *args: Any, shapes: Any = None, **options: Any) -> Any:
    program = torch.export.export(Calls(fn), args, dynamic_shapes=None if shapes is None else {"args": shapes})
    return export.export(program, **{"platforms": "cpu", **options})


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "model.tpu"


X = torch.arange(12.0).reshape(4, 3)
BATCH = ({0: Dim("batch", min=1, max=64)},)


class Writes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(2, 8), persistent=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.cache.index_copy_(1, at, x)
        x.mul_(2)
        return self.cache + self.count


def test_written_buffers_and_arguments(path: pathlib.Path) -> None:
    loaded = check(Writes(), (torch.randn(2, 2), torch.tensor([1, 5])), path=path, calls=3)
    assert loaded.state_dict()["count"].item() == 3


def test_a_written_view_and_a_written_transposed_argument(path: pathlib.Path) -> None:
    artifact = exported(lambda x: x.add_(1).sum(), X.clone())
    base = torch.zeros(4, 8, device="tpu")
    assert artifact(base[:, 2:5]).item() == 12
    assert base.sum().item() == 12 and base[:, 2:5].sum().item() == 12
    base = torch.zeros(3, 4, device="tpu")
    assert artifact(base.T).item() == 12 and base.sum().item() == 12


def test_a_conjugate_argument() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    compare(exported(lambda z: z + 1, z)(z.to("tpu").conj()), z.conj() + 1)


def test_a_written_argument_that_is_passed_twice() -> None:
    artifact = exported(lambda a, b: a.add_(1) + b, X.clone(), X.clone())
    x = X.to("tpu")
    compare(artifact(x.clone(), x), X + 1 + X)
    with pytest.raises(ValueError, match="args_0 and args_1 share memory, and the program writes to it"):
        artifact(x, x)
    with pytest.raises(ValueError, match="share memory"):
        artifact(x, x.reshape(2, 6).reshape(4, 3))


def test_written_buffers_are_updated_in_place() -> None:
    artifact = export.export(torch.export.export(Writes(), (torch.randn(2, 2), torch.tensor([1, 5]))), platforms="cpu")
    arguments = torch.randn(2, 2, device="tpu"), torch.tensor([1, 5], device="tpu")
    artifact(*arguments)
    before = artifact.state_dict()["cache"]
    with torch.tpu.export.artifact.programs.counting() as made:  # type: ignore[attr-defined]
        for _ in range(3):
            artifact(*arguments)
        assert made() <= 1
    assert artifact.state_dict()["cache"].data_ptr() == before.data_ptr()


def test_the_model_keeps_its_own_buffers() -> None:
    model = ConvNet().train().to("tpu")
    x = torch.randn(2, 3, 8, 8, device="tpu")
    artifact = export.export(torch.export.export(model, (x,)), platforms="cpu")
    before = model.norm.running_mean.clone()
    artifact(x)
    assert torch.equal(model.norm.running_mean, before)
    assert not torch.equal(artifact.state_dict()["norm.running_mean"], before)


def test_a_model_on_the_device_is_exported_as_one_on_cpu() -> None:
    model, x = Mlp().eval(), torch.randn(3, 8)
    on_cpu = export.exported_to_mlir(torch.export.export(model, (x,)))
    on_tpu = export.exported_to_mlir(torch.export.export(model.to("tpu"), (x.to("tpu"),)))
    assert on_cpu == on_tpu


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: {"b": x + 1, "a": (x, [x * 2, None, 3, "text"])},
        lambda x: collections.OrderedDict(z=x, a=x.sum()),
        lambda x: Answer(x.sum(), [x, x + 1]),
        lambda x: torch.max(x, 0),
        lambda x: (torch.sort(x, 1), {"k": torch.topk(x, 2)}),
        lambda x: (x.shape[0], x.shape[1]),
        lambda x: (x, x, x.T),
    ],
)
def test_structures_of_results(fn: Callable[..., Any], path: pathlib.Path) -> None:
    check(Calls(fn), (X,), path=path)


def test_structures_of_arguments() -> None:
    artifact = exported(lambda d, p: d["a"] + d["b"][0] * p[0] - p[1], {"a": X, "b": [X]}, (X, X))
    x = X.to("tpu")
    compare(artifact({"b": [x], "a": x}, (x, x)), X + X * X - X)
    with pytest.raises(ValueError, match=re.escape("[0][0]: expected a, b, got a, c")):
        artifact({"a": x, "c": [x]}, (x, x))
    with pytest.raises(ValueError, match="expected 2 values, got a tuple of 1"):
        artifact({"a": x, "b": [x]}, (x,))


def test_fields_of_an_unknown_class() -> None:
    text = exported(lambda x: Answer(x.sum(), [x]), X).signature.result
    unknown = Structure(text.replace("tests.export.Answer", "somewhere.Else"))
    found = unknown.unflatten([1, 2])
    assert found.total == 1 and found["parts"] == [2] and found.nothing is None
    with pytest.raises(AttributeError, match="has no field 'other'; it has total, parts, nothing"):
        _ = found.other
    assert unknown.flatten(Answer(1, [2])) == [1, 2]  # type: ignore[arg-type]
    assert unknown.flatten({"total": 1, "parts": [2]}) == [1, 2]


def test_random_numbers_follow_the_seed() -> None:
    artifact = export.export(torch.export.export(Mlp().train(), (torch.randn(3, 8),)), platforms="cpu")
    assert artifact.signature.is_random
    x = torch.ones(3, 8, device="tpu")
    torch.manual_seed(3)
    first, second = artifact(x), artifact(x)
    torch.manual_seed(3)
    assert torch.equal(artifact(x), first) and not torch.equal(first, second)


def test_random_distribution() -> None:
    artifact = exported(lambda x: torch.nn.functional.dropout(x, 0.25), torch.ones(1000))
    found = artifact(torch.ones(1000, device="tpu"))
    kept = found != 0
    assert 680 < kept.sum().item() < 820
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 1 / 0.75))


def test_attention_without_dropout_takes_no_key() -> None:
    q = torch.randn(1, 2, 4, 8)
    artifact = exported(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), q)
    assert not artifact.signature.is_random


def test_numbers_as_arguments_and_results() -> None:
    artifact = exported(lambda x, n: (x * n, x.shape[0] * 2), X, 3)
    found, size = artifact(X.to("tpu"), 3)
    compare(found, X * 3)
    assert size == 8
    with pytest.raises(ValueError, match="args_1: the program was exported for the value 3, got 4"):
        artifact(X.to("tpu"), 4)


def test_sizes_that_change() -> None:
    artifact = exported(lambda x: (x / x.shape[0], x.shape[0] * 2), X, shapes=BATCH)
    assert artifact.signature.dimensions == {"batch": (1, 64)}
    for n in (1, 5, 64):
        x = torch.randn(n, 3)
        compare(artifact(x.to("tpu")), (x / n, 2 * n))
    with pytest.raises(ValueError, match=r"args_0, dimension 0: batch=65 is outside .* at least 1, at most 64"):
        artifact(torch.randn(65, 3, device="tpu"))


def test_derived_and_shared_sizes() -> None:
    b = Dim("b", min=2)
    artifact = exported(lambda x, y: x + y[::2], X, torch.randn(8, 3), shapes=({0: b}, {0: 2 * b}))
    x, y = torch.randn(6, 3), torch.randn(12, 3)
    compare(artifact(x.to("tpu"), y.to("tpu")), x + y[::2])
    with pytest.raises(ValueError, match=re.escape("expected 2*b = 12, since b=6, got 11")):
        artifact(x.to("tpu"), torch.randn(11, 3, device="tpu"))
    artifact = exported(lambda x, y: x + y, X, X, shapes=({0: b}, {0: b}))
    with pytest.raises(ValueError, match="args_1, dimension 0: b is 6 elsewhere in the arguments, and 5 here"):
        artifact(x.to("tpu"), torch.randn(5, 3, device="tpu"))


def test_sizes_from_a_list(path: pathlib.Path) -> None:
    program = torch.export.export(Calls(lambda x: torch.sort(x, 0)[0]), (X,), dynamic_shapes={"args": BATCH})
    with pytest.raises(ExportError, match=re.escape("cannot be one program for all sizes of batch")) as caught:
        export.export(program, platforms="cpu")
    assert "sizes=[{'batch': 8}]" in str(caught.value) and "from user code" in str(caught.value)
    export.save(program, path, platforms="cpu", sizes=[{"batch": 4}, {"batch": 7}])
    loaded = export.load(path)
    for n in (4, 7):
        x = torch.randn(n, 3)
        compare(loaded(x.to("tpu")), x.sort(0)[0])
    with pytest.raises(ArtifactError, match=re.escape("no program for (batch=5); it has (batch=4), (batch=7)")):
        loaded(torch.randn(5, 3, device="tpu"))
    assert "tensor<7x3xf32>" in loaded.mlir(sizes={"batch": 7})
    with pytest.raises(ValueError, match="name every dimension that may change, and no other; they are: batch"):
        export.export(program, sizes={"length": 3})
    with pytest.raises(ValueError, match="batch=65 is outside"):
        export.export(program, sizes={"batch": 65})


def test_an_int_that_changes() -> None:
    program = torch.export.export(Calls(lambda x, n: x * n), (X, 3), dynamic_shapes={"args": (None, Dim.DYNAMIC)})
    with pytest.raises(ExportError, match="the int argument args_1, which may change, cannot be one program"):
        export.export(program)
    artifact = export.export(program, platforms="cpu", sizes=[{"args_1": 5}, {"args_1": 6}])
    compare(artifact(X.to("tpu"), 6), X * 6)


def test_an_empty_size() -> None:
    artifact = exported(lambda x: x * 2, X, shapes=({0: Dim("batch", min=0)},))
    with pytest.raises(ArtifactError, match=re.escape("sizes=[{'batch': 0}]")):
        artifact(torch.zeros(0, 3, device="tpu"))


def test_an_index_out_of_range() -> None:
    artifact = exported(lambda t, i: torch.nn.functional.embedding(i, t), X, torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="out of"):
        artifact(X.to("tpu"), torch.tensor([1, 4], device="tpu")).cpu()


def test_a_singular_matrix() -> None:
    artifact = exported(torch.linalg.inv, torch.eye(3))
    compare(artifact(torch.eye(3, device="tpu") * 2), torch.eye(3) / 2)
    with pytest.raises(torch.linalg.LinAlgError, match="inv: the input matrix is singular"):
        artifact(torch.zeros(3, 3, device="tpu")).cpu()


def test_control_flow(path: pathlib.Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    loaded = check(Calls(fn), (X,), path=path)
    compare(loaded(moved(-X)), -X * 2)


def test_text_and_bytecode() -> None:
    program = torch.export.export(Mlp().eval(), (torch.randn(3, 8),))
    text = export.exported_to_mlir(program)
    assert text.count("stablehlo.dot_general") == 2 and "#loc" not in text
    assert "weights['layers.0.weight']" in text and "inputs[0]" in text
    assert "dense<" not in "".join(line for line in text.splitlines() if "16x8" in line)  # no weight is a constant
    code = export.exported_to_bytecode(program)
    assert code.startswith(b"ML\xefR") and b"StableHLO" in code and b".py" not in code


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a, x: a(x[:3]), ValueError, r"args_0: expected shape \[4, 3\], got \[3, 3\]; to let dimension 0 vary"),
        (lambda a, x: a(x[0]), ValueError, r"args_0: expected shape \[4, 3\], got \[3\]"),
        (lambda a, x: a(x.double()), TypeError, "args_0: expected dtype torch.float32, got torch.float64"),
        (
            lambda a, x: a(x.cpu()),
            ValueError,
            r"args_0 is on device cpu; .* on device tpu; use .to\('tpu'\)",
        ),
        (lambda a, x: a(3.0), TypeError, "args_0: expected a tensor, got float"),
        (lambda a, x: a(x, x), ValueError, r"exported with other arguments \(args_0\): \[0\]: expected 1 values"),
        (lambda a, x: a(x.requires_grad_()), RuntimeError, r"args_0 requires grad, .* torch.no_grad\(\)"),
    ],
)
def test_wrong_arguments(call: Callable[..., Any], error: type[Exception], message: str) -> None:
    artifact = exported(lambda x: x * 2, X)
    with pytest.raises(error, match=message):
        call(artifact, X.to("tpu"))


def test_what_cannot_be_exported() -> None:
    with pytest.raises(TypeError, match=r"expected a torch.export.ExportedProgram, got Mlp"):
        export.export(Mlp())
    with pytest.raises(ValueError, match="unknown platform 'gpu'; use one of tpu, cpu, cuda"):
        exported(lambda x: x, X, platforms=("gpu",))
    with pytest.raises(NotImplementedError, match=r"depends on values.*\n.*\n.*test_programs\.py"):
        exported(lambda x: x[x > 0], X)


def test_another_platform() -> None:
    artifact = exported(lambda x: x * 2, X, platforms="tpu")
    with pytest.raises(ArtifactError, match=r"for tpu, and device tpu is on platform 'cpu'.*platforms=\('cpu',\)"):
        artifact(X.to("tpu"))


def test_users_jax_settings_are_left_alone() -> None:
    before = jax.config.jax_enable_x64, jax.config.jax_traceback_in_locations_limit  # type: ignore[attr-defined]
    exported(lambda x: x * 2, X)
    assert before == (jax.config.jax_enable_x64, jax.config.jax_traceback_in_locations_limit)  # type: ignore[attr-defined]
