"""Autocast for device "tpu": the cast rules of ``torch.autocast("cuda")``, with bfloat16 as the default.

Lists after PyTorch's autocast documentation. An operator in none of them runs in the types it is given.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.binding.registration import register, register_fallback

KEY = "AutocastPrivateUse1"

LOWER_PRECISION = (
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
    "_grouped_mm",
)  # fmt: skip

FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip

# Given a dtype by the caller, they use it; else they run in float32.
FLOAT32_UNLESS_ASKED = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList", "norm.ScalarOpt_dtype", "norm.Scalar",
    "norm.ScalarOpt_dim",
)  # fmt: skip

WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add", "stack", "cat", "index_copy",
)  # fmt: skip

BANNED = ("binary_cross_entropy",)

_key: Any = torch._C._parse_dispatch_key(KEY)
_EXCLUDE = torch._C.DispatchKeySet(_key)
_ExcludeGuard = torch._C._ExcludeDispatchKeyGuard


def _eligible(t: torch.Tensor) -> bool:
    return t.is_floating_point() and t.device.type == "tpu" and t.dtype != torch.float64


def _map(x: Any, f: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return f(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_map(v, f) for v in x)
    return x


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for v in x for t in _tensors(v)] if isinstance(x, (list, tuple)) else []


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not _eligible(x) or x.dtype == dtype:
        return x
    is_leaf_weight = x.is_leaf and x.requires_grad and x.dtype == torch.float32 and not x._is_view()
    if not (is_leaf_weight and torch.is_autocast_cache_enabled()):
        return x.to(dtype)
    # A weight that several operators use is cast once a region, as PyTorch's autocast does.
    entry = _weights.get(id(x))
    if entry is not None and entry[0] is x and entry[1].dtype == dtype and entry[2] == torch.is_grad_enabled():
        return entry[1]
    cast = x.to(dtype)
    _weights[id(x)] = (x, cast, torch.is_grad_enabled())
    return cast


# PyTorch keeps autocast's dtypes by thread and starts each thread with float16 for a backend of ours; a thread that
# has chosen none is given bfloat16 when its dtype is first asked for.
class _Thread(threading.local):
    chosen = False


_thread = _Thread()
_get_dtype, _set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype
DEFAULT = torch.bfloat16


def get_autocast_dtype(device_type: str) -> torch.dtype:
    if device_type == "tpu" and not _thread.chosen:
        set_autocast_dtype(device_type, DEFAULT)
    return _get_dtype(device_type)


def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
    if device_type == "tpu":
        _thread.chosen = True
    _set_dtype(device_type, dtype)


def install_defaults() -> None:
    """Make bfloat16 the dtype of ``torch.autocast("tpu")``, in every thread."""
    torch.get_autocast_dtype = functools.wraps(_get_dtype)(get_autocast_dtype)
    torch.set_autocast_dtype = functools.wraps(_set_dtype)(set_autocast_dtype)
    get_autocast_dtype("tpu")  # this thread's, also for who asks C++


_weights: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}


def clear_cache() -> None:
    """Forget cast weights; called when the outermost autocast region ends."""
    _weights.clear()


def _lower(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeGuard(_EXCLUDE):
            dtype = get_autocast_dtype("tpu")
            return op(*_map(args, lambda t: _cast(t, dtype)), **_map_values(kwargs, lambda t: _cast(t, dtype)))

    return kernel


def _map_values(kwargs: dict[str, Any], f: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    return {k: _map(v, f) for k, v in kwargs.items()}


def _float32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeGuard(_EXCLUDE):
            return op(
                *_map(args, lambda t: _cast(t, torch.float32)), **_map_values(kwargs, lambda t: _cast(t, torch.float32))
            )

    return kernel


def _float32_unless_asked(op: Any) -> Callable[..., Any]:
    takes_dtype = any(a.name == "dtype" for a in op._schema.arguments)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeGuard(_EXCLUDE):
            first = _tensors(args)[0]
            asked = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
            if asked or not _eligible(first):
                return op(*args, **kwargs)
            if takes_dtype:
                return op(*args, **{**kwargs, "dtype": torch.float32})
            return op(*_map(args, lambda t: _cast(t, torch.float32)), **kwargs)

    return kernel


def _widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _ExcludeGuard(_EXCLUDE):
            dtype = get_autocast_dtype("tpu")
            for t in _tensors([*args, *kwargs.values()]):
                if _eligible(t):
                    dtype = torch.promote_types(dtype, t.dtype)
            return op(*_map(args, lambda t: _cast(t, dtype)), **_map_values(kwargs, lambda t: _cast(t, dtype)))

    return kernel


def _banned(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
            "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe to autocast."
        )

    return kernel


def install() -> None:
    """Register the rules. An operator of the lists that this PyTorch does not have raises."""
    register_fallback(torch.library.fallthrough_kernel, KEY)
    rules = (
        (LOWER_PRECISION, _lower), (FLOAT32, _float32), (FLOAT32_UNLESS_ASKED, _float32_unless_asked),
        (WIDEST, _widest), (BANNED, _banned),
    )  # fmt: skip
    for names, rule in rules:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            register(f"aten::{name}", rule(op), key=KEY)
    _clear_with_torch_cache()


def _clear_with_torch_cache() -> None:
    original = torch.clear_autocast_cache

    def clear() -> None:
        clear_cache()
        original()

    torch.clear_autocast_cache = clear
