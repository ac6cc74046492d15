"""First and second gradients of operators, on the part of PyTorch's operator database that op_db_part.py chooses."""

from __future__ import annotations

import op_db_part
import pytest
import torch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("title", "part", "dtype"), list(op_db_part.cases("backward", "second_order")))
def test_gradients(title: str, part: str, dtype: torch.dtype) -> None:
    op_db_part.run(title, part, dtype)
