"""Strided operands, in-place forms and ``out=``, on op_db_part.py's part of PyTorch's operator database."""

from __future__ import annotations

import op_db_part
import pytest
import torch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("title", "part", "dtype"), list(op_db_part.cases("noncontiguous", "inplace", "out")))
def test_strides(title: str, part: str, dtype: torch.dtype) -> None:
    op_db_part.run(title, part, dtype)
