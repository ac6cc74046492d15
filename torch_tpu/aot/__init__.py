"""``torch.tpu.aot``: compile a model for a TPU slice that is not attached, and say what to expect of it.

    report = torch.tpu.aot.compile(model, (ids,), topology="v6e-1")
    print(report)                     # fits or not, memory by what, roofline time, largest operations
    report.to_json(), report.to_html()

=============  ==========================================================================================
``chips``      what each chip can do, and the names of slices
``state``      the tensors that a model, its inputs and its optimizer hold
``trace``      fake tensors in their places; AOTAutograd's graphs
``program``    a graph as StableHLO, with donation
``compiler``   libtpu in a process of its own (``worker``)
``kernels``    Pallas kernels: their VMEM, and the compiler's errors with their lines
``hlo``        reading the compiled module: aliases, FLOPs, HBM traffic
``report``     the figures; ``table`` and ``page`` show them
``plan``       ``compile``; ``models`` has the presets of ``torch-tpu plan``
=============  ==========================================================================================
"""

from torch_tpu.aot.chips import CHIPS, TOPOLOGIES, Topology
from torch_tpu.aot.errors import CompilerError, LibtpuMissingError
from torch_tpu.aot.kernels import Kernel
from torch_tpu.aot.plan import compile
from torch_tpu.aot.report import Operation, ProgramReport, Report
from torch_tpu.aot.sharding import Shardings


def topologies() -> list[str]:
    """The names of all slices."""
    return list(TOPOLOGIES)


__all__ = [
    "CHIPS", "TOPOLOGIES", "CompilerError", "Kernel", "LibtpuMissingError", "Operation", "ProgramReport", "Report",
    "Shardings", "Topology", "compile", "topologies",
]  # fmt: skip
