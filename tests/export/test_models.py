"""Models exported, saved, loaded and run: values against the model on CPU."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch.export import Dim

from export.support import AttentionBlock, ConvNet, Mlp, check, gpt2, llama


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "model.tpu"


def test_mlp(path: pathlib.Path) -> None:
    check(Mlp().eval(), (torch.randn(3, 8),), path=path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_mlp_types(path: pathlib.Path, dtype: torch.dtype) -> None:
    model, x = Mlp(dtype).eval(), torch.randn(3, 8, dtype=dtype)
    torch.tpu.export.save(torch.export.export(model, (x,)), path)
    found = torch.tpu.export.load(path)(x.to("tpu"))
    torch.testing.assert_close(found.cpu(), model(x).detach())


def test_conv_net_with_batch_norm(path: pathlib.Path) -> None:
    check(ConvNet().eval(), (torch.randn(2, 3, 8, 8),), path=path)


def test_batch_norm_statistics_change_from_call_to_call(path: pathlib.Path) -> None:
    loaded = check(ConvNet().train(), (torch.randn(2, 3, 8, 8),), path=path, calls=3)
    assert loaded.state_dict()["norm.num_batches_tracked"].item() == 3


def test_attention_block(path: pathlib.Path) -> None:
    check(AttentionBlock(), (torch.randn(2, 16, 4, 4), torch.randn(2, 5, 12)), path=path)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_language_models(path: pathlib.Path, make: object) -> None:
    ids = torch.randint(0, 64, (2, 8))
    loaded = check(make(), (ids,), {"use_cache": False}, path=path, platforms=("tpu", "cpu"))  # type: ignore[operator]
    assert loaded.platforms == ("tpu", "cpu")
    if make is gpt2:  # tied embeddings are stored once
        assert loaded.signature.same == {"lm_head.weight": "transformer.wte.weight"}


@pytest.mark.parametrize("make", [gpt2, llama])
def test_language_models_of_any_batch_and_length(path: pathlib.Path, make: object) -> None:
    shapes = {"input_ids": {0: Dim("batch", max=8), 1: Dim("length", max=32)}, "use_cache": None}
    others = tuple((torch.randint(0, 64, size),) for size in ((1, 4), (3, 13), (8, 32)))
    check(
        make(), (torch.randint(0, 64, (2, 8)),), {"use_cache": False}, path=path, others=others, dynamic_shapes=shapes
    )  # type: ignore[operator]


@pytest.mark.parametrize("training", [False, True])
def test_conv_net_of_any_batch(path: pathlib.Path, training: bool) -> None:
    others = tuple((torch.randn(n, 3, 8, 8),) for n in (3, 7))
    check(
        ConvNet().train(training), (torch.randn(2, 3, 8, 8),), path=path, others=others,
        dynamic_shapes={"image": {0: Dim("batch", min=2)}},
    )  # fmt: skip


def test_attention_block_of_any_size(path: pathlib.Path) -> None:
    b, h, w, n = Dim("batch"), Dim("height"), Dim("width"), Dim("tokens")
    others = ((torch.randn(3, 16, 6, 2), torch.randn(3, 7, 12)),)
    check(
        AttentionBlock(), (torch.randn(2, 16, 4, 4), torch.randn(2, 5, 12)), path=path, others=others,
        dynamic_shapes={"sample": {0: b, 2: h, 3: w}, "context": {0: b, 1: n}},
    )  # fmt: skip


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent(path: pathlib.Path, kind: type[torch.nn.Module]) -> None:
    check(kind(4, 6, num_layers=2, batch_first=True), (torch.randn(2, 5, 4),), path=path)


def test_transformer_encoder(path: pathlib.Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    check(torch.nn.TransformerEncoder(layer, 2).eval(), (torch.randn(2, 5, 16),), path=path)
