"""Checks of the operator database that device tpu does not pass, each with its reason.

A line stands for an entry (with wildcards), a check and dtypes (with wildcards). The tests leave out what it covers; a
full sweep runs that too, and ``report.py`` says which lines nothing needs any more.
"""

from __future__ import annotations

import fnmatch
from typing import NamedTuple


class Gap(NamedTuple):
    entry: str
    check: str
    dtypes: str  # names separated by spaces, or "*"
    reason: str

    def covers(self, entry: str, check: str, dtype: str) -> bool:
        return (
            fnmatch.fnmatchcase(entry, self.entry)
            and fnmatch.fnmatchcase(check, self.check)
            and any(fnmatch.fnmatchcase(dtype, d) for d in self.dtypes.split())
        )


_ROUNDING = (
    "a gradient through nearly equal singular values: rounding differs matrix by matrix; over 60 random ones the "
    "largest error against complex128 is 1.1 times CPU's in the mean"
)
_COMPLEX32 = "XLA has no complex type of half precision; it is refused with the list of types there are"

_SIZE_OF_VALUES = "the shape of the result depends on values; one XLA program has fixed shapes (refused with the line)"
_ON_HOST = "the operator has no lowering: eager runs it on the host, which a program cannot"

GAPS = (
    Gap("chalf", "*", "*", _COMPLEX32),
    Gap("complex", "*", "float16", _COMPLEX32),
    Gap("view_as_complex", "*", "float16", _COMPLEX32),
    *(
        Gap(name, "backward", "complex64", _ROUNDING)
        for name in ("svd", "linalg.svd", "linalg.cond", "linalg.lstsq", "linalg.lstsq.grad_oriented")
    ),
    Gap(
        "nn.functional.scaled_dot_product_attention",
        "backward",
        "float32",
        "the gradient of a score is weight * (g - sum(dO * O)), as in every fused kernel: 1.07e-5 where the two are "
        "equal",
    ),
    Gap(
        "nn.functional.multi_head_attention_forward",
        "noncontiguous",
        "float32",
        "rounding that the softmax of scores in the hundreds magnifies: 3.6e-6 relative in one sample",
    ),
    Gap(
        "nn.functional.max_pool1d",
        "refused",
        "int64",
        "CPU's kernel for no gradients has no integers; the one it takes where a gradient is asked, max_pool2d's, has",
    ),
    Gap("narrow_copy", "out", "int*", "CPU ignores the strides of out= and writes elsewhere"),
    Gap("nn.functional.avg_pool3d", "out", "int*", "CPU ignores the strides of out= and writes elsewhere"),
    Gap(
        "nn.functional.scaled_dot_product_attention",
        "second_order",
        "*",
        "PyTorch has no second derivative of fused attention, on CUDA neither: sdpa_kernel(SDPBackend.MATH) has one",
    ),
    *(
        Gap(
            f"nn.functional.linear_cross_entropy.{variant}",
            "forward",
            "bfloat16 float16",
            "PyTorch's table of accumulation types by device knows cpu and cuda; elsewhere it accumulates in half, "
            "unless told acc_dtype=torch.float32",
        )
        for variant in ("chunked", "chunked_none")
    ),
    *(
        Gap(name, "compiled*", "*", _SIZE_OF_VALUES)
        for name in (
            "argwhere",
            "bincount",
            "combinations",
            "masked_select",
            "nonzero",
            "tensor_split",
            "unique",
            "unique_consecutive",
        )
    ),
    Gap("linalg.eig", "compiled*", "*", _ON_HOST),
    Gap("linalg.eigvals", "compiled*", "*", _ON_HOST),
)


def gap(entry: str, check: str, dtype: str) -> Gap | None:
    return next((g for g in GAPS if g.covers(entry, check, dtype)), None)
