"""The Kernels Hub's own library, unmodified, with kernels of device tpu: a published kind of one, and the template."""

import importlib.metadata
import importlib.util
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("kernels")
pytest.importorskip("transformers")

from kernels import (
    LayerRepository,
    LocalLayerRepository,
    Mode,
    get_kernel,
    get_local_kernel,
    kernelize,
    use_kernel_mapping,
)
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

TEMPLATE = pathlib.Path(__file__).parents[2] / "examples" / "kernels" / "hub_template"
RAGGED_DOT = pathlib.Path(__file__).parent / "hub" / "ragged-dot-tpu"


@pytest.fixture
def ragged_dot(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    pytest.importorskip("tokamax")
    monkeypatch.setenv("LOCAL_KERNELS", f"kernels-community/ragged-dot-tpu={RAGGED_DOT}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return get_kernel("kernels-community/ragged-dot-tpu", version=1)


@pytest.fixture
def registered(ragged_dot: types.ModuleType) -> Iterator[types.ModuleType]:
    ALL_EXPERTS_FUNCTIONS.register("tokamax_ragged_dot", ragged_dot.experts_forward)
    yield ragged_dot
    ALL_EXPERTS_FUNCTIONS._global_mapping.pop("tokamax_ragged_dot")


def _mixture() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=128, intermediate_size=128, moe_intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval(), torch.randint(0, 64, (2, 5))


def test_a_published_kernel_is_the_experts_of_a_model(registered: types.ModuleType) -> None:
    model, ids = _mixture()
    with torch.no_grad():
        model.set_experts_implementation("eager")
        wanted = model(ids).logits
        model.to("tpu")
        made = {}
        for name in ("eager", "grouped_mm", "tokamax_ragged_dot"):
            model.set_experts_implementation(name)
            made[name] = model(ids.to("tpu")).logits.cpu()
        made["compiled"] = torch.compile(model)(ids.to("tpu")).logits.cpu()
    for logits in made.values():
        torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)


def test_its_ragged_dot(ragged_dot: types.ModuleType) -> None:
    torch.manual_seed(0)
    lhs, rhs = torch.randn(256, 128), torch.randn(3, 128, 128)
    sizes = torch.tensor([100, 0, 156], dtype=torch.int32)
    found = ragged_dot.ragged_dot(lhs.to("tpu"), rhs.to("tpu"), sizes.to("tpu")).cpu().double()
    wanted = torch.cat([lhs[:100].double() @ rhs[0].double().T, lhs[100:].double() @ rhs[2].double().T])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_tokamax_has_not_is_said(ragged_dot: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version("tokamax")
    lhs, rhs = torch.randn(8, 64, device="tpu"), torch.randn(2, 128, 64, device="tpu")
    sizes = torch.tensor([4, 4], dtype=torch.int32, device="tpu")
    with pytest.raises(NotImplementedError, match=f"the installed tokamax {version} does not do .*must be >= 128"):
        ragged_dot.ragged_dot(lhs, rhs, sizes)
    monkeypatch.setattr(ragged_dot, "IMPLEMENTATION", "mosaic_tpu_v9")
    words = rf"tokamax {version} .*Unknown implementation: mosaic_tpu_v9; its implementations here are .*'mosaic_tpu'"
    with pytest.raises(NotImplementedError, match=words):
        ragged_dot.ragged_dot(lhs, rhs, sizes[:2] + 1)


def test_local_kernel_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is loaded again defines its operator again."""
    x, weight = torch.randn(5, 128, device="tpu"), torch.randn(128, device="tpu")
    wanted = torch.nn.functional.rms_norm(x, (128,), weight, 1e-6)
    kernel = get_local_kernel(TEMPLATE)
    torch.testing.assert_close(kernel.rms_norm(x, weight), wanted)
    assert kernel.rms_norm(x[:0], weight).shape == (0, 128)
    package = TEMPLATE / "build" / "torch-tpu"
    spec = importlib.util.spec_from_file_location(
        "loaded_again", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loaded_again", again)
    spec.loader.exec_module(again)
    torch.testing.assert_close(again.rms_norm(x, weight), wanted)
    torch.testing.assert_close(kernel.rms_norm(x, weight), wanted)


def _llama() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval(), torch.randint(0, 64, (2, 5))


@pytest.mark.parametrize("where", ["local repository", "LOCAL_KERNELS"])
def test_kernelize(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"you/rms-norm-tpu={TEMPLATE}")
    repository: Any = LocalLayerRepository(repo_path=TEMPLATE, layer_name="RMSNorm")
    if where == "LOCAL_KERNELS":  # with a version the library asks the Hub first
        repository = LayerRepository("you/rms-norm-tpu", layer_name="RMSNorm", revision="main", trust_remote_code=True)
    model, ids = _llama()
    norm = type(model.model.norm)
    with torch.no_grad():
        wanted = model(ids).logits
        model.to("tpu")
        # What the library's decorator sets; Transformers applies it for the versions of ``kernels`` that it takes.
        monkeypatch.setattr(norm, "kernel_layer_name", "RMSNorm", raising=False)
        mapping: dict[str, Any] = {"RMSNorm": {"tpu": repository}}
        with use_kernel_mapping(mapping, inherit_mapping=False):
            kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="tpu", use_fallback=False)
        assert model.model.norm.forward.__func__.__qualname__ == "RMSNorm.forward"
        made = model(ids.to("tpu")).logits.cpu()
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-5)
