"""An exception in backward reaches the caller as itself: each in a process of its own, which it may not end."""

import subprocess
import sys

import pytest

RAISES = {
    "tensor hook": "y.register_hook(fail)",
    "hook of a leaf": "x.register_hook(fail)",
    "post accumulate hook": "x.register_post_accumulate_grad_hook(fail)",
    "node hook": "y.grad_fn.register_hook(fail)",
    "node prehook": "y.grad_fn.register_prehook(fail)",
}

PROGRAM = """
import torch

def fail(*args):
    raise KeyError("mine")

def run(hook, backward):
    x = torch.ones(4, 4, device="tpu", requires_grad=True)
    y = x * 2
    exec(hook)
    try:
        backward(y.sum() * 3, x)
    except KeyError as e:
        assert e.args == ("mine",)
        frames, tb = [], e.__traceback__
        while tb:
            frames.append(tb.tb_frame.f_code.co_name)
            tb = tb.tb_next
        assert frames[-1] == "fail", frames
    else:
        raise AssertionError("nothing was raised")

torch.zeros(1, device="tpu")  # starts the device, which chooses a thread for backward
for threads in (False, True):
    torch.autograd.set_multithreading_enabled(threads)
    run({hook!r}, lambda loss, x: loss.backward())
    if "accumulate" not in {hook!r}:
        run({hook!r}, lambda loss, x: torch.autograd.grad(loss, x))
x = torch.ones(3, device="tpu", requires_grad=True)
(x * x).sum().backward()
assert x.grad.tolist() == [2.0, 2.0, 2.0]
print("went on")
"""


@pytest.mark.parametrize("kind", RAISES)
def test_an_exception_of_a_hook_is_the_caller_s(kind):
    program = PROGRAM.replace("{hook!r}", repr(RAISES[kind]))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "went on" in done.stdout, done.stderr[-2000:]
