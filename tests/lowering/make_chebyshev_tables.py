"""Writes torch_tpu/lowering/chebyshev_tables.py: ``python tests/lowering/make_chebyshev_tables.py``. Needs mpmath.

Each table approximates a smooth factor of a special function, computed with 50 digits at Chebyshev nodes; the names
and the variables are those of ``special.py``.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 50
NODES = 64
SMALLEST = mp.mpf(2) ** -56  # relative to the largest coefficient: below float64's rounding


def chebyshev(f: Callable[[mp.mpf], mp.mpf]) -> list[float]:
    """Coefficients of ``f`` on [-1, 1], the first one halved already."""
    angles = [mp.pi * (j + mp.mpf(1) / 2) / NODES for j in range(NODES)]
    values = [f(mp.cos(a)) for a in angles]
    found = [2 * sum(v * mp.cos(k * a) for v, a in zip(values, angles)) / NODES for k in range(NODES)]
    found[0] /= 2
    largest = max(abs(c) for c in found)
    while abs(found[-1]) < SMALLEST * largest:
        found.pop()
    assert len(found) < NODES - 8, "not smooth enough"
    return [float(c) for c in found]


def on(low: float, high: float, f: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
    """``f`` on [low, high] as a function on [-1, 1]."""
    return lambda t: f((mp.mpf(high) - low) / 2 * t + (mp.mpf(high) + low) / 2)


def modulus(order: int, quadrature: bool) -> Callable[[mp.mpf], mp.mpf]:
    """Hankel's P and Q * x / 8 as functions of (8 / x)^2."""

    def f(z: mp.mpf) -> mp.mpf:
        x = 8 / mp.sqrt(z)
        phase = x - (2 * order + 1) * mp.pi / 4
        j, y, c, s = mp.besselj(order, x), mp.bessely(order, x), mp.cos(phase), mp.sin(phase)
        size = mp.sqrt(mp.pi * x / 2)
        return size * (y * c - j * s) * x / 8 if quadrature else size * (j * c + y * s)

    return f


def airy_modulus(quadrature: bool) -> Callable[[mp.mpf], mp.mpf]:
    """The two amplitudes of Ai(-x) as functions of (4 / zeta)^2, zeta = 2/3 x^(3/2)."""

    def f(z: mp.mpf) -> mp.mpf:
        zeta = 4 / mp.sqrt(z)
        x = (3 * zeta / 2) ** (mp.mpf(2) / 3)
        phase = zeta + mp.pi / 4
        a, b, c, s = mp.airyai(-x), mp.airybi(-x), mp.cos(phase), mp.sin(phase)
        size = mp.sqrt(mp.pi) * mp.root(x, 4)
        return size * (b * s - a * c) * zeta / 4 if quadrature else size * (a * s + b * c)

    return f


def airy_decay(z: mp.mpf) -> mp.mpf:
    """Ai(x) exp(zeta) x^(1/4) as a function of 4 / zeta."""
    zeta = 4 / z
    x = (3 * zeta / 2) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * mp.exp(zeta) * mp.root(x, 4)


def root_of(f: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
    return lambda z: f(mp.sqrt(z))


def erfcx(x: mp.mpf) -> mp.mpf:
    return mp.exp(x * x) * mp.erfc(x)


TWO_OVER_PI = 2 / mp.pi
AIRY_MIDDLE = mp.mpf(6) ** (mp.mpf(2) / 3)  # where zeta is 4

TABLES: dict[str, Callable[[mp.mpf], mp.mpf]] = {
    "J0": on(0, 64, root_of(lambda x: mp.besselj(0, x))),
    "J1": on(0, 64, root_of(lambda x: mp.besselj(1, x) / x)),
    "Y0": on(0, 64, root_of(lambda x: mp.bessely(0, x) - TWO_OVER_PI * mp.log(x) * mp.besselj(0, x))),
    "Y1": on(0, 64, root_of(lambda x: (mp.bessely(1, x) - TWO_OVER_PI * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x)),
    "P0": on(0, 1, modulus(0, False)),
    "Q0": on(0, 1, modulus(0, True)),
    "P1": on(0, 1, modulus(1, False)),
    "Q1": on(0, 1, modulus(1, True)),
    "K0": on(0, 4, root_of(lambda x: mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x))),
    "K1": on(0, 4, root_of(lambda x: x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x)))),
    "K0_TAIL": on(0, 1, lambda z: mp.besselk(0, 2 / z) * mp.exp(2 / z) * mp.sqrt(2 / z)),
    "K1_TAIL": on(0, 1, lambda z: mp.besselk(1, 2 / z) * mp.exp(2 / z) * mp.sqrt(2 / z)),
    "AIRY": on(-AIRY_MIDDLE, AIRY_MIDDLE, mp.airyai),
    "AIRY_DECAY": on(0, 1, airy_decay),
    "AIRY_P": on(0, 1, airy_modulus(False)),
    "AIRY_Q": on(0, 1, airy_modulus(True)),
    "ERFCX": lambda t: (1 + 2 * 3.75 * (1 + t) / (1 - t)) * erfcx(3.75 * (1 + t) / (1 - t)),
}


def main() -> None:
    lines = ['"""Chebyshev coefficients of smooth factors of functions, made by make_chebyshev_tables.py."""', ""]
    for name, f in TABLES.items():
        lines += [f"{name} = (", *(f"    {c!r}," for c in chebyshev(f)), ")"]
        print(name, len(lines))
    target = pathlib.Path(__file__).parents[2] / "torch_tpu" / "lowering" / "chebyshev_tables.py"
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
