"""ALBERT (arXiv:1909.11942) as Hugging Face lays it out: a narrow table, a map up to the layers' width, and groups of
layers, of which there is one where all is shared and one a layer where nothing is.

Over there the feed-forward layer's output is not dropped in training. The authors' code drops it (modeling.py,
`attention_ffn_block`), and so do we.
"""

from __future__ import annotations

from typing import Any

from stemma.exchange.bert import BERT
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import Config, Family, Setting, Values
from stemma.exchange.task_class import pooled_answers
from stemma.network.heads import ClassHead, Pooler, TokenHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "encoder.albert_layer_groups.{i}.albert_layers.0."
WIDTH = "network.embedding.width"


def _groups(config: Config) -> int:
    """One for all layers, or each layer its own."""
    alone = config["num_hidden_groups"] == config["num_hidden_layers"]
    return config["num_hidden_layers"] if alone else 1


def _narrow(config: Config) -> Any:
    """There is a map even between equal widths over there, and none here."""
    same = config["embedding_size"] == config["hidden_size"]
    return f"another width than hidden_size = {config['hidden_size']}" if same else config["embedding_size"]


def _shared(values: Values) -> str:
    """Sharing in part has no name over there."""
    return "none" if values["network.sharing"] == "none" else "all"


ALBERT = Family(
    model_type="albert",
    recipe="albert@xxlarge",
    sees=BERT.sees,
    also=BERT.also,
    prefix="albert.",
    settings=(
        *BERT.settings,
        Setting(WIDTH, "embedding_size", only=_narrow),
        Setting("network.sharing", "num_hidden_groups", reads=lambda value, config: "all" if value == 1 else "none",
                writes=lambda value, values: 1 if value == "all" else values["network.layers"], only=_groups),
    ),
    follows={"network.sharing": _shared},
    holds={"inner_group_num": 1, "position_embedding_type": "absolute"},
    fixed={key: value for key, value in BERT.fixed.items() if key not in (WIDTH, "network.sharing")},
    body=(
        Key.of("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        Key.of("embedding.segments.weight", "embeddings.token_type_embeddings.weight"),
        Key.of("embedding.position.table.weight", "embeddings.position_embeddings.weight"),
        *linear("embedding.norm", "embeddings.LayerNorm"),
        *linear("embedding.project", "encoder.embedding_hidden_mapping_in"),
        *linear(BLOCK + "attention.input", LAYER + "attention.query", LAYER + "attention.key",
                LAYER + "attention.value"),
        *linear(BLOCK + "attention.output", LAYER + "attention.dense"),
        *linear(BLOCK + "attention_norm", LAYER + "attention.LayerNorm"),
        *linear(BLOCK + "feedforward.input", LAYER + "ffn"),
        *linear(BLOCK + "feedforward.output", LAYER + "ffn_output"),
        *linear(BLOCK + "feedforward_norm", LAYER + "full_layer_layer_norm"),
    ),
    heads={
        "pooler": linear("heads.pooler.dense", "pooler"),
        "vocabulary": (
            *linear("heads.vocabulary.dense", "predictions.dense"),
            *linear("heads.vocabulary.norm", "predictions.LayerNorm"),
            Key.of("heads.vocabulary.bias", "predictions.bias"),
        ),
        "sentence_order": linear("heads.sentence_order.output", "sop_classifier.classifier"),
    },
    specs={"pooler": Pooler(), "vocabulary": TokenHead(transform=True), "sentence_order": ClassHead(2)},
    inside=frozenset({"pooler"}),
    classes={
        frozenset({"pooler", "vocabulary", "sentence_order"}): "AlbertForPreTraining",
        frozenset({"vocabulary"}): "AlbertForMaskedLM",
        frozenset({"pooler", "vocabulary"}): "AlbertForMaskedLM",  # early releases kept the pooler in it
        frozenset({"pooler"}): "AlbertModel",
        frozenset(): "AlbertModel",
    },
    tasks=pooled_answers("Albert", dropout="classifier_dropout_prob", otherwise=0.1),
    copies={"predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias"},
    ignored=("position_ids",),
)


@register("family", "albert")
def family() -> Family:
    return ALBERT
