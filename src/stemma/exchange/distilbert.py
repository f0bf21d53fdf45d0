"""DistilBERT (arXiv:1910.01108) in the Hugging Face layout: half of BERT's layers, no segments, no pooler."""

from __future__ import annotations

from stemma.exchange.bert import BERT
from stemma.exchange.family import ACTIVATIONS, ConfigSetting, Family
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import ClassHead, LMHeadSpec
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "transformer.layer.{i}."
TEXT, TEXT_LAYERS = SentenceHead(1, "first", "relu", dropout=0.2), {"dense": "pre_classifier", "output": "classifier"}

DISTILBERT = Family(
    model_type="distilbert",
    recipe="bert",
    visibility=BERT.visibility,
    extra_visibility=BERT.extra_visibility,
    prefix="distilbert.",
    settings=(
        ConfigSetting("tokenizer.vocab_size", "vocab_size"),
        ConfigSetting("network.layers", "n_layers", default=6),
        ConfigSetting("network.width", "dim"),
        ConfigSetting("network.heads", "n_heads"),
        ConfigSetting("network.feedforward", "hidden_dim"),
        ConfigSetting("network.activation", "activation", ACTIVATIONS),
        ConfigSetting("network.dropout", "dropout"),
        ConfigSetting("network.attention.dropout", "attention_dropout"),
        ConfigSetting("network.position.maximum", "max_position_embeddings"),
        ConfigSetting("network.initialization.std", "initializer_range"),
    ),
    derived_values={"network.embedding.segments": lambda values: 0,
                    "network.attention.output_dropout": lambda values: 0.0},  # only the feed-forward output has dropout
    required_config={},
    required_recipe={**BERT.required_recipe, "network.norm.epsilon": 1e-12},  # fixed in transformers
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        TensorKey.of("embedding.position.table.weight", "embeddings.position_embeddings.weight"),
        *linear_keys("embedding.norm", "embeddings.LayerNorm"),
        *linear_keys(BLOCK + "attention.input", LAYER + "attention.q_lin", LAYER + "attention.k_lin",
                     LAYER + "attention.v_lin"),
        *linear_keys(BLOCK + "attention.output", LAYER + "attention.out_lin"),
        *linear_keys(BLOCK + "attention_norm", LAYER + "sa_layer_norm"),
        *linear_keys(BLOCK + "feedforward.input", LAYER + "ffn.lin1"),
        *linear_keys(BLOCK + "feedforward.output", LAYER + "ffn.lin2"),
        *linear_keys(BLOCK + "feedforward_norm", LAYER + "output_layer_norm"),
    ),
    head_keys={"vocabulary": (
        *linear_keys("heads.vocabulary.dense", "vocab_transform"),
        *linear_keys("heads.vocabulary.norm", "vocab_layer_norm"),
        TensorKey.of("heads.vocabulary.bias", "vocab_projector.bias"),
    )},
    head_specs={"vocabulary": LMHeadSpec(transform=True)},
    architectures={frozenset({"vocabulary"}): "DistilBertForMaskedLM", frozenset(): "DistilBertModel"},
    task_classes={
        "classify": HFTaskClass("DistilBertForSequenceClassification", TEXT, TEXT_LAYERS, dropout="seq_classif_dropout",
                                default_dropout=0.2),
        "choice": HFTaskClass("DistilBertForMultipleChoice", TEXT, TEXT_LAYERS, dropout="seq_classif_dropout",
                              default_dropout=0.2),
        "tag": HFTaskClass("DistilBertForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"},
                           default_dropout="dropout"),
        "qa": HFTaskClass("DistilBertForQuestionAnswering", SpanHead(0.1), {"output": "qa_outputs"},
                          dropout="qa_dropout", default_dropout=0.1),
    },
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    tied_head_tensors={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    ignored_buffers=("position_ids",),
)


@register("family", "distilbert")
def family() -> Family:
    return DISTILBERT
