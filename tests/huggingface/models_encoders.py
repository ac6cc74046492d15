"""Encoders of text."""

from __future__ import annotations

from architectures import rows

row = rows("encoder", "text")

TABLE = [
    row("bert", "BertForMaskedLM", more=True),
    row("roberta", "RobertaForMaskedLM"),
    row("distilbert", "DistilBertForMaskedLM", dim=32),
    row("albert", "AlbertForMaskedLM"),
    row("electra", "ElectraForMaskedLM"),
    row("deberta", "DebertaForMaskedLM"),
    row("deberta-v2", "DebertaV2ForMaskedLM"),
    row("xlm-roberta", "XLMRobertaForSequenceClassification"),
    row("camembert", "CamembertForTokenClassification"),
    row("ernie", "ErnieForMaskedLM"),
    row("mpnet", "MPNetForMaskedLM"),
    row("modernbert", "ModernBertForMaskedLM", more=True),
    row("nomic_bert", "NomicBertForMaskedLM"),
    row("eurobert", "EuroBertForMaskedLM"),
    row("fnet", "FNetForMaskedLM", inputs="text_alone"),
    row("funnel", "FunnelForMaskedLM"),
    row("longformer", "LongformerForMaskedLM", attention_window=4),
    row("big_bird", "BigBirdForMaskedLM"),
    row("convbert", "ConvBertForMaskedLM"),
    row("squeezebert", "SqueezeBertForMaskedLM"),
    # Without norms, random weights let the activations grow to 1e5, where float32 gradients are noise on every device.
    row("mobilebert", "MobileBertForMaskedLM", normalization_type="layer_norm"),
    row("megatron-bert", "MegatronBertForMaskedLM"),
    row("nystromformer", "NystromformerForMaskedLM"),
    row("rembert", "RemBertForMaskedLM"),
    row("roformer", "RoFormerForMaskedLM"),
    row("roc_bert", "RoCBertForMaskedLM"),
    row("ibert", "IBertForMaskedLM"),
    row("xlm", "XLMWithLMHeadModel"),
    row("flaubert", "FlaubertWithLMHeadModel"),
    row("esm", "EsmForMaskedLM", mask_token_id=5, pad_token_id=0),
    row("data2vec-text", "Data2VecTextForMaskedLM"),
    row("luke", "LukeForMaskedLM"),
    row("canine", "CanineModel"),
    row("layoutlm", "LayoutLMForMaskedLM"),
    row("splinter", "SplinterForQuestionAnswering"),
    row("yoso", "YosoForMaskedLM"),
    row("xmod", "XmodForMaskedLM", default_language="en_XX"),
]
