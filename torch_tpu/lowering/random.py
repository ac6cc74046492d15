"""Random numbers. Every lowering gets a PRNG key; the caller derives it from the generator's state.

Distribution parameters are operands. Values have PyTorch's ranges and distributions, not its streams.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.checks import require
from torch_tpu.lowering.gather_scatter import cast_like, widen_half
from torch_tpu.lowering.registry import Meta, register
from torch_tpu.lowering.search import insertion_points


def _compute(dtype: Any) -> Any:
    """The floating type in which samples for a torch dtype are drawn."""
    real = dtypes.real_of(dtype)
    return dtypes.to_jax(dtypes.compute_type(real)) if real.is_floating_point else jnp.dtype(jnp.float32)


def _number(value: Any, kind: Any) -> Any:
    return jnp.asarray(value).astype(kind)


def _must(bad: Any, message: str) -> None:
    bad = jnp.asarray(bad)
    require(bad, jnp.zeros(bad.shape, jnp.int64), message, RuntimeError)


# ---- uniform and normal


def _uniform(low: Any, high: Any, meta: Meta, key: Any) -> Any:
    """[low, high). Drawn with the digits of the result's type, so that rounding does not reach ``high``."""
    kind = _compute(meta.dtype)
    digits = dtypes.to_jax(meta.dtype)
    u = jax.random.uniform(key, meta.shape, digits).astype(kind)
    low, high = _number(low, kind), _number(high, kind)
    out = dtypes.cast(low + u * (high - low), meta.dtype)
    return jnp.where(out == dtypes.cast(high, meta.dtype), dtypes.cast(low, meta.dtype), out)


@register("aten::uniform", rng=True, meta=True)
def uniform(self: Any, low: Any = 0.0, high: Any = 1.0, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    _must(jnp.asarray(low) > jnp.asarray(high), "uniform_: expected from <= to")
    return _uniform(low, high, meta[0], key)


@register("aten::rand", "aten::rand.generator", rng=True, meta=True)
def rand(size: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _standard_uniform(meta[0], key)


@register("aten::rand_like", "aten::rand_like.generator", rng=True, meta=True)
def rand_like(self: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _standard_uniform(meta[0], key)


def _standard_uniform(meta: Meta, key: Any) -> Any:
    if not meta.dtype.is_complex:
        return jax.random.uniform(key, meta.shape, dtypes.to_jax(meta.dtype))
    parts = jax.random.uniform(key, (2, *meta.shape), _compute(meta.dtype))
    return lax.complex(parts[0], parts[1])


def _standard_normal(shape: tuple[int, ...], dtype: Any, key: Any) -> Any:
    """Variance 1; a complex one has half of it in each part."""
    kind = _compute(dtype)
    if dtype.is_complex:
        parts = jax.random.normal(key, (2, *shape), kind) * math.sqrt(0.5)
        return lax.complex(parts[0], parts[1])
    return jax.random.normal(key, shape, kind)


@register("aten::normal_functional", rng=True, meta=True)
def normal_functional(self: Any, mean: Any = 0.0, std: Any = 1.0, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _normal(mean, std, meta[0], key)


@register("aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", rng=True, meta=True)
def normal(mean: Any, std: Any = 1.0, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _normal(mean, std, meta[0], key)


@register("aten::normal.float_float", rng=True, meta=True)
def normal_float_float(
    mean: Any, std: Any, size: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]
) -> Any:  # fmt: skip
    return _normal(mean, std, meta[0], key)


def _normal(mean: Any, std: Any, meta: Meta, key: Any) -> Any:
    mean, std = jnp.asarray(mean), jnp.asarray(std)
    _must(jnp.real(std) < 0, "normal: expected std >= 0.0")
    z = _standard_normal(meta.shape, meta.dtype, key)
    return dtypes.cast(mean, dtypes.to_torch(z.dtype)) + dtypes.cast(std, dtypes.to_torch(z.dtype)) * z


@register("aten::randn", "aten::randn.generator", rng=True, meta=True)
def randn(size: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _standard_normal(meta[0].shape, meta[0].dtype, key)


@register("aten::randn_like", "aten::randn_like.generator", rng=True, meta=True)
def randn_like(self: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _standard_normal(meta[0].shape, meta[0].dtype, key)


# ---- bernoulli and dropout


def _bernoulli(p: Any, shape: tuple[int, ...], key: Any) -> Any:
    p = widen_half(jnp.asarray(p))
    if not jnp.issubdtype(p.dtype, jnp.floating):
        p = p.astype(jnp.float32)
    _must(~((p >= 0) & (p <= 1)), "bernoulli: expected 0 <= p <= 1")
    return jax.random.uniform(key, shape, p.dtype) < p


@register("aten::bernoulli", rng=True)
def bernoulli(self: Any, *, key: Any) -> Any:
    return _bernoulli(self, self.shape, key)


@register("aten::bernoulli.p", "aten::bernoulli.Tensor", rng=True)
def bernoulli_p(self: Any, p: Any, *, key: Any) -> Any:
    return _bernoulli(p, self.shape, key)


@register("aten::native_dropout", rng=True)
def native_dropout(input: Any, p: Any, train: bool | None, *, key: Any) -> tuple[Any, Any]:
    if train is False:
        return input, jnp.ones(input.shape, jnp.bool_)
    x = widen_half(input)
    keep = 1 - _number(p, _real_kind(x))
    mask = jax.random.uniform(key, x.shape, keep.dtype) < keep
    scale = jnp.where(keep == 0, 0, 1 / keep)
    return x * (mask * scale).astype(x.dtype), mask


@register("aten::_fused_dropout", rng=True)
def fused_dropout(self: Any, p: Any, *, key: Any) -> tuple[Any, Any]:
    """CUDA's form: ``p`` is the probability to keep an element, and the mask is uint8."""
    x = widen_half(self)
    keep = _number(p, _real_kind(x))
    mask = jax.random.uniform(key, x.shape, keep.dtype) < keep
    return x * jnp.where(mask, 1 / keep, 0).astype(x.dtype), mask


@register("aten::_masked_scale")
def masked_scale(self: Any, mask: Any, scale: Any) -> Any:
    x = widen_half(self)
    return x * cast_like(mask, x) * cast_like(jnp.asarray(scale), x)


def _real_kind(x: Any) -> Any:
    return jnp.real(x).dtype


@register("aten::native_dropout_backward")
def native_dropout_backward(grad_output: Any, mask: Any, scale: Any) -> Any:
    grad, scale = widen_half(grad_output), jnp.asarray(scale)
    if not jnp.issubdtype(grad.dtype, jnp.inexact):
        return grad * mask * scale  # floating results of whole numbers, as in ATen
    return grad * cast_like(mask, grad) * cast_like(scale, grad)


# ---- other distributions


def _open_uniform(meta: Meta, key: Any) -> Any:
    """(0, 1)."""
    kind = _compute(meta.dtype)
    return jax.random.uniform(key, meta.shape, kind, minval=jnp.finfo(kind).tiny)


@register("aten::exponential", rng=True, meta=True)
def exponential(self: Any, lambd: Any = 1.0, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    kind = _compute(meta[0].dtype)
    _must(jnp.asarray(lambd) <= 0, "exponential_: expected lambd > 0.0")
    return -jnp.log(_open_uniform(meta[0], key)) / _number(lambd, kind)


@register("aten::geometric", rng=True, meta=True)
def geometric(self: Any, p: Any, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    """How many trials until the first success: 1, 2, ..."""
    kind = _compute(meta[0].dtype)
    p = _number(p, kind)
    _must(~((p > 0) & (p < 1)), "geometric_: expected 0 < p < 1")
    trials = jnp.maximum(jnp.ceil(jnp.log(_open_uniform(meta[0], key)) / jnp.log1p(-p)), 1)
    return dtypes.cast(trials, meta[0].dtype)


@register("aten::cauchy", rng=True, meta=True)
def cauchy(self: Any, median: Any = 0.0, sigma: Any = 1.0, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    kind = _compute(meta[0].dtype)
    _must(jnp.asarray(sigma) <= 0, "cauchy_: expected sigma > 0.0")
    u = jax.random.uniform(key, meta[0].shape, kind)
    return _number(median, kind) + _number(sigma, kind) * jnp.tan(jnp.pi * (u - 0.5))


@register("aten::log_normal", rng=True, meta=True)
def log_normal(self: Any, mean: Any = 1.0, std: Any = 2.0, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    _must(jnp.asarray(std) <= 0, "log_normal_: expected std > 0.0")
    return jnp.exp(_normal(mean, std, meta[0], key))


@register("aten::poisson", rng=True)
def poisson(self: Any, *, key: Any) -> Any:
    rate = widen_half(self)
    _must(~(rate >= 0), "poisson: expected all rates >= 0")
    return jax.random.poisson(key, rate, dtype=jnp.int64)


@register("aten::binomial", rng=True)
def binomial(count: Any, prob: Any, *, key: Any) -> Any:
    count, prob = jnp.broadcast_arrays(widen_half(count), widen_half(prob))
    return jax.random.binomial(key, count, prob, dtype=count.dtype)


@register("aten::_standard_gamma", rng=True)
def standard_gamma(self: Any, *, key: Any) -> Any:
    x = widen_half(self)
    return jnp.maximum(jax.random.gamma(key, x, dtype=x.dtype), jnp.finfo(x.dtype).tiny)


@register("aten::_sample_dirichlet", rng=True)
def sample_dirichlet(self: Any, *, key: Any) -> Any:
    """Gamma samples divided by their sum, in logarithms: small concentrations underflow otherwise."""
    x = widen_half(self)
    return jax.nn.softmax(jax.random.loggamma(key, x, dtype=x.dtype), -1)


# ---- integers


def _integers(low: Any, high: Any, shape: tuple[int, ...], key: Any) -> Any:
    """[low, high) as int64; of 64 random bits, so that the bias of the remainder is negligible."""
    low, high = jnp.asarray(low).astype(jnp.int64), jnp.asarray(high).astype(jnp.int64)
    require(low >= high, low, "random_: expected from < to, got from={value}", RuntimeError)
    bits = jax.random.bits(key, shape, jnp.uint64)
    span = lax.bitcast_convert_type(high - low, jnp.uint64)
    return low + lax.bitcast_convert_type(bits % jnp.maximum(span, 1), jnp.int64)


def _largest(dtype: Any) -> int:
    """The greatest integer random_() gives: the type's maximum, or up to where all integers are exact."""
    kind = dtypes.to_jax(dtype)
    if dtype.is_floating_point:
        return 2 ** (jnp.finfo(kind).nmant + 1)
    return 1 if kind == jnp.bool_ else min(jnp.iinfo(kind).max, 2**63 - 1)


def _up_to_largest(low: Any, meta: Meta, key: Any) -> Any:
    """[low, the greatest integer of the type], both included."""
    low = jnp.asarray(low).astype(jnp.int64)
    bits = jax.random.bits(key, meta.shape, jnp.uint64)
    # The number of values is 0 when it is 2**64: then the bits are the answer.
    count = lax.bitcast_convert_type(jnp.asarray(_largest(meta.dtype), jnp.int64) - low, jnp.uint64) + jnp.uint64(1)
    return low + lax.bitcast_convert_type(jnp.where(count == 0, bits, bits % jnp.maximum(count, 1)), jnp.int64)


@register("aten::random", rng=True, meta=True)
def random(self: Any, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _up_to_largest(0, meta[0], key)


@register("aten::random.to", rng=True, operands=["to"])
def random_to(self: Any, to: Any, *, key: Any) -> Any:
    return _integers(0, to, self.shape, key)


@register("aten::random.from", rng=True, meta=True, operands=["from", "to"])
def random_from(self: Any, low: Any, to: Any, *, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _up_to_largest(low, meta[0], key) if to is None else _integers(low, to, self.shape, key)


@register("aten::randint", "aten::randint.generator", rng=True, meta=True, operands=["high"])
def randint(high: Any, size: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _integers(0, high, meta[0].shape, key)


@register("aten::randint.low", "aten::randint.low_generator", rng=True, meta=True, operands=["low", "high"])
def randint_low(low: Any, high: Any, size: Any, *, dtype: Any = None, key: Any, meta: tuple[Meta, ...]) -> Any:
    return _integers(low, high, meta[0].shape, key)


@register("aten::randint_like", "aten::randint_like.generator", "aten::randint_like.Tensor",
          "aten::randint_like.Tensor_generator", rng=True, operands=["high"])  # fmt: skip
def randint_like(self: Any, high: Any, *, dtype: Any = None, key: Any) -> Any:
    return _integers(0, high, self.shape, key)


@register("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype", rng=True, operands=["low", "high"])
def randint_like_low(self: Any, low: Any, high: Any, *, dtype: Any = None, key: Any) -> Any:
    return _integers(low, high, self.shape, key)


@register("aten::randperm", "aten::randperm.generator", rng=True)
def randperm(n: int, *, dtype: Any = None, key: Any) -> Any:
    return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))


@register("aten::multinomial", rng=True)
def multinomial(self: Any, num_samples: int, replacement: bool = False, *, key: Any) -> Any:
    """Categories with probabilities in proportion to the last dimension."""
    if self.shape[-1] > 2**24:
        raise RuntimeError("number of categories cannot exceed 2^24")
    weights = widen_half(self)
    total = jnp.sum(weights, -1, keepdims=True)
    invalid = "multinomial: invalid multinomial distribution"
    if replacement:
        _must(weights < 0, f"{invalid} (encountering probability entry < 0)")
        _must(~(weights < jnp.inf), f"{invalid} (encountering probability entry = infinity or NaN)")
    else:
        finite = (weights >= 0) & (weights < jnp.inf)
        _must(~finite, "multinomial: probability tensor contains either `inf`, `nan` or element < 0")
    _must(total <= 0, f"{invalid} (sum of probabilities <= 0)")
    if not replacement and num_samples > weights.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if not replacement or num_samples == 1:
        # The Gumbel trick: the k best of log p plus noise are k draws without replacement.
        score = jnp.log(weights) + jax.random.gumbel(key, weights.shape, weights.dtype)
        if num_samples == 1:
            return jnp.argmax(score, -1, keepdims=True)
        return lax.top_k(score, num_samples)[1]
    edges = jnp.cumsum(weights, -1)
    u = jax.random.uniform(key, (*weights.shape[:-1], num_samples), weights.dtype) * edges[..., -1:]
    # Rounding may reach the last edge: the last category that is possible takes it.
    n = weights.shape[-1]
    last = n - 1 - jnp.argmax(jnp.flip(weights > 0, -1), -1, keepdims=True)
    return jnp.minimum(insertion_points(edges, u, True), last)
