"""Checks of the model sweep that one architecture of each kind runs; see ``cells.py``."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import cells
import inputs
import torch
from architectures import Architecture
from cells import Different, Skipped, Times, compare, on_cpu, on_device, same_tokens, to

_SHORT = 5  # length of the shorter text of a padded batch


def _padded(a: Architecture, times: Times, side: str) -> None:
    """A batch of uneven texts: the outputs, and the tokens that follow where the model generates."""
    model = on_cpu(a.make)
    given = inputs.make(a.inputs, model.config)
    if a.inputs not in ("text", "encoder_decoder", "image_and_text"):
        raise Skipped("the model takes no text that can be padded")
    empty = slice(0, -_SHORT) if side == "left" else slice(_SHORT, None)
    given["input_ids"][1, empty] = 0
    given["attention_mask"][1, empty] = 0
    run = torch.no_grad()(lambda m, x: m(**x))
    expected = on_cpu(lambda: run(model, given), times)
    device, there = copy.deepcopy(model).to("tpu"), to(given, "tpu")
    got = on_device(lambda: run(device, there), times)
    compare(got, expected, lambda: run(copy.deepcopy(model).double(), to(given, "cpu", torch.float64)))
    if a.model_class.can_generate():
        model = cells.generating(a)
        options = {"max_new_tokens": 6, "do_sample": False}
        given = {k: v for k, v in given.items() if not k.startswith("decoder_")}
        expected = on_cpu(lambda: model.generate(**given, **options))
        same_tokens(copy.deepcopy(model).to("tpu").generate(**to(given, "tpu"), **options), expected)


def left_padding(a: Architecture, times: Times) -> None:
    _padded(a, times, "left")


def right_padding(a: Architecture, times: Times) -> None:
    _padded(a, times, "right")


def sampling(a: Architecture, times: Times) -> None:
    """A seed gives the same tokens each time and another one others; all are among the likeliest by CPU's logits.

    As on other accelerators, the tokens are not those that CPU draws from the same seed.
    """
    model = on_cpu(lambda: cells.generating(a))
    given = cells.prompt(a, model)
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 8, "temperature": 1.5}
    on_cpu(lambda: model.generate(**given, **options), times)
    device, there = copy.deepcopy(model).to("tpu"), to(given, "tpu")

    def draw(seed: int) -> Any:
        torch.manual_seed(seed)
        return device.generate(**there, **options)

    first = on_device(lambda: draw(5), times)
    if draw(5).tolist() != first.tolist():
        raise Different("a seed gives other tokens the second time")
    if draw(6).tolist() == first.tolist():
        raise Different("two seeds give the same tokens")
    _are_likely(model, given, first.cpu(), options["top_k"], options["max_new_tokens"])


def _are_likely(model: Any, given: dict[str, Any], tokens: torch.Tensor, top_k: int, new: int) -> None:
    if model.config.is_encoder_decoder:
        if tokens.shape[1] == new:  # Whisper does not give the start back
            start = model.generation_config.decoder_start_token_id
            tokens = torch.cat([tokens.new_full((tokens.shape[0], 1), start), tokens], 1)
        whole = {**given, "decoder_input_ids": tokens}
    else:
        whole = {**given, "input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        logits = model(**whole).logits[:, -new - 1 : -1]
    least = logits.topk(top_k).values[..., -1]
    chosen = logits.gather(-1, tokens[:, -new:, None])[..., 0]
    likely, rules = chosen >= least - 1e-3, model.generation_config
    drawn = slice(rules.forced_bos_token_id is not None, -1 if rules.forced_eos_token_id is not None else None)
    if not bool(likely[:, drawn].all()):
        raise Different(f"a token that is not among the {top_k} likeliest was drawn")


def beam_search(a: Architecture, times: Times) -> None:
    cells.check_greedy(a, times, num_beams=3, num_return_sequences=2)


def assisted(a: Architecture, times: Times) -> None:
    """A smaller model of the same kind proposes tokens; the result is the large model's alone."""
    model = on_cpu(lambda: cells.generating(a))
    helper = on_cpu(lambda: cells.generating(a))
    with torch.no_grad():
        for p in helper.parameters():  # not the same, so that some proposals are refused
            p.mul_(1 + 0.2 * torch.randn_like(p))
    given = {k: v[:1] for k, v in cells.prompt(a, model).items()}
    options = {"max_new_tokens": 8, "do_sample": False}
    expected = on_cpu(lambda: model.generate(**given, **options, assistant_model=helper), times)
    device, device_helper, there = copy.deepcopy(model).to("tpu"), copy.deepcopy(helper).to("tpu"), to(given, "tpu")
    got = on_device(lambda: device.generate(**there, **options, assistant_model=device_helper), times)
    same_tokens(got, expected)


def checkpointing(a: Architecture, times: Times) -> None:
    """Gradients with the layers run again in backward equal those of CPU without."""
    model = on_cpu(a.make)
    given = cells.with_labels(model, inputs.make(a.inputs, model.config))
    expected = on_cpu(lambda: cells.backward(model.train(), given), times)

    def enable(m: Any) -> Any:
        m.gradient_checkpointing_enable()
        if not m.is_gradient_checkpointing:
            raise ValueError("no layer is checkpointed")
        return m

    on_cpu(lambda: cells.backward(enable(copy.deepcopy(model)), given))
    device, there = enable(copy.deepcopy(model).to("tpu")), to(given, "tpu")
    got = on_device(lambda: cells.backward(device, there), times)
    compare(got, expected, lambda: cells.backward(model.double(), to(given, "cpu", torch.float64)))


def half_loading(a: Architecture, times: Times) -> None:
    """Loaded in float16 and in bfloat16: CPU's weights bit by bit, and outputs as near to float32 as CPU's."""
    model = on_cpu(a.make)
    given = inputs.make(a.inputs, model.config)
    run = torch.no_grad()(lambda m, x: m(**x))
    exact = on_cpu(lambda: run(model, given))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for dtype in (torch.bfloat16, torch.float16):
            half = on_cpu(lambda: a.model_class.from_pretrained(folder, dtype=dtype).eval())  # noqa: B023
            narrow = to(given, "cpu", dtype)
            expected = on_cpu(lambda: run(half, narrow))  # noqa: B023
            device = a.model_class.from_pretrained(folder, dtype=dtype, device_map="tpu").eval()
            cells.same_weights(device, half)
            got = on_device(lambda: run(device, to(narrow, "tpu")))  # noqa: B023
            others = lambda: [run(cells.rounded_otherwise(a, dtype, seed), narrow) for seed in range(cells.NOISE_DRAWS)]  # noqa: B023, E731
            compare(got, expected, lambda: exact, tolerance=2e-2, others=others)


def quantized_cache(a: Architecture, times: Times) -> None:
    cells.check_greedy(a, times, cache_implementation="quantized", cache_config={"backend": "fp8"})


def exported(a: Architecture, times: Times) -> None:
    """torch.export of the model on the device, where CPU exports it; the program's outputs are the model's."""
    model = on_cpu(a.make)
    model.config.get_text_config().use_cache = model.config.use_cache = False  # a cache is no output of a program
    given = inputs.make(a.inputs, model.config)
    run = torch.no_grad()(lambda m, x: m(**x))
    expected = on_cpu(lambda: run(model, given), times)
    on_cpu(lambda: torch.export.export(model, (), given, strict=False))
    device, there = copy.deepcopy(model).to("tpu"), to(given, "tpu")
    program = torch.export.export(device, (), there, strict=False)
    whole = program.module()
    got = on_device(lambda: run(whole, there), times)
    compare(got, expected, lambda: run(model.double(), to(given, "cpu", torch.float64)))


MORE: dict[str, Callable[[Architecture, Times], None]] = {
    "left_padding": left_padding,
    "right_padding": right_padding,
    "sampling": sampling,
    "beam_search": beam_search,
    "assisted": assisted,
    "checkpointing": checkpointing,
    "half_loading": half_loading,
    "quantized_cache": quantized_cache,
    "exported": exported,
}
