"""What DTensor is told of this device's attention operator: how it may be split, and how it runs in a ring.

PyTorch knows these of the attention operators of other devices only. Context parallel splits the sequence, and passes
keys and values around the ranks; the ring is PyTorch's own.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.binding import dtensor_random
from torch_tpu.binding.importing import when_imported

_SEQUENCE = 2
_OUTPUTS, _GRADIENTS = 9, 4
_RING = "torch.distributed.tensor.experimental._context_parallel._attention"


def install() -> None:
    """Tell DTensor when it is imported, its random operators and context parallel when they are."""
    when_imported("torch.distributed.tensor", _declare)
    when_imported("torch.distributed.tensor._random", dtensor_random.install)
    when_imported(_RING, _add_ring)


def _operators() -> tuple[Any, Any]:
    aten = torch.ops.aten
    return (
        aten._scaled_dot_product_fused_attention_overrideable.default,
        aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    )


def _declare(module: Any) -> None:
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import register_op_strategy

    forward, backward = _operators()
    register_op_strategy(forward, schema_info=RuntimeSchemaInfo(4))(_forward)
    register_op_strategy(backward, schema_info=RuntimeSchemaInfo(4))(_backward)


def _bias_placement(bias: Any, dim: int) -> Any:
    """How a mask that broadcasts to (batch, heads, length, keys) is split where these are along ``dim``."""
    from torch.distributed.tensor import Replicate, Shard

    at = dim - (4 - len(bias.shape))
    return Shard(at) if at >= 0 and bias.shape[at] != 1 else Replicate()


def _forward(schema: Any) -> Any:
    """Along batch or heads, or whole."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._op_schema import OpStrategy
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    bias = next((a for a in schema.args_schema[3:4] if isinstance(a, OpStrategy)), None)
    choices: list[Any] = []
    for dim in (None, 0, 1) if len(schema.args_schema[0].shape) == 4 else (None,):
        x = Replicate() if dim is None else Shard(dim)
        mask = [] if bias is None else [Replicate() if dim is None else _bias_placement(bias, dim)]
        choices.append([x, x, None, None, None, None, Replicate(), Replicate(), None, x, x, x, *mask])
    mesh = schema.get_mesh_from_args()
    return expand_to_full_mesh_op_strategy(mesh, schema, choices, input_index=_OUTPUTS)


def _backward(schema: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._op_schema import OpStrategy
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    given = schema.args_schema
    bias = given[4] if isinstance(given[4], OpStrategy) else None
    of_bias = bias is not None and given[5][3]
    last = sum(isinstance(a, OpStrategy) for a in given[8:])  # the seed of dropout and its kin
    choices: list[Any] = []
    # The gradient of a mask is a sum over what it broadcasts along: it is computed whole.
    for dim in (None,) if of_bias or len(given[1].shape) != 4 else (None, 0, 1):
        x = Replicate() if dim is None else Shard(dim)
        mask = [] if bias is None else [Replicate() if dim is None else _bias_placement(bias, dim)]
        grads = [x, x, x, Replicate() if of_bias else None]
        choices.append([*grads, x, x, x, x, *mask, x, x, *[Replicate()] * last])
    mesh = schema.get_mesh_from_args(validate=False)
    return expand_to_full_mesh_op_strategy(mesh, schema, choices, input_index=_GRADIENTS)


def _add_ring(module: Any) -> None:
    forward, backward = _operators()
    module.custom_ops |= {forward: _ring_forward, backward: _ring_backward}


def _bound(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [a.name for a in op._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _local(x: Any, like: Any) -> Any:
    """This rank's part of a tensor that is split as ``like``."""
    from torch.distributed.tensor import DTensor

    if not isinstance(x, DTensor):
        return x
    return x.redistribute(like.device_mesh, like.placements).to_local() if x.ndim else x.to_local()


def _check(query: Any, bias: Any) -> None:
    split = [p for p in query.placements if not p.is_replicate()]
    if query.device_mesh.ndim != 1 or any(not p.is_shard(_SEQUENCE) for p in split) or not split:
        raise NotImplementedError(
            f"context parallel on tpu: queries must be split along the sequence over one dimension, got "
            f"{query.placements} of {query.device_mesh}"
        )
    if bias is not None:
        raise NotImplementedError("context parallel on tpu: an attn_mask is not supported; use is_causal")


def _ring_forward(op: Any, args: Any, kwargs: Any) -> Any:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention

    given = _bound(op, args, kwargs)
    query = given["query"]
    _check(query, given.get("attn_bias"))
    parts = {n: _local(given[n], query) for n in ("query", "key", "value")}
    out, logsumexp, *rest = _templated_ring_attention(
        query.device_mesh.get_group(), _SEQUENCE, torch.ops.aten._scaled_dot_product_fused_attention_overrideable,
        **parts, is_causal=given.get("is_causal", False), dropout_p=given.get("dropout_p", 0.0),
        scale=given.get("scale"),
    )  # fmt: skip
    wrapped = [DTensor.from_local(t, query.device_mesh, query.placements, run_check=False) for t in (out, logsumexp)]
    return (*wrapped, *rest)


def _ring_backward(op: Any, args: Any, kwargs: Any) -> Any:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention_backward

    given = _bound(op, args, kwargs)
    query = given["query"]
    _check(query, given.get("attn_bias"))
    found = {n: _local(v, query) for n, v in given.items()}
    grads = _templated_ring_attention_backward(
        query.device_mesh.get_group(), _SEQUENCE, op, grad_out_name="grad_out",
        **{**found, "grad_input_mask": [True, True, True, False]},
    )  # fmt: skip
    wrapped = [DTensor.from_local(t, query.device_mesh, query.placements, run_check=False) for t in grads[:3]]
    return (*wrapped, None)
