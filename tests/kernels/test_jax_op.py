"""A JAX function as an operator of device tpu: what it takes, and every way in which PyTorch calls it."""

import enum
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import torch_tpu._internal.pallas
from torch_tpu.pallas import custom_jax_kernel, jax_op
from torch_tpu.runtime import programs

BYTE = np.dtype("int8")


class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2


@jax_op("test_jax_op::scaled")
def scaled(x: jax.Array, factor: float = 2.0) -> jax.Array:
    return x * factor


@jax_op("test_jax_op::many")
def many(
    xs: list[jax.Array], y: jax.Array | None, n: int, shape: Sequence[int], flag: bool = False, *,
    mode: Mode = Mode.ADD, how: Literal["plain", "negative"] = "plain", dtype: torch.dtype = torch.float32,
    own: np.dtype = BYTE, device: torch.device | None = None, generator: str = "g",
) -> tuple[jax.Array, int, jax.Array]:  # fmt: skip
    assert isinstance(mode, Mode) and isinstance(dtype, torch.dtype) and isinstance(own, np.dtype) and generator == "g"
    total = sum(xs) if mode is Mode.ADD else xs[0] * xs[1]
    total = total if y is None else total + y
    return (total if how == "plain" else -total) * n, len(shape), jnp.full(shape, 2 if flag else 1, own)


@jax_op("test_jax_op::parts")
def parts(x: jax.Array, n: int) -> tuple[jax.Array, ...]:
    return tuple(x * i for i in range(n))


@jax_op("test_jax_op::joined")
def joined(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.concatenate([x, y], 0).reshape(-1) * 2


@jax_op("test_jax_op::taken")
def taken(x: jax.Array, index: jax.Array) -> jax.Array:
    return x[index]


@jax_op("test_jax_op::normed", differentiable=True)
def normed(x: jax.Array, weight: jax.Array, *, eps: float = 0.0) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True)) * weight


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 6, device="tpu")


# Arguments and results -----------------------------------------------------------------------------------------------


def test_published_import_paths() -> None:
    assert torch_tpu._internal.pallas.jax_op is jax_op is torch.tpu.pallas.jax_op
    assert torch_tpu._internal.pallas.custom_jax_kernel is custom_jax_kernel


def test_is_an_operator(x: torch.Tensor) -> None:
    assert isinstance(scaled, torch._library.custom_ops.CustomOpDef)
    schema = str(torch.ops.test_jax_op.scaled.default._schema)
    assert schema == "test_jax_op::scaled(Tensor x, float factor=2.) -> Tensor"
    for made in (scaled(x), scaled(x, 2.0), scaled(x, factor=2.0), torch.ops.test_jax_op.scaled(x)):
        torch.testing.assert_close(made, x * 2)
    torch.testing.assert_close(scaled(x, 3.0), x * 3)
    torch.testing.assert_close(scaled(x.t()[1:]), x.t()[1:] * 2)


def test_a_program_is_made_once(x: torch.Tensor) -> None:
    scaled(x, 7.0)
    with programs.counting() as made:
        scaled(x, 7.0)
        scaled(x + 1, 7.0)
    assert made() <= 1  # the addition's


def test_every_kind_of_argument(x: torch.Tensor) -> None:
    total, count, ones = many([x, x], None, 3, [2, 3])
    torch.testing.assert_close(total, x * 6)
    assert count == 2 and ones.dtype == torch.int8 and ones.tolist() == [[1] * 3] * 2
    total, _, twos = many([x, x], x, 1, (2,), True, mode=Mode.MULTIPLY, how="negative", own=np.dtype("bfloat16"))
    torch.testing.assert_close(total, -(x * x + x))
    assert twos.dtype == torch.bfloat16 and twos.tolist() == [2, 2]
    torch.testing.assert_close(many([x, x], None, 1, [], mode="MULTIPLY")[0], x * x)


def test_results_of_every_form(x: torch.Tensor) -> None:
    @jax_op("test_jax_op::nothing")
    def nothing(x: jax.Array) -> None:
        return None

    @jax_op("test_jax_op::ones")
    def ones(n: int) -> jax.Array:
        return jnp.ones(n)

    assert nothing(x) is None
    assert [t.tolist() for t in parts(x, 3)] == [(x * i).tolist() for i in range(3)]
    made = ones(3)
    assert made.device.type == "tpu" and made.tolist() == [1, 1, 1]
    assert torch.compile(lambda: ones(3) + 1, fullgraph=True)().tolist() == [2, 2, 2]


def test_64_bits_are_32_unless_asked(x: torch.Tensor) -> None:
    @jax_op("test_jax_op::wide", x64=True)
    def wide(x: jax.Array) -> jax.Array:
        return x + jnp.pi

    index = torch.tensor([1, 0], device="tpu")
    assert taken(x.double(), index).dtype == torch.float32
    torch.testing.assert_close(taken(x.double(), index), x[index])
    torch.testing.assert_close(wide(x.double()), x.double() + np.pi, rtol=0, atol=1e-15)
    with pytest.raises(OverflowError, match=r"the value 1099511627776 in 'index' does not fit int32.*x64=True"):
        taken(x, torch.tensor([2**40], device="tpu"))
        torch.tpu.synchronize()


def test_older_form(x: torch.Tensor) -> None:
    @custom_jax_kernel
    def test_jax_op_older(x: jax.Array) -> jax.Array:
        return x + 1

    @custom_jax_kernel(name="test_jax_op::named")
    def named(x: jax.Array) -> jax.Array:
        return x + 2

    torch.testing.assert_close(test_jax_op_older(x), x + 1)
    torch.testing.assert_close(torch.ops.test_jax_op.named(x), x + 2)


def test_a_second_definition_replaces_the_first(x: torch.Tensor) -> None:
    def first(x: jax.Array) -> jax.Array:
        return x + 1

    def second(x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y * 2

    def third(x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y * 3

    one = jax_op("test_jax_op::again", first)
    torch.testing.assert_close(one(x), x + 1)
    two = jax_op("test_jax_op::again", second)
    torch.testing.assert_close(two(x, x), x * 3)
    with pytest.raises(
        RuntimeError, match=r"was defined again with another signature; use .*torch\.ops.test_jax_op.again"
    ):
        one(x)
    three = jax_op("test_jax_op::again", third)  # what has the same signature is the same operator
    for op in (two, three, torch.ops.test_jax_op.again):
        torch.testing.assert_close(op(x, x), x * 4)


def test_programs_of_different_functions_are_different(x: torch.Tensor) -> None:
    """The same name, shapes and arguments: only the code tells them apart, also in the persistent cache."""
    for value in (1.0, 2.0):

        def over(x: jax.Array) -> jax.Array:
            return x + value  # noqa: B023

        op = jax_op("test_jax_op::over", over)
        torch.testing.assert_close(op(x), x + value)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(lambda x, op=op: op(x) * 2, fullgraph=True)(x), (x + value) * 2)


def test_a_graph_has_the_function_that_there_is_now(x: torch.Tensor) -> None:
    """A cell of a notebook that is run again: nothing that Dynamo guards on tells."""
    jax_op("test_jax_op::cell", _plus_one)
    function = torch.compile(lambda x: torch.ops.test_jax_op.cell(x) * 2, fullgraph=True)
    torch.testing.assert_close(function(x), (x + 1) * 2)
    jax_op("test_jax_op::cell", _plus_two)
    torch.testing.assert_close(function(x), (x + 2) * 2)


def _plus_one(x: jax.Array) -> jax.Array:
    return x + 1


def _plus_two(x: jax.Array) -> jax.Array:
    return x + 2


# Ways to call --------------------------------------------------------------------------------------------------------


def test_compiled_is_one_program(x: torch.Tensor) -> None:
    function = torch.compile(lambda x: scaled(x.sin(), 5.0) + many([x, x], x, 3, [2])[0], fullgraph=True)
    torch.testing.assert_close(function(x), x.sin() * 5 + x * 9)
    with programs.counting() as made:
        function(x)
    assert made() == 0
    torch.testing.assert_close(torch.compile(lambda x: many([x, x], None, 1, [2], mode=Mode.MULTIPLY)[0])(x), x * x)


@pytest.mark.parametrize("mark", [True, None])
def test_symbolic_sizes(mark: bool | None) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x, y: joined(x.sin(), y) + 1, fullgraph=True, dynamic=mark)
    for n in (4, 5, 7):
        a, b = torch.randn(n, 3, device="tpu"), torch.randn(n + 2, 3, device="tpu")
        torch.testing.assert_close(function(a, b), torch.cat([a.sin(), b]).reshape(-1) * 2 + 1)


def test_sizes_that_the_function_compares_are_traced_again() -> None:
    @jax_op("test_jax_op::compares")
    def compares(x: jax.Array) -> jax.Array:
        return x * 2 if x.shape[0] > 5 else x * 3

    torch._dynamo.reset()
    function = torch.compile(compares, fullgraph=True, dynamic=True)
    for n, factor in ((4, 3), (8, 2), (5, 3)):
        x = torch.randn(n, device="tpu")
        torch.testing.assert_close(function(x), x * factor)


def test_fake_and_meta(x: torch.Tensor) -> None:
    total, count, ones = many([x.to("meta")] * 2, None, 3, [2, 3])
    assert total.device.type == "meta" and total.shape == x.shape and count == 2 and ones.dtype == torch.int8
    with FakeTensorMode() as mode:
        made = joined(mode.from_tensor(x), mode.from_tensor(x))
    assert made.device == x.device and made.shape == (48,) and made.dtype == torch.float32


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return joined(x, y) + 1


def test_exported(x: torch.Tensor, tmp_path: Any) -> None:
    y = torch.randn(3, 6, device="tpu")
    sizes = {"x": {0: torch.export.Dim("a")}, "y": {0: torch.export.Dim("b")}}
    program = torch.export.export(Model(), (x, y), dynamic_shapes=sizes)
    assert torch.ops.test_jax_op.joined.default in [n.target for n in program.graph.nodes]
    torch.tpu.export.save(program, tmp_path / "model.tpu")
    loaded = torch.tpu.export.load(tmp_path / "model.tpu")
    more = torch.randn(9, 6, device="tpu")
    torch.testing.assert_close(loaded(more, y), Model()(more, y))


def test_vmap(x: torch.Tensor) -> None:
    torch.testing.assert_close(torch.vmap(scaled)(x), x * 2)
    torch.testing.assert_close(torch.vmap(scaled, in_dims=1, out_dims=1)(x), x * 2)
    made = torch.vmap(lambda a: joined(a, x[0]))(x)
    torch.testing.assert_close(made, torch.stack([torch.cat([a, x[0]]) * 2 for a in x]))
    torch.testing.assert_close(torch.vmap(lambda a: parts(a, 3)[2])(x), x * 2)
    twice = torch.vmap(torch.vmap(lambda a, b: joined(a, b), in_dims=(0, None)), in_dims=(None, 0))
    a, b = torch.randn(2, 3, device="tpu"), torch.randn(5, 4, device="tpu")
    wanted = torch.stack([torch.stack([torch.cat([i, j]) * 2 for i in a]) for j in b])
    torch.testing.assert_close(twice(a, b), wanted)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_by_jax(compiled: bool, x: torch.Tensor) -> None:
    mine: Callable[..., Any] = torch.compile(normed, fullgraph=True) if compiled else normed
    inputs = [x.requires_grad_(), torch.randn(6, device="tpu", requires_grad=True)]
    grad = torch.randn_like(x)
    found = torch.autograd.grad(mine(*inputs), inputs, grad)
    exact = [t.detach().cpu().double().requires_grad_() for t in inputs]
    wanted = torch.autograd.grad(_normed(*exact), exact, grad.cpu().double())
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.cpu().double(), w, rtol=1e-5, atol=1e-6)


def test_second_gradient_by_jax(x: torch.Tensor) -> None:
    weight = torch.ones(6, device="tpu")

    def penalty(f: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(f(x, weight).sin().sum(), x, create_graph=True)
        return grad.square().sum()

    (found,) = torch.autograd.grad(penalty(normed, x.requires_grad_(), weight), x)
    exact = x.detach().cpu().double().requires_grad_()
    (wanted,) = torch.autograd.grad(penalty(_normed, exact, weight.cpu().double()), exact)
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-4, atol=1e-5)


def test_gradient_of_lists_and_of_some_inputs(x: torch.Tensor) -> None:
    @jax_op("test_jax_op::weighted", differentiable=True)
    def weighted(xs: list[jax.Array], index: jax.Array, y: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        total = xs[0] * xs[1] + (0 if y is None else y * y)
        return total[index], index + 1

    a, b = x.clone().requires_grad_(), x.sin().detach()
    index = torch.tensor([2, 0], device="tpu")
    out, following = weighted([a, b], index, a)
    assert following.tolist() == [3, 1] and not following.requires_grad
    (found,) = torch.autograd.grad(out.sum(), a)
    (wanted,) = torch.autograd.grad((a * b + a * a)[index].sum(), a)
    torch.testing.assert_close(found, wanted)


def test_registered_gradient(x: torch.Tensor) -> None:
    @jax_op("test_jax_op::doubled")
    def doubled(x: jax.Array) -> jax.Array:
        return x * 2

    doubled.register_autograd(lambda ctx, grad: grad * 5)  # not the gradient: it shows that this one is asked
    for function in (doubled, torch.compile(doubled, fullgraph=True)):
        (found,) = torch.autograd.grad(function(x.requires_grad_()).sum(), x)
        assert found.unique().tolist() == [5]


# What is refused -----------------------------------------------------------------------------------------------------


def test_names() -> None:
    for name in ("scaled", "a::b::c", "a::", "::b", "a::b-c", "a b::c"):
        with pytest.raises(ValueError, match="not of the form 'namespace::name'"):
            jax_op(name, scaled.function.fn)
    with pytest.raises(ValueError, match="the namespace of 'aten::add' is PyTorch's own"):
        jax_op("aten::add", scaled.function.fn)


def _no_annotation(x: jax.Array, n) -> jax.Array: ...  # type: ignore[no-untyped-def]
def _no_result(x: jax.Array): ...  # type: ignore[no-untyped-def]
def _odd_type(x: jax.Array, n: dict) -> jax.Array: ...
def _odd_result(x: jax.Array) -> dict: ...
def _any_number(*xs: jax.Array) -> jax.Array: ...
def _keyword_array(*, x: jax.Array) -> jax.Array: ...
def _mixed(xs: tuple[jax.Array, int]) -> jax.Array: ...


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (_no_annotation, "parameter 'n' has no annotation; write jax.Array"),
        (_no_result, "the result has no annotation; write -> jax.Array"),
        (_odd_type, "parameter 'n' is of type dict; write jax.Array"),
        (_odd_result, "the result is of type dict; write jax.Array"),
        (_any_number, r"parameter \*xs takes any number of arguments.*list\[jax.Array\]"),
        (_keyword_array, r"parameter 'x' is an array that is passed by keyword alone.*before the \*"),
        (_mixed, "parameter 'xs' is of type tuple"),
    ],
)
def test_annotations(fn: Callable[..., Any], words: str) -> None:
    with pytest.raises(TypeError, match=f"jax_op test_jax_op::refused: {words}"):
        jax_op("test_jax_op::refused", fn)


def test_tensors_of_other_devices(x: torch.Tensor) -> None:
    for call in (lambda: scaled(x.cpu()), lambda: joined(x, x.cpu()), lambda: joined(x, torch.tensor(1.0))):
        with pytest.raises(RuntimeError, match=r"parameter '[xy]' is a tensor on cpu; .* pass [xy]\.to\(\"tpu\"\)"):
            call()
    with pytest.raises(RuntimeError, match=r"parameter 'xs\[1\]' is a tensor on cpu"):
        many([x, x.cpu()], None, 1, [])
    with FakeTensorMode(), pytest.raises(RuntimeError, match="parameter 'x' is a tensor on cpu"):
        scaled(torch.empty(3))


def test_values(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="many: parameter 'mode': 'DIVIDE' is no Mode; there are ADD, MULTIPLY"):
        many([x, x], None, 1, [], mode="DIVIDE")
    with pytest.raises(ValueError, match="parameter 'how': 'loud' is none of 'plain', 'negative'"):
        many([x, x], None, 1, [], how="loud")
    with pytest.raises(RuntimeError, match="type 'int' for argument 'n'"):
        many([x, x], None, 1.5, [])


def test_results_that_are_not_as_annotated(x: torch.Tensor) -> None:
    def one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x  # type: ignore[return-value]

    def number(x: jax.Array) -> tuple[jax.Array, int]:
        return x, x  # type: ignore[return-value]

    with pytest.raises(TypeError, match=r"annotated to give 2 results, but gave an array of shape \(4, 6\)"):
        jax_op("test_jax_op::one", one)(x)
    with pytest.raises(TypeError, match="result 1 is annotated as a number known when it is traced, but is an array"):
        jax_op("test_jax_op::number", number)(x)


def test_errors_of_the_function_are_its_own(x: torch.Tensor) -> None:
    @jax_op("test_jax_op::product")
    def product(x: jax.Array) -> jax.Array:
        return x @ x

    with pytest.raises(TypeError, match="contracting dimensions") as caught:
        product(x)
    assert "while test_jax_op::product was traced for x: float32[4, 6]" in caught.value.__notes__


def test_a_function_that_jax_cannot_differentiate(x: torch.Tensor) -> None:
    @jax_op("test_jax_op::looped", differentiable=True)
    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: v.sum() < 1, lambda v: v + 1, x)

    with pytest.raises(NotImplementedError, match=r"JAX cannot differentiate the function.*jax\.custom_vjp.*register_"):
        looped(x.requires_grad_()).sum().backward()


# Donation ------------------------------------------------------------------------------------------------------------


@jax_op("test_jax_op::grown", donate_argnums=0)
def grown(state: jax.Array, x: jax.Array) -> jax.Array:
    return state + x


def test_a_donated_tensor_has_no_values_afterwards(x: torch.Tensor) -> None:
    state = torch.zeros(4, 6, device="tpu") + 1
    before = torch.tpu.memory_allocated()
    made = grown(state, x)
    torch.testing.assert_close(made, x + 1)
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() <= before + made.nbytes  # of x + 1
    with pytest.raises(RuntimeError, match=r"donated to test_jax_op::grown \(parameter 'state'\); pass a clone"):
        state.sum()
    state.copy_(x)  # it may be written again
    torch.testing.assert_close(state, x)


def test_what_others_hold_is_not_taken(x: torch.Tensor) -> None:
    state = torch.zeros(8, 6, device="tpu") + 1
    shared = state.clone()  # shares the array until one is written
    torch.testing.assert_close(grown(state[:4], x), x + 1)  # a part of its storage
    torch.testing.assert_close(grown(state, shared), torch.full_like(state, 2))
    assert state.sum() == 48 and shared.sum() == 48
    other = state.detach()  # another tensor of the same memory
    grown(state, shared)
    assert other.sum() == 48
    leaf = x.clone().requires_grad_()
    saved = leaf.exp()  # the backward pass reads it
    loss = saved.sum()
    torch.testing.assert_close(grown(saved.detach(), x), leaf.detach().exp() + x)
    del saved
    loss.backward()
    torch.testing.assert_close(leaf.grad, leaf.detach().exp())


def test_donation_in_a_graph_keeps_the_tensor(x: torch.Tensor) -> None:
    state = torch.zeros(4, 6, device="tpu") + 1
    torch.testing.assert_close(torch.compile(grown, fullgraph=True)(state, x), x + 1)
    assert state.sum() == 24


def test_donated_positions() -> None:
    with pytest.raises(ValueError, match=r"donate_argnums has 1, which is no array; arrays are 0 \(x\)"):
        jax_op("test_jax_op::refused", scaled.function.fn, donate_argnums=1)
    with pytest.raises(ValueError, match="donate_argnums has 5, which is no array"):
        jax_op("test_jax_op::refused", scaled.function.fn, donate_argnums=(0, 5))
