"""Functions over a mesh of devices: each device runs the function on its part of every array.

A mesh of this process's own devices takes and gives whole tensors, on the device that the arguments are on; with
``TORCH_TPU_NUM_CPU_DEVICES`` a kernel that talks to other chips is run, interpreted, in one process. A mesh over the
ranks of a process group takes and gives each rank's own part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core as jax_core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import views
from torch_tpu.lowering import dtypes
from torch_tpu.pallas.function import At, JaxFunction, Traced, flatten
from torch_tpu.runtime import buffers, cluster, interpretation, platform, programs


def get_pallas_mesh(over: Mapping[str, int] | Any = None) -> Mesh:
    """The mesh for ``jax_op(..., mesh=...)``.

    Args:
      over: axis name -> size, over this process's devices in their order; a ``DeviceMesh`` of ``torch.distributed``,
        over the ranks in it; None: all devices of this process, on the axis "x".

    Raises:
      ValueError: there are not as many devices.
      RuntimeError: the devices of the ranks are not joined.
    """
    if hasattr(over, "mesh_dim_names"):
        return _over_ranks(over)
    found = platform.devices()
    axes = {"x": len(found)} if over is None else dict(over)
    count = math.prod(axes.values())
    if count > len(found):
        raise ValueError(
            f"get_pallas_mesh: {axes} are {count} devices, this process has {len(found)}; on a machine without TPUs "
            f"{platform.DEVICES_VARIABLE}={count} makes as many"
        )
    return Mesh(np.array(found[:count]).reshape(tuple(axes.values())), tuple(axes))


def _over_ranks(over: Any) -> Mesh:
    ranks = over.mesh
    names = over.mesh_dim_names or tuple(f"dim{i}" for i in range(ranks.ndim))
    world = cluster.current()
    if ranks.numel() == 1:
        return Mesh(np.array([platform.device(0)]).reshape(tuple(ranks.shape)), tuple(names))
    if world is None or world.devices is None:
        raise RuntimeError(
            "get_pallas_mesh: the devices of the ranks are not joined; call init_process_group before the device is "
            "used"
        )
    devices = [world.devices[r] for r in ranks.flatten().tolist()]
    return Mesh(np.array(devices).reshape(tuple(ranks.shape)), tuple(names))


class _Span:
    """What the program cache needs of a program over a mesh; its function and arrays are global already."""

    def __init__(self, mesh: Mesh):
        self.devices = tuple(mesh.devices.flat)

    def spread(self, fn: Any, avals: Any) -> Any:
        return fn

    def avals(self, avals: Any) -> Any:
        return avals

    def entry(self, compiled: Any) -> Any:
        return compiled


class MeshedFunction(JaxFunction):
    """A function over a mesh; ``trace`` gives its global program."""

    def __init__(self, *args: Any, mesh: Mesh, in_specs: Any, out_specs: Any, **options: Any):
        super().__init__(*args, **options)
        arrays = sum(p.kind == "array" for p in self.signature.parameters)
        if any(p.kind == "arrays" for p in self.signature.parameters) or self.signature.result.form == "list":
            raise TypeError(f"jax_op {self.name}: over a mesh each array is a parameter, or a result, of its own")
        results = len(self.signature.result.parts)
        self.mesh = mesh
        self.in_specs = _specs(self.name, "input_partition_specs", in_specs, arrays, mesh)
        self.out_specs = _specs(self.name, "output_partition_specs", out_specs, results, mesh)
        process = platform.devices()[0].process_index
        self.by_rank = any(d.process_index != process for d in mesh.devices.flat)

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        raise NotImplementedError(
            f"{self.name}: an operator over a mesh is a program of its own, and cannot be part of a compiled graph; "
            "let the graph break there (torch.compiler.disable around the call, fullgraph=False)"
        )

    def trace(self, avals: Sequence[Any], template: tuple[Any, ...]) -> Traced:
        """For the arrays as the caller has them; the program is of global ones."""
        return super().trace([self._whole(a, s) for a, s in zip(avals, self.in_specs, strict=True)], template)

    def call(self, arrays: Sequence[Any], template: tuple[Any, ...]) -> Any:
        inner = super().call
        spread = jax.shard_map(
            lambda *parts: inner(parts, template), mesh=self.mesh, in_specs=tuple(self.in_specs),
            out_specs=self.out_specs[0] if self.signature.result.form == "one" else tuple(self.out_specs),
            check_vma=False,
        )  # fmt: skip
        return spread(*arrays)

    def outputs(self, values: Sequence[Any], shapes: Any = None) -> tuple[Any, ...]:
        made = super().outputs(values, shapes)
        return tuple(self._part(m, s) for m, s in zip(made, self.out_specs, strict=True))

    def _factor(self, spec: PartitionSpec, dim: int) -> int:
        axes = spec[dim] if dim < len(spec) else None
        names = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
        return math.prod(self.mesh.shape[n] for n in names)

    def _whole(self, a: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        shape = tuple(n * self._factor(spec, d) for d, n in enumerate(a.shape)) if self.by_rank else tuple(a.shape)
        return jax.ShapeDtypeStruct(shape, a.dtype, sharding=NamedSharding(self.mesh, spec))

    def _part(self, a: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        shape = tuple(n // self._factor(spec, d) for d, n in enumerate(a.shape)) if self.by_rank else tuple(a.shape)
        return jax.ShapeDtypeStruct(shape, a.dtype)

    # Running it ----------------------------------------------------------------------------------------------------

    def kernel(self, names: Sequence[str]) -> Callable[..., Any]:
        """The kernel of the operator; ``names`` are the schema's parameters."""
        defaults = {p.name: p.default for p in self.signature.parameters}

        def run(*args: Any, **kwargs: Any) -> Any:
            given = defaults | dict(zip(names, args, strict=False)) | kwargs
            self.check(given)
            tensors, template = flatten(self.signature, [given[n] for n in names])
            device = tensors[0].get_device() if tensors else 0
            made = self._run(tensors, template, device)
            form = self.signature.result.form
            return None if form == "none" else made[0] if form == "one" else tuple(made)

        return run

    def _run(self, tensors: Sequence[torch.Tensor], template: tuple[Any, ...], device: int) -> list[Any]:
        looks = [self._seen(t) for t in tensors]
        traced = self.trace(looks, template)
        if self.by_rank and platform.name() != "tpu" and interpretation.has_kernels(traced.jaxpr.jaxpr):
            raise NotImplementedError(
                f"{self.name}: a Pallas kernel is interpreted in one process, and this mesh is over several; run it in "
                f"one process with {platform.DEVICES_VARIABLE}={self.mesh.size}, or on TPUs"
            )
        avals = [self._whole(a, s) for a, s in zip(looks, self.in_specs, strict=True)]
        key = (
            "mesh", self.name, self.serial, repr(template), tuple(d.id for d in self.mesh.devices.flat),
            tuple((a.shape, str(a.dtype), str(s)) for a, s in zip(avals, self.in_specs, strict=True)),
        )  # fmt: skip
        fn = jax_core.jaxpr_as_fun(traced.jaxpr)
        program = programs.cache.get(key, self.name, fn, avals, device=device, span=_Span(self.mesh))  # type: ignore[arg-type]
        operands = [self._placed(t, a) for t, a in zip(tensors, avals, strict=True)]
        made = self._call(program, operands)
        return [self._taken(made[r.place], device) if isinstance(r, At) else r for r in traced.results]

    def _call(self, program: programs.Program, operands: Sequence[Any]) -> list[Any]:
        if not self.by_rank or platform.name() == "tpu":
            return program.call(*operands)
        # XLA:CPU runs a collective in the thread that calls it: all such programs go through one, in one order.
        from torch_tpu.distributed.operation import in_order

        running = in_order(lambda: jax.block_until_ready(program.call(*operands)))
        running.ended.wait()
        return running.result()

    def _placed(self, t: torch.Tensor, aval: jax.ShapeDtypeStruct) -> Any:
        whole = t.detach().to(dtypes.to_torch(aval.dtype)).contiguous()
        array = binding_tensor.buffer_of(whole).force()
        array = array.reshape(-1)[: whole.numel()].reshape(whole.shape) if array.shape != whole.shape else array
        if not self.by_rank:
            return jax.device_put(array, aval.sharding)
        return jax.make_array_from_single_device_arrays(aval.shape, aval.sharding, [array])

    def _taken(self, array: Any, device: int) -> torch.Tensor:
        local = array.addressable_data(0) if self.by_rank else jax.device_put(array, platform.device(device))
        dtype, shape = dtypes.to_torch(local.dtype), tuple(local.shape)
        stride = buffers.canonical_strides(shape)
        layout = views.layout_of(shape, stride, dtype, device)
        return binding_tensor.factory(shape, stride, dtype, device).make(buffers.Buffer(layout, local))


def _specs(name: str, argument: str, given: Any, count: int, mesh: Mesh) -> list[PartitionSpec]:
    """A partition of each array: a list of them, or one for all.

    Raises:
      ValueError: there are not as many as arrays, or one names an axis that the mesh has not.
    """
    found = [given] * count if given is None or isinstance(given, PartitionSpec) else list(given)
    if len(found) != count:
        raise ValueError(f"jax_op {name}: {argument} has {len(found)} partitions for {count} arrays")
    specs = [PartitionSpec() if s is None else s if isinstance(s, PartitionSpec) else PartitionSpec(*s) for s in found]
    for spec in specs:
        for axes in spec:
            for axis in axes if isinstance(axes, tuple) else [] if axes is None else [axes]:
                if axis not in mesh.shape:
                    raise ValueError(
                        f"jax_op {name}: {argument} names the axis {axis!r}; the mesh has {', '.join(mesh.axis_names)}"
                    )
    return specs
