"""Activation functions and their gradients, against PyTorch on CPU."""

import pytest
import torch
from harness import check, run

from torch_tpu.lowering import activation

FLOAT = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# The corners of the piecewise functions, both zeros, both infinities, NaN, and values where exp overflows.
POINTS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 2.5, -2.5, 20.0, 21.0, 6.0, -6.0, 60.0, -60.0]
EDGE = [*POINTS, float("inf"), float("-inf"), float("nan")]

# (operator, arguments after the tensor, keywords)
FORWARD = [
    ("relu", (), {}),
    ("gelu", (), {}),
    ("gelu", (), {"approximate": "tanh"}),
    ("silu", (), {}),
    ("mish", (), {}),
    ("tanh", (), {}),
    ("sigmoid", (), {}),
    ("log_sigmoid_forward", (), {}),
    ("threshold", (0.5, -7.0), {}),
    ("hardtanh", (), {}),
    ("hardtanh", (-0.5, 2.5), {}),
    ("leaky_relu", (), {}),
    ("leaky_relu", (0.3,), {}),
    ("elu", (), {}),
    ("elu", (1.7, 0.9, 0.6), {}),
    ("celu", (), {}),
    ("celu", (2.0,), {}),
    ("softplus", (), {}),
    ("softplus", (2.0, 5.0), {}),
    ("hardsigmoid", (), {}),
    ("hardswish", (), {}),
    ("hardshrink", (), {}),
    ("hardshrink", (1.0,), {}),
    ("softshrink", (), {}),
    ("softshrink", (1.0,), {}),
]
# (operator, arguments after grad_output and self, keywords)
BACKWARD = [
    ("gelu_backward", (), {}),
    ("gelu_backward", (), {"approximate": "tanh"}),
    ("silu_backward", (), {}),
    ("mish_backward", (), {}),
    ("tanh_backward", (), {}),
    ("sigmoid_backward", (), {}),
    ("threshold_backward", (0.5,), {}),
    ("threshold_backward", (0,), {}),
    ("hardtanh_backward", (-0.5, 2.5), {}),
    ("leaky_relu_backward", (0.3, False), {}),
    ("softplus_backward", (2.0, 5.0), {}),
    ("hardsigmoid_backward", (), {}),
    ("hardswish_backward", (), {}),
    ("hardshrink_backward", (0.5,), {}),
    ("softshrink_backward", (0.5,), {}),
]


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize(("name", "args", "kwargs"), FORWARD)
def test_forward(name, args, kwargs, dtype):
    check(f"aten::{name}", torch.randn(3, 40).mul(4).to(dtype), *args, **kwargs)
    check(f"aten::{name}", torch.tensor(POINTS, dtype=dtype), *args, **kwargs)


@pytest.mark.parametrize(
    "name", ["relu", "silu", "sigmoid", "tanh", "hardtanh", "leaky_relu", "softshrink", "hardshrink"]
)
def test_nan_and_infinity(name):
    x = torch.tensor(EDGE)
    check(f"aten::{name}", x)
    assert run(f"aten::{name}", x)[0][-1].isnan()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "log_sigmoid_forward"])
def test_shapes(name, shape):
    check(f"aten::{name}", torch.randn(shape))


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize(("name", "args", "kwargs"), BACKWARD)
def test_backward(name, args, kwargs, dtype):
    x = torch.cat([torch.randn(40).mul(3), torch.tensor(POINTS)]).to(dtype)
    check(f"aten::{name}", torch.randn(56).to(dtype), x, *args, **kwargs)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("is_result", [False, True])
def test_elu_backward(dtype, is_result):
    x = torch.randn(50).to(dtype)
    saved = torch.ops.aten.elu(x, 1.3, 0.9, 0.6) if is_result else x
    check("aten::elu_backward", torch.randn(50).to(dtype), 1.3, 0.9, 0.6, is_result, saved)


@pytest.mark.parametrize("dtype", FLOAT)
def test_log_sigmoid_backward(dtype):
    x = torch.randn(50).mul(5).to(dtype)
    check("aten::log_sigmoid_backward", torch.randn(50).to(dtype), x, torch.ops.aten.log_sigmoid_forward(x)[1])


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("eps", [None, 0.1])
def test_logit(dtype, eps):
    x = torch.tensor([0.0, 1.0, 0.5, 0.05, 0.95, 0.3, -0.5, 1.5]).to(dtype)
    check("aten::logit", x, eps)
    check("aten::logit_backward", torch.randn(8).to(dtype), x, eps)


def test_integers():
    x = torch.tensor([-3, 0, 2, 9])
    check("aten::relu", x)
    check("aten::relu", x.to(torch.uint8))
    check("aten::hardtanh", x, -2, 5)
    check("aten::threshold", x, 1, 7)
    check("aten::threshold", x, 1.5, 7.5)
    check("aten::sigmoid", x)
    check("aten::tanh", x)
    check("aten::logit", torch.tensor([0, 1]))


def test_complex():
    z, g = torch.randn(9, dtype=torch.complex64), torch.randn(9, dtype=torch.complex64)
    for name in ("sigmoid", "tanh", "silu"):
        check(f"aten::{name}", z)
    for name in ("sigmoid_backward", "tanh_backward"):
        check(f"aten::{name}", g, z)


@pytest.mark.parametrize("dtype", FLOAT)
def test_prelu(dtype):
    x, g = torch.randn(3, 4, 5).to(dtype), torch.randn(3, 4, 5).to(dtype)
    weight = torch.randn(1, 4, 1).to(dtype)
    check("aten::_prelu_kernel", x, weight)
    check("aten::_prelu_kernel_backward", g, x, weight)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dtype, dim):
    x, dx = (torch.randn(4, 6, 8).to(dtype) for _ in range(2))
    y = torch.ops.aten.glu(x, dim)
    g, dg = torch.randn_like(y), torch.randn_like(y)
    check("aten::glu", x, dim)
    check("aten::glu_backward", g, x, dim)
    if dtype in (torch.float32, torch.float64):
        check("aten::glu_jvp", y, x, dx, dim)
        check("aten::glu_backward_jvp", torch.ops.aten.glu_backward(g, x, dim), g, x, dg, dx, dim)


def test_rrelu():
    x = torch.randn(4000)
    check("aten::rrelu_with_noise_functional", x, torch.ones_like(x), 0.1, 0.4)
    y, noise = run("aten::rrelu_with_noise_functional", x, torch.zeros_like(x), 0.1, 0.4, True)
    assert torch.equal(noise[x > 0], torch.ones_like(x)[x > 0])
    slopes = noise[x <= 0]
    assert 0.1 <= slopes.min() < 0.11 and 0.39 < slopes.max() <= 0.4 and abs(slopes.mean() - 0.25) < 0.01
    torch.testing.assert_close(y, x * noise)


@pytest.mark.parametrize("bounds", [(0.1, 0.4), (0.25, 0.25)])
@pytest.mark.parametrize("training", [True, False])
def test_rrelu_backward(training, bounds):
    x, g, noise = torch.randn(40), torch.randn(40), torch.rand(40)
    check("aten::rrelu_with_noise_backward", g, x, noise, *bounds, training, False)


def test_unknown_approximation_names_the_operator():
    with pytest.raises(NotImplementedError, match="gelu: approximate must be 'none' or 'tanh', got 'sloppy'"):
        activation.gelu(1.0, "sloppy")


def test_gelu_gradient_vanishes_far_from_zero():
    x = torch.tensor([-30.0, -12.0, -9.0, -8.0, 8.0, 9.0, 12.0, 30.0])
    check("aten::gelu_backward", torch.full_like(x, 100.0), x, approximate="tanh", rtol=0, atol=1e-5)


def test_complex_sigmoid_where_the_exponential_vanishes():
    """1 + exp(-inf + inf i) is 1, whatever the angle."""
    inf = torch.inf
    x = torch.tensor([complex(inf, inf), complex(inf, -inf), complex(inf, torch.nan), complex(inf, 1), 1 + 1j])
    check("aten::sigmoid", x)


def test_logit_with_bounds_that_cross():
    check("aten::logit", torch.tensor([0.2, 0.5, 0.8, torch.nan]), 0.7)
