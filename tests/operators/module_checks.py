"""Every module of PyTorch's module database against CPU; with --help, how to run them over all their inputs.

python tests/operators/module_checks.py --modules 'nn.*RNN*,nn.Transformer' --dtypes float32,bfloat16 --limit 8
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import inspect
import pickle
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from compare import Mismatch, compare
from mirror import Mirror, mapped, tensors
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput, module_db
from torch.testing._internal.common_utils import noncontiguous_like

MODULES: dict[str, ModuleInfo] = {m.name: m for m in module_db}


class Call(NamedTuple):
    """Arguments of one forward, and where they lie."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def on(self, device: str, *, wide: bool = False) -> Call:
        return Call(*mapped((tuple(self.args), dict(self.kwargs)), Mirror(device, wide=wide)))

    def noncontiguous(self) -> Call:
        def change(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return noncontiguous_like(x.detach()).requires_grad_(x.requires_grad)

        return Call(*mapped((self.args, self.kwargs), change))

    def __str__(self) -> str:
        short = mapped(tuple(self), lambda x: f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else x)
        return f"{short[0]}, {short[1]}".replace("torch.", "")[:300]


_NO_HALF = {"nn.AvgPool3d"}  # CPU has no kernel


def dtypes_of(info: ModuleInfo) -> list[torch.dtype]:
    """float32, and float64 or bfloat16 by turns."""
    others = (torch.float64, torch.float64 if info.name in _NO_HALF else torch.bfloat16)
    return [torch.float32, others[zlib.crc32(info.name.encode()) % len(others)]]


def _determined(m: torch.nn.Module, call: Call, dtype: torch.dtype) -> torch.nn.Module:
    """What is random cannot be compared by value: no dropout, and windows of fractional pools that are given."""
    for part in m.modules():
        if isinstance(part, (torch.nn.FractionalMaxPool2d, torch.nn.FractionalMaxPool3d)):
            rank = 2 if isinstance(part, torch.nn.FractionalMaxPool2d) else 3
            shape = call.args[0].shape[: call.args[0].ndim - rank]
            part._random_samples = torch.rand(*[1] * (2 - len(shape)), *shape, rank, dtype=dtype)
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    return m


def _made(info: ModuleInfo, given: ModuleInput, dtype: torch.dtype, call: Call, *, training: bool) -> torch.nn.Module:
    arguments = given.constructor_input
    torch.manual_seed(3)
    made = info.module_cls(*arguments.args, **arguments.kwargs)
    return _determined(made, call, dtype).to(dtype).train(training)


def _ran(m: torch.nn.Module, call: Call) -> list[Any]:
    """Results, gradients of inputs and of parameters, and buffers after one forward and backward."""
    torch.manual_seed(4)
    result = m(*call.args, **call.kwargs)
    generator = torch.Generator().manual_seed(5)
    differentiable = [t for t in tensors(result) if t.requires_grad]
    leaves = [t for t in (*tensors((call.args, call.kwargs)), *m.parameters()) if t.requires_grad]
    grads: Any = []
    if differentiable and leaves:
        cotangents = [
            torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype) for t in differentiable
        ]
        grads = torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True)
    kept = [t.detach().clone() for t in m.buffers()]
    return [*tensors(result), *grads, *kept]


def _placed(m: torch.nn.Module, device: str) -> bool:
    return all(t.device.type == device for t in (*m.parameters(), *m.buffers()))


def _same_state(m: torch.nn.Module, other: torch.nn.Module) -> bool:
    a, b = m.state_dict(), other.state_dict()
    return list(a) == list(b) and all(
        v.dtype == b[k].dtype and torch.equal(v.cpu(), b[k].cpu()) for k, v in a.items() if isinstance(v, torch.Tensor)
    )


def _pair(info: ModuleInfo, given: ModuleInput, dtype: torch.dtype, call: Call, *, training: bool) -> Any:
    """The module on CPU and on the device. A lazy one becomes what it is going to be on the device."""
    there = _made(info, given, dtype, call, training=training)
    if not info.is_lazy:
        here, there = there, copy.deepcopy(there).to("tpu")
    else:
        there = there.to("tpu")
        with torch.no_grad():
            there(*call.on("tpu").args, **call.on("tpu").kwargs)
        here = copy.deepcopy(there).to("cpu")
    if not _placed(there, "tpu") or not _same_state(there, here):
        raise Mismatch("moving it changed it")
    return here, there


def _values(here: torch.nn.Module, there: torch.nn.Module, call: Call) -> bool:
    """Results and gradients, with contiguous and with strided inputs. Returns whether CPU could do it.

    Strided inputs give what contiguous ones give on CPU: its CTC loss, for one, ignores strides of its targets.
    """
    before = copy.deepcopy(here)
    try:
        expected = _ran(here, call.on("cpu"))
    except Exception:
        return False

    def judge() -> Any:
        return _ran(copy.deepcopy(before).double(), call.on("cpu", wide=True))

    for given in (call, call.noncontiguous()):
        got = _ran(copy.deepcopy(there), given.on("tpu"))
        _agree(got, expected, judge)
    here = before
    if not there.training:
        with torch.no_grad():  # some modules take another route
            expected = tensors(here(*call.args, **call.kwargs))
            there_call, wide_call = call.on("tpu"), call.on("cpu", wide=True)
            got = tensors(there(*there_call.args, **there_call.kwargs))
            _agree(got, expected, lambda: tensors(copy.deepcopy(before).double()(*wide_call.args, **wide_call.kwargs)))
    return True


def _none(x: Any) -> Any:
    return "None" if x is None else x


def _agree(got: list[Any], expected: list[Any], judge: Callable[[], list[Any]]) -> None:
    """``compare``, for results of which some have no gradient."""
    compare([_none(x) for x in got], [_none(x) for x in expected], lambda: [_none(x) for x in judge()])


def _life(info: ModuleInfo, given: ModuleInput, there: torch.nn.Module, dtype: torch.dtype) -> None:
    """To the host and back, through a state dict, through pickle, and made on the device at once."""
    start = copy.deepcopy(there)
    moved = copy.deepcopy(there).to("cpu")
    if not _placed(moved, "cpu") or not _same_state(moved, start):
        raise Mismatch("to the host: another module")
    if not _placed(moved.to("tpu"), "tpu") or not _same_state(moved, start):
        raise Mismatch("to the host and back: another module")
    other = copy.deepcopy(start)
    with torch.no_grad():
        for t in (*other.parameters(), *other.buffers()):
            t.zero_()
    other.load_state_dict(start.state_dict())
    if not _same_state(other, start):
        raise Mismatch("state_dict: another module")
    back = pickle.loads(pickle.dumps(start))
    if not _placed(back, "tpu") or not _same_state(back, start):
        raise Mismatch("pickle: another module")
    if "device" not in inspect.signature(info.module_cls.__init__).parameters:
        return
    arguments = given.constructor_input
    placed = mapped((arguments.args, arguments.kwargs), Mirror("tpu"))
    made = info.module_cls(*placed[0], **{**placed[1], "device": "tpu", "dtype": dtype})
    if not _placed(made, "tpu"):
        raise Mismatch('device="tpu": a part of it is elsewhere')


def _some(inputs: list[ModuleInput], limit: int | None) -> Iterator[tuple[int, ModuleInput]]:
    count = len(inputs) if limit is None else min(limit, len(inputs))
    for i in range(count):
        at = i * len(inputs) // count
        yield at, inputs[at]


def check(info: ModuleInfo, dtype: torch.dtype, *, training: bool, limit: int | None = None) -> int:
    """Raise ``Mismatch`` at the first input for which the device disagrees; returns how many agreed."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    done = 0
    for i, given in _some([g for g in inputs if g.forward_input is not None], limit):
        call = Call(tuple(given.forward_input.args), given.forward_input.kwargs)
        try:
            here, there = _pair(info, given, dtype, call, training=training)
            if _values(here, there, call):
                done += 1
                if i == 0:
                    _life(info, given, there, dtype)
        except Exception as e:
            kind = "" if isinstance(e, Mismatch) else f"{type(e).__name__}: "
            raise Mismatch(f"input {i}: {_described(given)} ({call}): {kind}{e}") from e
    return done


def _described(given: ModuleInput) -> str:
    def short(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return list(x.shape)
        return type(x).__name__ if isinstance(x, torch.nn.Module) else x

    made = given.constructor_input
    return f"{mapped((tuple(made.args), dict(made.kwargs)), short)}"[:200]


def check_errors(info: ModuleInfo) -> int:
    """The database's wrong arguments raise what they raise on CPU."""
    cases = info.module_error_inputs_func(info, device="tpu", dtype=torch.float32, requires_grad=False, training=True)
    for case in cases:
        given = case.module_error_input
        arguments = given.constructor_input
        try:
            m = info.module_cls(*arguments.args, **arguments.kwargs)
            if case.error_on is ModuleErrorEnum.FORWARD_ERROR:
                m.to("tpu")(*given.forward_input.args, **given.forward_input.kwargs)
                torch.tpu.synchronize()
        except case.error_type as e:
            if not re.search(case.error_regex, str(e)):
                raise Mismatch(f"says {str(e)!r}, expected {case.error_regex!r}") from e
        else:
            raise Mismatch(f"accepted; expected {case.error_type.__name__}: {case.error_regex}")
    return len(cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default="*", help="names with wildcards, separated by commas")
    parser.add_argument("--dtypes", default="", help="instead of float32 and one more")
    parser.add_argument("--limit", type=int, help="at most so many inputs of each module, spread evenly")
    options = parser.parse_args()
    from tqdm import tqdm

    warnings.simplefilter("ignore")
    tasks = [
        (info, dtype, training)
        for name, info in MODULES.items()
        if any(fnmatch.fnmatchcase(name, m) for m in options.modules.split(","))
        for dtype in ([getattr(torch, d) for d in options.dtypes.split(",")] if options.dtypes else dtypes_of(info))
        for training in (True, False)
    ]
    good = inputs = 0
    for info, dtype, training in tqdm(tasks, disable=None):
        torch.tpu.compiler.clear_cache()
        try:
            inputs += check(info, dtype, training=training, limit=options.limit)
            good += 1
        except Exception as e:
            tqdm.write(f"{info.name} {dtype} {'train' if training else 'eval'}: {str(e)[:600]}")
    print(f"{good} of {len(tasks)} pass, {inputs} inputs; host fallbacks: {dict(torch.tpu.fallback_counts())}")
    return 0 if good == len(tasks) else 1


if __name__ == "__main__":
    sys.exit(main())
