"""Exceptions of hooks in backward.

PyTorch lets go of a stream guard while the exception of a tensor's hook is still pending in the interpreter. A guard
written in Python is called then, and C++ ends the process, since its own call "returned a result with an exception
set" where nothing may be thrown. So the guard takes the exception away, and the engine raises it when it is back.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_pending: list[BaseException] = []
_poll: Any = ctypes.pythonapi.PyErr_Occurred  # ctypes raises what is pending after any function of Python's
_poll.restype = None


class Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined,misc]
    def type_(self) -> Any:
        try:
            _poll()
        except BaseException as e:
            _pending.append(e)
        return torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]


class Engine(torch._C._ImperativeEngine):  # type: ignore[name-defined,misc]
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:  # an error without an exception
            if not _pending:
                raise
            error = _pending[0]
            raise error from None
        finally:
            _pending.clear()


def install() -> None:
    torch.autograd.Variable._execution_engine = Engine()  # type: ignore[attr-defined]
