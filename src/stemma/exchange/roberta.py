"""RoBERTa (arXiv:1907.11692) in the Hugging Face layout: BERT's body with other positions, and another head prefix.

Positions count tokens without padding. The first has the index after the padding token's id.
"""

from __future__ import annotations

from dataclasses import replace

from stemma.exchange.bert import BERT
from stemma.exchange.family import ConfigSetting, Family
from stemma.exchange.hf_task_class import HFTaskClass, bert_task_classes
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import LMHeadSpec, Pooler
from stemma.network.task_heads import SentenceHead
from stemma.registry import register

PADDING = 1  # the padding token's id
OFFSET = PADDING + 1  # the index of the first position in the position embedding

SETTINGS = {setting.recipe_key: setting for setting in BERT.settings} | {
    # transformers has a fixed GELU in the head, whatever hidden_act is
    "network.activation": ConfigSetting("network.activation", "hidden_act", {"gelu": "gelu"}),
    "network.position.maximum": ConfigSetting("network.position.maximum", "max_position_embeddings", default=512,
                                              from_hf=lambda value, config: value - OFFSET,
                                              to_hf=lambda value, values: value + OFFSET),
    # transformers' defaults are BERT's values; the published config.json files state others
    "network.embedding.segments": ConfigSetting("network.embedding.segments", "type_vocab_size", default=2),
    "network.norm.epsilon": ConfigSetting("network.norm.epsilon", "layer_norm_eps", default=1e-12),
}

ROBERTA = Family(
    model_type="roberta",
    recipe="roberta",
    visibility=BERT.visibility,
    extra_visibility=BERT.extra_visibility,
    prefix="roberta.",
    settings=tuple(SETTINGS.values()),
    required_config={**BERT.required_config, "pad_token_id": PADDING},
    required_recipe={**BERT.required_recipe, "network.position.offset": OFFSET,
                     "network.position.numbering": "skip_padding"},
    body_keys=BERT.body_keys,
    head_keys={
        "pooler": BERT.head_keys["pooler"],
        "vocabulary": (
            *linear_keys("heads.vocabulary.dense", "lm_head.dense"),
            *linear_keys("heads.vocabulary.norm", "lm_head.layer_norm"),
            TensorKey.of("heads.vocabulary.bias", "lm_head.bias"),
        ),
    },
    head_specs={"pooler": Pooler(), "vocabulary": LMHeadSpec(transform=True)},
    body_heads=BERT.body_heads,
    architectures={
        frozenset({"vocabulary"}): "RobertaForMaskedLM",
        frozenset({"pooler", "vocabulary"}): "RobertaForMaskedLM",  # published checkpoints store an untrained pooler
        frozenset({"pooler"}): "RobertaModel",
        frozenset(): "RobertaModel",
    },
    task_classes={
        **bert_task_classes("Roberta"),
        "classify": HFTaskClass("RobertaForSequenceClassification", SentenceHead(1, "first", "tanh", early=True),
                                {"dense": "classifier.dense", "output": "classifier.out_proj"},
                                dropout="classifier_dropout", default_dropout="hidden_dropout_prob"),
        # transformers uses hidden_dropout_prob here, even if config.json states classifier_dropout
        "choice": replace(bert_task_classes("Roberta")["choice"], dropout=None),
    },
    tied_head_tensors={"lm_head.decoder.weight": "embeddings.word_embeddings.weight",
                       "lm_head.decoder.bias": "lm_head.bias"},
    pad_token_id=PADDING,
    ignored_buffers=BERT.ignored_buffers,
    legacy_names=BERT.legacy_names,
)


@register("family", "roberta")
def family() -> Family:
    return ROBERTA
