"""ERNIE (arXiv:1904.09223) and ERNIE 2.0 (arXiv:1907.12412) in the Hugging Face layout.

BERT's body and heads with another prefix; ERNIE 2.0 adds task embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

from stemma.exchange.bert import BERT
from stemma.exchange.family import Config, ConfigSetting, Family
from stemma.exchange.hf_task_class import bert_task_classes
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import ClassHead
from stemma.registry import register

DEFAULT_TASK_COUNT = 3  # transformers' task_type_vocab_size; written even if the network has no task embeddings

SETTINGS = {setting.recipe_key: setting for setting in BERT.settings} | {
    # transformers' defaults are BERT's values; the published ERNIE 1.0 states others
    "tokenizer.vocab_size": ConfigSetting("tokenizer.vocab_size", "vocab_size", default=30522),
    "network.position.maximum": ConfigSetting("network.position.maximum", "max_position_embeddings", default=512),
    "network.activation": replace(next(setting for setting in BERT.settings if setting.hf_key == "hidden_act"),
                                  default="gelu"),
}

COMMON_HEADS = ("pooler", "vocabulary", "next_sentence")
# The heads of the two papers' other objectives. No Hugging Face class has them, and transformers ignores their tensors.
# discourse_relation has one class for each connective of the corpus.
OPTIONAL_HEADS = {"dialogue_lm": ClassHead(2), "capitalisation": ClassHead(2), "token_document_relation": ClassHead(2),
                  "sentence_reordering": ClassHead(9), "sentence_distance": ClassHead(3),
                  "discourse_relation": ClassHead(2), "ir_relevance": ClassHead(3)}
HEAD_COMBINATIONS = chain.from_iterable(combinations(OPTIONAL_HEADS, count)
                                        for count in range(1, len(OPTIONAL_HEADS) + 1))


def _task_count(value: object, config: Config) -> int:
    return config["task_type_vocab_size"] if config["use_task_id"] else 0


ERNIE = replace(
    BERT,
    model_type="ernie",
    recipe="ernie",
    prefix="ernie.",
    settings=(
        *SETTINGS.values(),
        ConfigSetting("network.embedding.tasks", "task_type_vocab_size", default=DEFAULT_TASK_COUNT,
                      from_hf=_task_count, to_hf=lambda value, values: value or DEFAULT_TASK_COUNT),
        ConfigSetting("network.embedding.tasks", "use_task_id", default=False, from_hf=_task_count,
                      to_hf=lambda value, values: bool(value)),
    ),
    body_keys=(TensorKey.of("embedding.tasks.weight", "embeddings.task_type_embeddings.weight",
                            if_present="embedding.tasks.weight"),
               *BERT.body_keys),
    head_keys={**{name: BERT.head_keys[name] for name in COMMON_HEADS},
               **{name: linear_keys(f"heads.{name}.output", f"cls.{name}") for name in OPTIONAL_HEADS}},
    head_specs={**{name: BERT.head_specs[name] for name in COMMON_HEADS}, **OPTIONAL_HEADS},
    variable_class_heads=frozenset(OPTIONAL_HEADS),
    architectures={
        **{heads: kind.replace("Bert", "Ernie") for heads, kind in BERT.architectures.items()
           if heads <= {*COMMON_HEADS}},
        **{frozenset({*tasks, *heads}): "ErnieForMaskedLM" for tasks in HEAD_COMBINATIONS
           for heads in (("vocabulary",), ("pooler", "vocabulary"))},
    },
    task_classes=bert_task_classes("Ernie"),
)


@register("family", "ernie")
def family() -> Family:
    return ERNIE
