"""What a TPU chip can do, and the names of the slices it comes in.

Figures are those of Google's public documentation, Cloud TPU > "TPU architecture" > the page of each version (v4, v5e,
v5p, v6e, TPU7x), table "System specifications": peak compute per chip, HBM capacity and bandwidth per chip,
inter-chip interconnect (ICI) bandwidth per chip. ``usable`` is what libtpu 0.0.42 lets a program have of a device's
HBM, from the words with which it refuses one that is too large. ``vmem`` is per TensorCore, as JAX's table of chips
has it (``jax.experimental.pallas.tpu.get_tpu_info_for_chip``).

A slice is named by its TensorCores for v4, v5p and v7x and by its chips for v5e and v6e, as Google does: v5p-8 is four
chips. libtpu names it by its shape in chips: ``v5p:2x2x1``.
"""

from __future__ import annotations

import dataclasses
import math

GIB = 1 << 30
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU chip. Compute in FLOP/s (or int8 operations), bandwidths in bytes/s, memory in bytes."""

    name: str
    libtpu: str  # what libtpu calls the version
    hbm: int
    bf16: float
    int8: float
    hbm_bandwidth: float
    ici_bandwidth: float
    devices: int  # how many devices JAX sees in it
    usable: int  # bytes of HBM that a program may have on one device
    vmem: int  # bytes of on-chip memory that a kernel may have
    cores_in_name: int  # how many a chip counts in a slice's name
    shapes: tuple[str, ...]  # of slices, in chips

    @property
    def device_hbm(self) -> int:
        return self.hbm // self.devices

    def flops(self, dtype: str, precision: str = "default") -> float:
        """Peak FLOP/s of one device for products of ``dtype``.

        float32 is made of bfloat16 passes: one, three or six by the precision. An int8 rate holds for 8-bit integers.
        """
        passes = {"default": 1, "high": 3, "highest": 6}[precision] if dtype in ("f32", "f64") else 1
        rate = self.int8 if dtype in ("s8", "u8") else self.bf16
        return rate / self.devices / passes


_TORUS = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
_MESH = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "v4", 32 * GIB, 275e12, 275e12, 1228e9, 300e9, 2, int(15.25 * GIB), 16 * MIB, 2, _TORUS),
        Chip("v5e", "v5e", 16 * GIB, 197e12, 393e12, 819e9, 200e9, 1, int(15.75 * GIB), 128 * MIB, 1, _MESH),
        Chip("v5p", "v5p", 95 * GIB, 459e12, 918e12, 2765e9, 600e9, 1, int(95.74 * GIB), 64 * MIB, 2, _TORUS),
        Chip("v6e", "v6e", 32 * GIB, 918e12, 1836e12, 1638e9, 448e9, 1, int(31.25 * GIB), 128 * MIB, 1, _MESH),
        # An int8 rate of TPU7x is not documented; that of bf16 is a bound for it from below.
        Chip("v7x", "tpu7x", 192 * GIB, 2307e12, 2307e12, 7380e9, 1200e9, 2, int(94.75 * GIB), 64 * MIB, 2, _TORUS),
    )
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of chips that need not be attached."""

    name: str  # Google's name of it
    chip: Chip
    shape: tuple[int, ...]  # in chips

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips * self.chip.devices

    @property
    def libtpu_name(self) -> str:
        return f"{self.chip.libtpu}:{'x'.join(map(str, self.shape))}"

    @property
    def libtpu_options(self) -> dict[str, list[int]]:
        return {"chips_per_host_bounds": [1, 1, 1]} if self.chips == 1 else {}


def _table() -> dict[str, Topology]:
    found = {}
    for chip in CHIPS.values():
        for text in chip.shapes:
            shape = tuple(map(int, text.split("x")))
            name = f"{chip.name}-{math.prod(shape) * chip.cores_in_name}"
            found[name] = Topology(name, chip, shape)
    return found


TOPOLOGIES = _table()


def topology(name: str) -> Topology:
    """The slice of a name: Google's (``v6e-8``), libtpu's (``v6e:2x4``) or an accelerator type (``v5litepod-8``).

    Raises:
      ValueError: there is none of this name; the message lists what there is.
      TypeError: it is no name.
    """
    if not isinstance(name, str):
        raise TypeError(f"topology: expected a name such as 'v6e-8', got {name!r}")
    asked = name.strip().lower().replace("v5litepod", "v5e").replace("tpu7x", "v7x")
    if asked in TOPOLOGIES:
        return TOPOLOGIES[asked]
    for t in TOPOLOGIES.values():
        if asked == f"{t.chip.name}:{'x'.join(map(str, t.shape))}":
            return t
    by_chip = "; ".join(", ".join(t.name for t in TOPOLOGIES.values() if t.chip is chip) for chip in CHIPS.values())
    raise ValueError(f"unknown TPU topology {name!r}; there are: {by_chip}")


def smallest_slice(chip: Chip, nbytes: float) -> Topology | None:
    """The smallest slice whose devices together let a program have ``nbytes``; None if no slice does."""
    fitting = [t for t in TOPOLOGIES.values() if t.chip is chip and t.devices * chip.usable >= nbytes]
    return min(fitting, key=lambda t: t.chips, default=None)
