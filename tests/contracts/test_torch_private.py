"""What the package relies on in PyTorch's private API, a test a promise, as far as possible without the package.

They run in this process, where device "tpu" is PyTorch's PrivateUse1.
"""

import ctypes
import gc
import inspect

import pytest
import torch


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("kind", ctypes.c_int32), ("index", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


_keep = []


def made(address=(1 << 59) + 4096, index=0):
    """A float32 [2, 3] tensor with strides (1, 2) at an address that nothing is at."""
    sizes, steps = (ctypes.c_int64 * 2)(2, 3), (ctypes.c_int64 * 2)(1, 2)
    s = DLTensor(address, 12, index, 2, 2, 32, 1, ctypes.addressof(sizes), ctypes.addressof(steps), 0, None, None)
    _keep.append((s, sizes, steps))
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return torch._C._from_dlpack(capsule(ctypes.addressof(s), b"dltensor", None))


def test_dlpack_makes_a_private_use_tensor():
    t = made()
    assert t.device.type == "tpu" and t.dtype == torch.float32 and t.shape == (2, 3) and t.stride() == (1, 2)
    assert t.data_ptr() == (1 << 59) + 4096 and t.untyped_storage().nbytes() == 24
    keys = torch._C._dispatch_keys(t)
    for name in ("PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1", "ADInplaceOrView"):
        assert keys.has(getattr(torch._C.DispatchKey, name)), name


def test_dlpack_keeps_the_device_index():
    assert made(index=3).device.index == 3


def test_attributes_of_a_storage_live_as_long_as_the_storage():
    class Mark:
        gone = False

        def __del__(self):
            Mark.gone = True

    t = made((1 << 59) + 8192)
    t.untyped_storage().mark = Mark()
    view = t.detach()
    p = torch.nn.Parameter(view)
    del t, view
    gc.collect()
    assert isinstance(p.untyped_storage().mark, Mark) and not Mark.gone
    del p
    gc.collect()
    assert Mark.gone


def test_reinterpret_tensor_shares_the_storage_and_counts_from_the_offset():
    t = made()
    v = torch._C._dynamo.guards._reinterpret_tensor(t, (3,), (2,), 1)
    assert v.shape == (3,) and v.stride() == (2,) and v.storage_offset() == 1
    assert v.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
    w = torch._C._dynamo.guards._reinterpret_tensor(v, (1,), (1,), 2)
    assert w.storage_offset() == 3


def test_a_storage_from_a_pointer():
    s = torch._C._construct_storage_from_data_pointer(1 << 58, torch.device("tpu", 0), 64)
    assert isinstance(s, torch.UntypedStorage) and s.data_ptr() == 1 << 58 and s.device.type == "tpu"
    assert torch._C.StorageBase.nbytes(s) == 64


def test_swapping_implementations_keeps_python_objects():
    a, b = torch.zeros(2), torch.ones(3)
    view, ident = a[0:1], id(a)
    torch._C._swap_tensor_impl(a, b)
    assert id(a) == ident and a.tolist() == [1, 1, 1] and b.tolist() == [0, 0] and view.tolist() == [0]


def test_data_is_a_descriptor_of_tensor_base():
    d = torch._C.TensorBase.data
    t = torch.zeros(2, requires_grad=True)
    d.__set__(t, torch.ones(3))
    assert d.__get__(t).tolist() == [1, 1, 1] and t.requires_grad


def test_module_conversion_asks_for_shallow_copy_compatibility():
    source = inspect.getsource(torch.nn.Module._apply)
    assert "torch._has_compatible_shallow_copy_type(" in source and "param.data = param_applied" in source


@pytest.mark.parametrize(
    "name", ["view", "unfold", "view_as_complex", "view_as_real", "set_.source_Storage_storage_offset"]
)
def test_cpu_view_kernels_take_any_device(name):
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
    assert callable(kernel.call_boxed)


def test_boxed_view_kernel_on_a_device_tensor():
    t = torch._C._dynamo.guards._reinterpret_tensor(made(), (6,), (1,), 0)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    v = torch.library.get_kernel("aten::view", "CPU").call_boxed(keys, t, (2, 3))
    assert v.shape == (2, 3) and v.device.type == "tpu"


def test_the_dispatchers_introspection():
    assert "aten::add.Tensor" in torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has("aten::linear", "CompositeImplicitAutograd") and not has("aten::add.Tensor", "CompositeImplicitAutograd")
    assert torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::add.Tensor", "Meta")


def test_library_impl_registers_by_name_and_key():
    library = torch.library.Library("torch_tpu_contract", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.m.impl("twice", "CPU", lambda x: x * 2, False)
    assert torch.ops.torch_tpu_contract.twice(torch.ones(2)).tolist() == [2, 2]
    seen = []
    library.define("keyed(Tensor x) -> Tensor")
    library.m.impl("keyed", "CPU", lambda keys, x: seen.append(type(keys).__name__) or x * 3, True)
    assert torch.ops.torch_tpu_contract.keyed(torch.ones(2)).tolist() == [3, 3] and seen == ["DispatchKeySet"]


def test_guards_that_exclude_keys():
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        assert torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutocastPrivateUse1)
    assert hasattr(torch._C, "_AutoDispatchBelowAutograd")


def test_the_hooks_that_python_may_implement():
    hooks, guard = torch._C._acc.PrivateUse1Hooks, torch._C._acc.DeviceGuard
    assert {"is_available", "is_built", "has_primary_context"} <= set(dir(hooks)) and "type_" in dir(guard)
    from torch.utils import backend_registration

    parameters = inspect.signature(backend_registration._setup_privateuseone_for_python_backend).parameters
    assert list(parameters) == ["rename", "backend_module", "hook", "device_guard"]


@pytest.mark.parametrize("name", [n for n in dir(torch._C) if n.startswith("_accelerator_")])
def test_accelerator_functions_look_their_bindings_up_when_called(name):
    """torch.accelerator calls torch._C._accelerator_x by attribute, so a replaced one is what runs."""
    import torch.accelerator.memory

    sources = inspect.getsource(torch.accelerator) + inspect.getsource(torch.accelerator.memory)
    if name in sources:
        assert f"torch._C.{name}" in sources


def test_generators_can_be_subclassed_over_a_cpu_generator():
    class Mine(torch._C.Generator):
        @property
        def device(self):
            return "mine"

    g = torch._C.Generator.__new__(Mine, torch.device("cpu"))
    g.manual_seed(3)
    assert g.device == "mine" and isinstance(g._cdata, int) and g.initial_seed() == 3
    first = torch.rand(2, generator=g)
    assert torch.equal(first, torch.rand(2, generator=torch._C.Generator("cpu").manual_seed(3)))


def test_streams_and_events_can_be_subclassed():
    kind = int(torch._C._autograd.DeviceType.PrivateUse1)
    base = torch.tpu.Stream.__mro__[1]
    s = base.__new__(torch.tpu.Stream, stream_id=0, device_index=2, device_type=kind)
    assert s.device == torch.device("tpu", 2) and isinstance(s, base) and base.__name__ == "Stream"
    event = torch.tpu.Event.__mro__[1]
    assert event.__new__(torch.tpu.Event, device="tpu") is not None


def test_checkpoint_asks_whether_the_module_is_initialized():
    from torch.utils import checkpoint

    assert '"_initialized"' in inspect.getsource(checkpoint)


def test_printing_goes_through_tensor_str():
    from torch import _tensor_str

    assert "_tensor_str(" in inspect.getsource(_tensor_str._str_intern)
    assert list(inspect.signature(_tensor_str._tensor_str).parameters)[:2] == ["self", "indent"]


def test_gradient_edges_have_prehooks():
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    calls = []
    torch.autograd.graph.get_gradient_edge(x).node.register_prehook(lambda *g: calls.append(1))
    y.backward()
    assert calls == [1]


def test_backward_goes_through_the_engine_that_is_set():
    """binding/engine.py"""
    import inspect

    from torch.autograd import graph

    assert "Variable._execution_engine.run_backward(" in inspect.getsource(graph._engine_run_backward)
    assert isinstance(torch.autograd.Variable._execution_engine, torch._C._ImperativeEngine)


def test_a_rule_for_fake_tensors_may_pass_an_operator_on():
    """``eager/fakes.py`` has rules for device tpu alone; NotImplemented leaves other devices to PyTorch's own."""
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.ones(1, device="tpu")
    assert torch.ops.aten._grouped_mm.default in fake_impls.op_implementations_dict
    with FakeTensorMode():
        for device, dtype in (("tpu", torch.float32), ("cpu", torch.bfloat16)):
            x, w = torch.empty(8, 16, device=device, dtype=dtype), torch.empty(2, 16, 8, device=device, dtype=dtype)
            ends = torch.empty(2, dtype=torch.int32, device=device)
            assert torch._grouped_mm(x, w, offs=ends).shape == (8, 8)
