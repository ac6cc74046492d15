"""``torch.Generator(device="tpu")`` and the devices' default generators.

PyTorch makes generators for CPU only unless a C++ hook says otherwise. So a tpu generator is a CPU generator (its
state, seeds and stream are PyTorch's) whose ``device`` is a tpu; random programs take their key from it. A kernel is
handed a new wrapper of the same C++ object: what is a tpu generator is known by that object's address.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_BaseGenerator: Any = torch._C.Generator
_tpu_generators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _GeneratorType(type(_BaseGenerator)):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _BaseGenerator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _BaseGenerator)


class Generator(_BaseGenerator, metaclass=_GeneratorType):
    """A random number generator of a device; see ``torch.Generator``."""

    def __new__(cls, device: Any = "cpu") -> Any:
        target = torch.device(device)
        if target.type != "tpu":
            return _BaseGenerator(target)
        from torch_tpu.binding.device import current_device, index_of

        made = _make(current_device() if target.index is None else index_of(target))
        _guard_cpu_kernels()
        return made

    _index: int

    @property
    def device(self) -> torch.device:
        return torch.device("tpu", self._index)

    def __reduce__(self) -> Any:
        return _rebuild, (str(self.device), self.initial_seed(), self.get_state())

    def __deepcopy__(self, memo: Any) -> Generator:
        made = _rebuild(str(self.device), self.initial_seed(), self.get_state())
        memo[id(self)] = made
        return made

    def clone_state(self) -> Any:
        return self.__deepcopy__({})


def _make(index: int) -> Generator:
    made = _BaseGenerator.__new__(Generator, torch.device("cpu"))
    made._index = index
    _tpu_generators[made._cdata] = made
    return made


def _rebuild(device: str, seed: int, state: torch.Tensor) -> Any:
    made = Generator(device)
    made.manual_seed(seed)
    made.set_state(state)
    return made


def is_tpu_generator(generator: Any) -> bool:
    return generator._cdata in _tpu_generators


def check_for_tpu(generator: Any) -> Any:
    """The generator, if a random operator on tpu may take it; RuntimeError in PyTorch's words if not."""
    if generator._cdata not in _tpu_generators:
        raise RuntimeError(f"Expected a 'tpu' device type for generator but found '{generator.device.type}'")
    return generator


_defaults: dict[int, Any] = {}


def default_generator(index: int) -> Any:
    """The generator that random operators on ``tpu:index`` draw from when none is given."""
    found = _defaults.get(index)
    if found is None:
        found = _defaults[index] = _make(index)
        found.manual_seed(_seed if _seed is not None else torch.default_generator.initial_seed())
    return found


_seed: int | None = None


class _DefaultGenerators:
    """``torch.tpu.default_generators``: a sequence, one a device."""

    def __len__(self) -> int:
        from torch_tpu.binding.device import device_count

        return device_count()

    def __getitem__(self, index: int) -> Any:
        from torch_tpu.binding.device import index_of

        return default_generator(index_of(index))


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator."""
    from torch_tpu.binding.device import current_device

    default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the default generators of all devices; ``torch.manual_seed`` calls it."""
    global _seed
    _seed = int(seed)
    for g in _defaults.values():
        g.manual_seed(_seed)


def seed() -> int:
    """Seed the current device's default generator from the system's entropy; returns the seed."""
    from torch_tpu.binding.device import current_device

    return default_generator(current_device()).seed()


def seed_all() -> int:
    fresh = _BaseGenerator(torch.device("cpu")).seed()
    manual_seed_all(fresh)
    return fresh


def initial_seed() -> int:
    from torch_tpu.binding.device import current_device

    return default_generator(current_device()).initial_seed()


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """The state of the device's default generator, a uint8 CPU tensor."""
    from torch_tpu.binding.device import index_of

    return default_generator(index_of(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    from torch_tpu.binding.device import index_of

    default_generator(index_of(device)).set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    return [default_generator(i).get_state() for i in range(len(default_generators))]


def set_rng_state_all(new_states: Any) -> None:
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


# A CPU kernel would draw from a tpu generator without a word, since its C++ object is a CPU one. So CPU's random
# kernels are wrapped with a check, from the first explicit tpu generator on.
_RANDOM = (
    "normal_", "uniform_", "bernoulli_.float", "bernoulli_.Tensor", "random_", "random_.from", "random_.to",
    "exponential_", "geometric_", "cauchy_", "log_normal_", "multinomial", "multinomial.out", "randperm.generator_out",
    "poisson", "binomial", "bernoulli.out", "_standard_gamma", "_sample_dirichlet", "normal.Tensor_float",
    "normal.Tensor_float_out", "normal.float_Tensor", "normal.float_Tensor_out", "normal.Tensor_Tensor",
    "normal.Tensor_Tensor_out", "native_dropout",
)  # fmt: skip
_guard: list[torch.library.Library] = []


def _guard_cpu_kernels() -> None:
    if _guard:
        return
    from torch_tpu.binding.registration import overriding

    library = torch.library.Library("aten", "IMPL")
    _guard.append(library)
    with overriding():
        assert library.m is not None
        for name in _RANDOM:
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
                library.m.impl(name, "CPU", _checked(torch.library.get_kernel(f"aten::{name}", "CPU")), True)


def _checked(kernel: Any) -> Any:
    from torch_tpu.runtime import rng

    call, drawing = kernel.call_boxed, rng.drawing

    def checked(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not drawing.now:
            for a in (*args, kwargs.get("generator")):
                if isinstance(a, torch._C.Generator) and is_tpu_generator(a):
                    raise RuntimeError("Expected a 'cpu' device type for generator but found 'tpu'")
        return call(keys, *args, **kwargs)

    return checked
