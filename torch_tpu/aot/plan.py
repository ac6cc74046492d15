"""``torch.tpu.aot.compile``: a model's programs compiled for a slice that is not attached."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_tpu.aot import report as aot_report
from torch_tpu.aot.chips import Topology
from torch_tpu.aot.chips import topology as find_topology
from torch_tpu.aot.compiler import Partitioning, compile_program, require_libtpu
from torch_tpu.aot.program import Program, lower
from torch_tpu.aot.sharding import Shardings, partitioning
from torch_tpu.aot.spread import spread
from torch_tpu.aot.state import BUFFERS, OPTIMIZER, WEIGHTS
from torch_tpu.aot.trace import Tracer
from torch_tpu.lowering import experts
from torch_tpu.ops import chips
from torch_tpu.runtime import interpretation

_STATE = (WEIGHTS, BUFFERS, OPTIMIZER)


def compile(
    model: Callable[..., Any],
    inputs: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: str,
    train: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    shardings: Shardings | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    items: int | None = None,
    unit: str = "tokens",
    title: str | None = None,
) -> aot_report.Report:
    """Compile a model for a TPU slice, with no TPU and no memory for its tensors, and say what to expect.

    Tensors of the model and of its inputs may be of any device, "meta" too: only their shapes, strides and dtypes
    count, and nothing is read. What the call writes to (a static KV cache, batch-norm statistics) is donated, as
    ``torch.compile`` does. The model, its inputs and its optimizer are as before afterwards.

    Args:
      model: a module, or a function; what a function closes over is found too.
      inputs: its positional arguments: a tuple or list, or the one argument.
      kwargs: its keyword arguments.
      topology: ``"v6e-1"``, ``"v5p-8"``; see ``torch.tpu.aot.topologies()``.
      train: the programs of a training step: forward, backward and, with ``optimizer``, its step.
      loss: for training: the loss from the model's output; by default the output itself, or its ``.loss``.
      optimizer: for training: makes the optimizer from the parameters (``torch.optim.AdamW``).
      shardings: a mesh and how tensors are laid over it; by default all is on one device.
      compiler_options: XLA's options.
      items: how much of ``unit`` one call handles, for the rate.
      title: the report's first line.

    Raises:
      ValueError: no such topology; the loss cannot be found; a sharding matches nothing, or does not fit.
      LibtpuMissingError: libtpu is not installed.
      CompilerError: libtpu refuses a program for another reason than memory.
    """
    where = find_topology(topology)
    require_libtpu()
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    with interpretation.lowering_for("tpu", where.chip.name):
        programs = capture(model, args, kwargs or {}, train=train, loss=loss, optimizer=optimizer, shardings=shardings)
    reports = compile_all(programs, where, shardings, compiler_options)
    name = (
        title
        or f"{type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, '__name__', 'function')}"
    )
    return aot_report.make(name, where, shardings.devices if shardings else 1, reports, items, unit)


def capture(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, train: bool = False,
    loss: Callable[[Any], torch.Tensor] | None = None, optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    shardings: Shardings | None = None,
) -> list[Program]:  # fmt: skip
    """The programs of a call, or of a training step, in the order in which they run; not compiled yet.

    ``shardings`` says where kernels that run on each device's part get theirs from.
    """
    if optimizer is not None and not train:
        raise ValueError("aot.compile: an optimizer needs train=True")
    tracer = Tracer(model, args, kwargs)
    graphs = tracer.forward(grad=train, loss=loss)
    if optimizer is not None:
        graphs.append(tracer.optimizer(optimizer))
    split = None if shardings is None else spread(shardings, graphs)
    laid = None
    if shardings is not None and shardings.experts is not None:
        laid = experts.Experts(shardings.mesh, shardings.experts)
    with chips.partitioned(shardings is not None, split), experts.over(laid):
        return [lower(g) for g in graphs]


def compile_all(
    programs: Sequence[Program], where: Topology, shardings: Shardings | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> list[aot_report.ProgramReport]:  # fmt: skip
    """Compile each program; what the others need to keep counts in its memory."""
    precision = torch.get_float32_matmul_precision()
    if shardings is not None:
        shardings.check(programs)
    out = []
    for program in programs:
        laid: Partitioning | None = partitioning(shardings, program, where) if shardings else None
        found = compile_program(program, where, options=compiler_options, partitioning=laid)
        resident = _resident(program, programs, shardings)
        out.append(aot_report.program_report(program, found, where, resident, precision, laid))
    return out


def _resident(program: Program, programs: Sequence[Program], shardings: Shardings | None) -> dict[str, int]:
    """Bytes by role, on one chip, of the state that other programs use and this one does not."""
    own = {v.name for v in program.operands}
    kept: collections.Counter[str] = collections.Counter()
    seen = set(own)
    for other in programs:
        for v in other.operands:
            if v.role in _STATE and v.name not in seen:
                seen.add(v.name)
                kept[v.role] += v.nbytes // (1 if shardings is None else shardings.parts(v))
    return dict(kept)
