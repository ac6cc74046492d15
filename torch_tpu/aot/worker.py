"""The process that calls libtpu: compiles one program and writes down what came of it.

Run as a file, with JAX alone: ``python -P worker.py FOLDER``. The folder has ``program.bin`` (what ``jax.export``
serialized) and ``request.json``; ``result.json`` and ``program.hlo`` are added. A process of its own, since libtpu
ends the process on some programs that it cannot compile, and since its environment variables are for it alone.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any


def compile_program(folder: pathlib.Path) -> dict[str, Any]:
    import jax
    import jax.export
    from jax.experimental import topologies

    request = json.loads((folder / "request.json").read_text())
    options = {k: tuple(v) for k, v in request["topology_options"].items()}
    devices = topologies.get_topology_desc(request["topology"], "tpu", **options).devices
    with jax.enable_x64(True):
        exported = jax.export.deserialize(bytearray((folder / "program.bin").read_bytes()))
        shardings = _shardings(request, devices, len(exported.in_avals))
        avals = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s)
            for a, s in zip(exported.in_avals, shardings, strict=True)
        ]
        # A program without operands knows its device by its results alone.
        place: dict[str, Any] = {} if avals else {"out_shardings": jax.sharding.SingleDeviceSharding(devices[0])}
        jitted = jax.jit(exported.call, donate_argnums=tuple(request["donated"]), keep_unused=True, **place)
        lowered = jitted.lower(*avals)
        start = time.perf_counter()
        compiled = lowered.compile(compiler_options=request["compiler_options"] or None)
    seconds = time.perf_counter() - start
    (folder / "program.hlo").write_text(compiled.as_text() or "")
    memory = compiled.memory_analysis()
    cost: dict[str, Any] = dict(compiled.cost_analysis() or {})
    return {
        "seconds": seconds,
        "memory": {
            n: int(getattr(memory, f"{n}_size_in_bytes", 0))
            for n in ("argument", "output", "alias", "temp", "generated_code")
        },
        "cost": {k: float(cost[k]) for k in ("flops", "bytes accessed", "optimal_seconds") if k in cost},
    }


def _shardings(request: dict[str, Any], devices: Any, count: int) -> list[Any]:
    """One device, or a mesh over the slice with one partition of each operand (None: the whole on every device)."""
    import jax
    import numpy as np

    mesh = request.get("mesh")
    if not mesh:
        return [jax.sharding.SingleDeviceSharding(devices[0])] * count
    grid = np.array(devices[: int(np.prod(list(mesh.values())))]).reshape(list(mesh.values()))
    over = jax.sharding.Mesh(grid, tuple(mesh))
    specs = [jax.sharding.PartitionSpec(*_axes(p or ())) for p in request["partitions"]]
    return [jax.sharding.NamedSharding(over, s) for s in specs]


def _axes(partition: Any) -> list[Any]:
    return [tuple(p) if isinstance(p, list) else p for p in partition]


def main(folder: str) -> int:
    place = pathlib.Path(folder)
    try:
        result = compile_program(place)
    except Exception as e:  # the compiler's word is a result
        result = {"error": f"{type(e).__name__}: {e}"}
    (place / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
