"""Names of slices, and what a chip can do."""

import pytest

from torch_tpu.aot import chips


def test_names_count_cores_or_chips_as_google_does():
    assert chips.topology("v5p-8").libtpu_name == "v5p:2x2x1"  # v5p counts TensorCores
    assert chips.topology("v4-8").chips == 4
    assert chips.topology("v6e-8").libtpu_name == "v6e:2x4"
    assert chips.topology("v5litepod-4") is chips.topology("v5e-4")
    assert chips.topology("v6e:2x4") is chips.topology("v6e-8")
    assert chips.topology("tpu7x-8").libtpu_name == "tpu7x:2x2x1"
    assert chips.topology("v6e-1").libtpu_options == {"chips_per_host_bounds": [1, 1, 1]}


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(
        ValueError, match=r"unknown TPU topology 'v6e-3'; there are: v4-2.*v5e-1, v5e-4.*v6e-256.*v7x-8"
    ):
        chips.topology("v6e-3")


def test_peak_by_dtype_and_precision():
    v6e, v7x = chips.CHIPS["v6e"], chips.CHIPS["v7x"]
    assert v6e.flops("bf16") == 918e12
    assert v6e.flops("s8") == 1836e12
    assert v6e.flops("f32", "highest") == 918e12 / 6
    assert v7x.flops("bf16") == 2307e12 / 2  # a device is one of a chip's two


def test_the_smallest_slice_by_memory():
    v6e = chips.CHIPS["v6e"]
    assert chips.smallest_slice(v6e, 140e9).name == "v6e-8"
    assert chips.smallest_slice(v6e, 1e15) is None
