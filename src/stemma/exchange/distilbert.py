"""DistilBERT (arXiv:1910.01108) as Hugging Face lays it out: half of BERT's layers, without segments and pooler."""

from __future__ import annotations

from stemma.exchange.bert import BERT
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import ACTIVATIONS, Family, Setting
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import ClassHead, TokenHead
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "transformer.layer.{i}."
TEXT, TEXT_LAYERS = SentenceHead(1, "first", "relu", dropout=0.2), {"dense": "pre_classifier", "output": "classifier"}

DISTILBERT = Family(
    model_type="distilbert",
    recipe="bert",
    sees=BERT.sees,
    also=BERT.also,
    prefix="distilbert.",
    settings=(
        Setting("tokenizer.vocab_size", "vocab_size"),
        Setting("network.layers", "n_layers", default=6),
        Setting("network.width", "dim"),
        Setting("network.heads", "n_heads"),
        Setting("network.feedforward", "hidden_dim"),
        Setting("network.activation", "activation", ACTIVATIONS),
        Setting("network.dropout", "dropout"),
        Setting("network.attention.dropout", "attention_dropout"),
        Setting("network.position.maximum", "max_position_embeddings"),
        Setting("network.initialization.spread", "initializer_range"),
    ),
    follows={"network.embedding.segments": lambda values: 0,
             "network.attention.output_dropout": lambda values: 0.0},  # the feed-forward's output alone is dropped
    holds={},
    fixed={**BERT.fixed, "network.norm.epsilon": 1e-12},  # which has no name over there
    body=(
        Key.of("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        Key.of("embedding.position.table.weight", "embeddings.position_embeddings.weight"),
        *linear("embedding.norm", "embeddings.LayerNorm"),
        *linear(BLOCK + "attention.input", LAYER + "attention.q_lin", LAYER + "attention.k_lin",
                LAYER + "attention.v_lin"),
        *linear(BLOCK + "attention.output", LAYER + "attention.out_lin"),
        *linear(BLOCK + "attention_norm", LAYER + "sa_layer_norm"),
        *linear(BLOCK + "feedforward.input", LAYER + "ffn.lin1"),
        *linear(BLOCK + "feedforward.output", LAYER + "ffn.lin2"),
        *linear(BLOCK + "feedforward_norm", LAYER + "output_layer_norm"),
    ),
    heads={"vocabulary": (
        *linear("heads.vocabulary.dense", "vocab_transform"),
        *linear("heads.vocabulary.norm", "vocab_layer_norm"),
        Key.of("heads.vocabulary.bias", "vocab_projector.bias"),
    )},
    specs={"vocabulary": TokenHead(transform=True)},
    classes={frozenset({"vocabulary"}): "DistilBertForMaskedLM", frozenset(): "DistilBertModel"},
    tasks={
        "classify": TaskClass("DistilBertForSequenceClassification", TEXT, TEXT_LAYERS, dropout="seq_classif_dropout",
                              otherwise=0.2),
        "choice": TaskClass("DistilBertForMultipleChoice", TEXT, TEXT_LAYERS, dropout="seq_classif_dropout",
                            otherwise=0.2),
        "tag": TaskClass("DistilBertForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"},
                         otherwise="dropout"),
        "qa": TaskClass("DistilBertForQuestionAnswering", SpanHead(0.1), {"output": "qa_outputs"},
                        dropout="qa_dropout", otherwise=0.1),
    },
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    copies={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    ignored=("position_ids",),
)


@register("family", "distilbert")
def family() -> Family:
    return DISTILBERT
