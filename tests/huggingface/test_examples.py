"""The examples do what they say, with the real weights of SmolLM2 and MiniLM."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    before = torch.tpu.fallback_counts()
    yield
    assert torch.tpu.fallback_counts() == before


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    import chat

    return chat.load(None, "float32")


QUESTIONS = ["What is the capital of France?", "Name two colours, please, and say which of both you like more and why."]


def test_uneven_questions_in_one_batch_get_the_answers_they_get_alone(smollm2):
    import batch_chat

    lengths = batch_chat.prompts(smollm2[1], QUESTIONS)["attention_mask"].sum(1).tolist()
    assert lengths[0] < lengths[1]
    together, _ = batch_chat.answer(*smollm2, QUESTIONS, tokens=8)
    alone = [batch_chat.answer(*smollm2, [q], tokens=8)[0][0] for q in QUESTIONS]
    assert together == alone
    assert "Paris" in together[0]


def test_stop_strings_and_streaming(smollm2, capsys):
    import batch_chat

    answers, tokens = batch_chat.answer(*smollm2, QUESTIONS[:1], tokens=40, stop=["Paris", "\n\n"], stream=True)
    assert answers[0].endswith("Paris") and tokens < 12
    assert capsys.readouterr().out.strip() == answers[0]


def test_sentences_are_found_by_meaning(capsys, monkeypatch):
    import search

    assert len(search.documented()) > 300
    monkeypatch.setattr(search, "MODULES", "math random shutil os statistics")
    queries = ["delete a folder with everything in it", "square root of a number"]
    monkeypatch.setattr(sys, "argv", ["search.py", "--top", "2", *queries])
    search.main()
    out = capsys.readouterr().out
    first, second = (out.partition(q)[2].splitlines()[1] for q in queries)
    assert "shutil.rmtree" in first and "math.sqrt" in second, out
