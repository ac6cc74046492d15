"""What torch_tpu/binding/accelerate.py expects of Accelerate."""

from __future__ import annotations

import inspect

from accelerate import state
from accelerate.utils import modeling


def test_a_state_takes_cpu_and_asks_the_variable():
    assert [*inspect.signature(state.PartialState.__init__).parameters] == ["self", "cpu", "kwargs"]
    source = inspect.getsource(inspect.unwrap(state.PartialState.__init__))
    assert 'os.environ.get("ACCELERATE_TORCH_DEVICE"' in source


def test_memory_is_asked_of_a_fixed_list_of_devices():
    assert [*inspect.signature(modeling.get_max_memory).parameters] == ["max_memory"]
    source = inspect.getsource(inspect.unwrap(modeling.get_max_memory))
    assert "torch.cuda.mem_get_info" in source
    assert "torch.accelerator" not in source, "Accelerate asks torch.accelerator now: the change is not needed"
    assert modeling.convert_file_size_to_int("1KB") == 1000
