"""ALBERT (arXiv:1909.11942) in the Hugging Face layout: a factorised embedding, and layer groups that share parameters.

Two numbers of groups are supported: one (all layers share) and one per layer (none share).

transformers has no dropout after the feed-forward layer. The authors' code has it (modeling.py, `attention_ffn_block`),
and so do we.
"""

from __future__ import annotations

from typing import Any

from stemma.exchange.bert import BERT
from stemma.exchange.family import Config, ConfigSetting, Family, Values
from stemma.exchange.hf_task_class import bert_task_classes
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "encoder.albert_layer_groups.{i}.albert_layers.0."
WIDTH = "network.embedding.width"


def _groups(config: Config) -> int:
    """The supported number of groups: one per layer if config.json says so, otherwise one for all layers."""
    unshared = config["num_hidden_groups"] == config["num_hidden_layers"]
    return config["num_hidden_layers"] if unshared else 1


def _embedding_width(config: Config) -> Any:
    """The supported embedding size: not the hidden size, since transformers projects even then and we do not."""
    same = config["embedding_size"] == config["hidden_size"]
    return f"another width than hidden_size = {config['hidden_size']}" if same else config["embedding_size"]


def _sharing(values: Values) -> str:
    """Hugging Face has no sharing of only the attention or only the feed-forward parameters."""
    return "none" if values["network.sharing"] == "none" else "all"


ALBERT = Family(
    model_type="albert",
    recipe="albert@xxlarge",
    visibility=BERT.visibility,
    extra_visibility=BERT.extra_visibility,
    prefix="albert.",
    settings=(
        *BERT.settings,
        ConfigSetting(WIDTH, "embedding_size", required_value=_embedding_width),
        ConfigSetting("network.sharing", "num_hidden_groups",
                      from_hf=lambda value, config: "all" if value == 1 else "none",
                      to_hf=lambda value, values: 1 if value == "all" else values["network.layers"],
                      required_value=_groups),
    ),
    derived_values={"network.sharing": _sharing},
    required_config={"inner_group_num": 1, "position_embedding_type": "absolute"},
    required_recipe={key: value for key, value in BERT.required_recipe.items()
                     if key not in (WIDTH, "network.sharing")},
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        TensorKey.of("embedding.segments.weight", "embeddings.token_type_embeddings.weight"),
        TensorKey.of("embedding.position.table.weight", "embeddings.position_embeddings.weight"),
        *linear_keys("embedding.norm", "embeddings.LayerNorm"),
        *linear_keys("embedding.project", "encoder.embedding_hidden_mapping_in"),
        *linear_keys(BLOCK + "attention.input", LAYER + "attention.query", LAYER + "attention.key",
                     LAYER + "attention.value"),
        *linear_keys(BLOCK + "attention.output", LAYER + "attention.dense"),
        *linear_keys(BLOCK + "attention_norm", LAYER + "attention.LayerNorm"),
        *linear_keys(BLOCK + "feedforward.input", LAYER + "ffn"),
        *linear_keys(BLOCK + "feedforward.output", LAYER + "ffn_output"),
        *linear_keys(BLOCK + "feedforward_norm", LAYER + "full_layer_layer_norm"),
    ),
    head_keys={
        "pooler": linear_keys("heads.pooler.dense", "pooler"),
        "vocabulary": (
            *linear_keys("heads.vocabulary.dense", "predictions.dense"),
            *linear_keys("heads.vocabulary.norm", "predictions.LayerNorm"),
            TensorKey.of("heads.vocabulary.bias", "predictions.bias"),
        ),
        "sentence_order": linear_keys("heads.sentence_order.output", "sop_classifier.classifier"),
    },
    head_specs={"pooler": Pooler(), "vocabulary": LMHeadSpec(transform=True), "sentence_order": ClassHead(2)},
    body_heads=frozenset({"pooler"}),
    architectures={
        frozenset({"pooler", "vocabulary", "sentence_order"}): "AlbertForPreTraining",
        frozenset({"vocabulary"}): "AlbertForMaskedLM",
        frozenset({"pooler", "vocabulary"}): "AlbertForMaskedLM",  # early transformers releases stored a pooler too
        frozenset({"pooler"}): "AlbertModel",
        frozenset(): "AlbertModel",
    },
    task_classes=bert_task_classes("Albert", dropout="classifier_dropout_prob", default_dropout=0.1),
    tied_head_tensors={"predictions.decoder.weight": "embeddings.word_embeddings.weight",
                       "predictions.decoder.bias": "predictions.bias"},
    ignored_buffers=("position_ids",),
)


@register("family", "albert")
def family() -> Family:
    return ALBERT
