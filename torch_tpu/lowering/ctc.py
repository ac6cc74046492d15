"""Connectionist temporal classification (Graves et al. 2006): the loss and its gradient.

The lengths are operands: another batch of sequences is not another program. Everything is computed on the padded
batch; what lies beyond a sequence's end is masked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import checks
from torch_tpu.lowering.registry import Meta, register


class _Alignment(NamedTuple):
    """The states of the forward-backward recursion: a blank before, between and after the labels.

    labels: the class of each state, int[N, S]; allowed: whether state s may follow s - 2; valid: whether the state
    exists in this sequence; frames, ends: input lengths and the index of the last state, int[N].
    """

    labels: Any
    allowed: Any
    valid: Any
    frames: Any
    ends: Any


def _lengths(values: Any) -> Any:
    return jnp.stack([jnp.asarray(v) for v in values]) if isinstance(values, (list, tuple)) else values


def _align(targets: Any, input_lengths: Any, target_lengths: Any, blank: int, states: int, classes: int) -> _Alignment:
    frames, lengths = _lengths(input_lengths), _lengths(target_lengths)
    batch, longest = lengths.shape[0], (states - 1) // 2
    position = jnp.arange(longest)
    inside = position < lengths[:, None]
    if targets.ndim == 2:
        padded = jnp.pad(targets, ((0, 0), (0, max(longest - targets.shape[1], 0))))[:, :longest]
    elif targets.size == 0:
        padded = jnp.zeros((batch, longest), targets.dtype)
    else:  # one after the other
        starts = jnp.cumsum(lengths) - lengths
        padded = targets[jnp.clip(starts[:, None] + position, 0, targets.size - 1)]
    bad = inside & ((padded < 0) | (padded >= classes))
    checks.require(bad, padded, f"ctc_loss: target {{value}} is out of bounds for {classes} classes")
    padded = jnp.where(inside & ~bad, padded, blank)
    labels = jnp.full((batch, states), blank, padded.dtype).at[:, 1::2].set(padded)
    two_before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=-1)[:, :states]
    state = jnp.arange(states)
    allowed = (state % 2 == 1) & (state > 1) & (labels != two_before)
    ends = 2 * lengths
    return _Alignment(labels, allowed, state <= ends[:, None], frames, ends)


def _log_sum(*terms: Any) -> Any:
    high = terms[0]
    for t in terms[1:]:
        high = jnp.maximum(high, t)
    safe = jnp.where(jnp.isneginf(high), 0, high)
    return jnp.log(sum(jnp.exp(t - safe) for t in terms)) + safe


def _shift(x: Any, by: int) -> Any:
    """``x`` [N, S] moved by states, -inf moving in."""
    if by > 0:
        return jnp.pad(x, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, : x.shape[1]]
    return jnp.pad(x, ((0, 0), (0, -by)), constant_values=-jnp.inf)[:, -by:]


def _state_scores(log_probs: Any, alignment: _Alignment) -> Any:
    """The log-probability of each state's class, [T, N, S]."""
    at = jnp.broadcast_to(alignment.labels, (log_probs.shape[0], *alignment.labels.shape))
    return jnp.where(alignment.valid, jnp.take_along_axis(log_probs, at, axis=2, mode="clip"), -jnp.inf)


def _at_state(x: Any, state: Any) -> Any:
    """x[n, state[n]], -inf where the state is negative."""
    found = jnp.take_along_axis(x, jnp.maximum(state, 0)[:, None], axis=1, mode="clip")[:, 0]
    return jnp.where(state < 0, -jnp.inf, found)


def _batched(log_probs: Any) -> Any:
    return log_probs if log_probs.ndim == 3 else log_probs[:, None]


@register(
    "aten::_ctc_loss", "aten::_ctc_loss.Tensor", operands=("input_lengths", "target_lengths"), meta=True
)  # fmt: skip
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
    *,
    meta: tuple[Meta, ...],
) -> Any:
    # zero_infinity is applied to the loss by ctc_loss itself; here only the gradient needs it.
    probs, states = _batched(log_probs), meta[1].shape[-1]
    alignment = _align(targets, input_lengths, target_lengths, blank, states, probs.shape[2])
    scores = _state_scores(probs, alignment)
    started = jnp.where(jnp.arange(states) < 2, scores[0], -jnp.inf)

    def step(alpha: Any, score: Any) -> tuple[Any, Any]:
        skipped = jnp.where(alignment.allowed, _shift(alpha, 2), -jnp.inf)
        alpha = _log_sum(alpha, _shift(alpha, 1), skipped) + score
        return alpha, alpha

    _, later = lax.scan(step, started, scores[1:])
    alphas = jnp.moveaxis(jnp.concatenate([started[None], later]), 0, 1)  # [N, T, S]
    last = jnp.maximum(alignment.frames - 1, 0)[:, None, None]
    final = jnp.take_along_axis(alphas, last, axis=1, mode="clip")[:, 0]
    loss = -_log_sum(_at_state(final, alignment.ends), _at_state(final, alignment.ends - 1))
    no_frames = jnp.where(alignment.ends == 0, 0, jnp.inf)
    loss = jnp.where(alignment.frames == 0, no_frames, loss)
    return loss.reshape(meta[0].shape), alphas.reshape(meta[1].shape)


@register(
    "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", operands=("input_lengths", "target_lengths")
)  # fmt: skip
def ctc_loss_backward(
    grad: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: Any,
    log_alpha: Any,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    probs, states = _batched(log_probs), log_alpha.shape[-1]
    frames, classes = probs.shape[0], probs.shape[2]
    alignment = _align(targets, input_lengths, target_lengths, blank, states, classes)
    scores = _state_scores(probs, alignment)
    at_end = jnp.arange(states)
    at_end = (at_end == alignment.ends[:, None]) | (at_end == alignment.ends[:, None] - 1)
    may_skip = jnp.pad(alignment.allowed, ((0, 0), (0, 2)))[:, 2:]

    def step(later: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
        score, t = now
        skipped = jnp.where(may_skip, _shift(later, -2), -jnp.inf)
        follows = _log_sum(later, _shift(later, -1), skipped) + score
        last = (t == alignment.frames - 1)[:, None]
        beta = jnp.where(last, jnp.where(at_end, score, -jnp.inf), follows)
        return beta, beta

    empty = jnp.full((probs.shape[1], states), -jnp.inf, probs.dtype)
    _, betas = lax.scan(step, empty, (scores, jnp.arange(frames)), reverse=True)
    alphas = jnp.moveaxis(log_alpha.reshape(probs.shape[1], frames, states), 1, 0)
    loss = neg_log_likelihood.reshape(-1)
    # The probability of being in the state at that time, given the target: both recursions count its score.
    possible = alignment.valid & ~jnp.isneginf(scores)
    posterior = jnp.exp(jnp.where(possible, alphas + betas - scores + loss[:, None], -jnp.inf))
    is_class = (alignment.labels[:, :, None] == jnp.arange(classes)).astype(probs.dtype)
    by_class = jnp.einsum("tns,nsc->tnc", posterior, is_class, precision=lax.Precision.HIGHEST)
    result = (jnp.exp(probs) - by_class) * grad.reshape(-1)[:, None]
    result = jnp.where(jnp.isinf(loss)[:, None], 0 if zero_infinity else jnp.nan, result)
    seen = jnp.arange(frames)[:, None] < alignment.frames
    return jnp.where(seen[:, :, None], result, 0).reshape(log_probs.shape)
