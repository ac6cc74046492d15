"""Importing: silent, cheap, in any order, and with autoloading switched off."""

import pytest

from device.support import run


def test_import_torch_prints_nothing_and_imports_no_jax():
    out, err = run("""
        import sys, torch
        assert "torch_tpu" in sys.modules
        assert not [m for m in sys.modules if m.partition(".")[0] in ("jax", "jaxlib", "libtpu")]
        assert not any(m.startswith(("torch_tpu.lowering.", "torch_tpu.eager.")) for m in sys.modules)
        # Asking about the device is not using it, except for how many there are.
        assert torch.device("tpu", 0).type == "tpu"
        assert torch._C._get_accelerator().type == "tpu"
        assert not torch.tpu.is_initialized()
    """)
    assert (out, err) == ("", "")


@pytest.mark.parametrize(
    "first", ["import torch_tpu", "import torch", "import torch.tpu", "from torch_tpu import Event"]
)
def test_any_order_of_imports(first):
    _, err = run(f"""
        {first}
        import torch, torch_tpu
        assert torch.tpu is torch_tpu
        assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
    """)
    assert err == ""


def test_without_autoload():
    run(
        """
        import torch
        assert not hasattr(torch, "tpu")
        try:
            torch.ones(2, device="tpu")
        except RuntimeError:
            pass
        else:
            raise SystemExit("device tpu exists without the backend")
        import torch_tpu
        assert torch.ones(2, device="tpu").sum().item() == 2
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_submodules_are_the_same_under_both_names():
    import torch.tpu.compiler

    import torch_tpu.compiler

    assert torch.tpu.compiler is torch_tpu.compiler


def test_the_users_jax_keeps_its_own_settings():
    run("""
        import jax, jax.numpy as jnp, torch
        torch.ones(2, device="tpu", dtype=torch.float64).add_(1).cpu()
        assert jnp.arange(3).dtype == jnp.int32 and jnp.ones(2).dtype == jnp.float32
    """)
