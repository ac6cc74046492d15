"""Encoder-decoders of text."""

from __future__ import annotations

from architectures import rows

row = rows("encoder-decoder", "encoder_decoder")

TABLE = [
    row("t5", "T5ForConditionalGeneration", more=True),
    row("bart", "BartForConditionalGeneration", more=True),
    row("mbart", "MBartForConditionalGeneration"),
    row("pegasus", "PegasusForConditionalGeneration"),
    row("pegasus_x", "PegasusXForConditionalGeneration"),
    row("marian", "MarianMTModel"),
    row("m2m_100", "M2M100ForConditionalGeneration"),
    row("mt5", "MT5ForConditionalGeneration"),
    row("umt5", "UMT5ForConditionalGeneration"),
    row("longt5", "LongT5ForConditionalGeneration"),
    row("led", "LEDForConditionalGeneration", attention_window=4),
    row("blenderbot", "BlenderbotForConditionalGeneration"),
    row("blenderbot-small", "BlenderbotSmallForConditionalGeneration"),
    row("bigbird_pegasus", "BigBirdPegasusForConditionalGeneration"),
    row("prophetnet", "ProphetNetForConditionalGeneration"),
    row("mvp", "MvpForConditionalGeneration"),
    row("plbart", "PLBartForConditionalGeneration"),
    row("fsmt", "FSMTForConditionalGeneration"),
    row("t5gemma", "T5GemmaForConditionalGeneration"),
]
