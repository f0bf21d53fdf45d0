"""BERT (arXiv:1810.04805) in the Hugging Face layout."""

from __future__ import annotations

from stemma.exchange.family import ACTIVATIONS, DEFAULT_ARCHITECTURE, ConfigSetting, Family
from stemma.exchange.hf_task_class import bert_task_classes
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
from stemma.network.span_boundary_head import SpanBoundaryHeadSpec
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "encoder.layer.{i}."

BERT = Family(
    model_type="bert",
    recipe="bert",
    visibility=frozenset({"full"}),
    extra_visibility=frozenset({"prefix", "causal", "later"}),  # UniLM's other attention masks: the network is the same
    prefix="bert.",
    settings=(
        ConfigSetting("tokenizer.vocab_size", "vocab_size"),
        ConfigSetting("network.layers", "num_hidden_layers"),
        ConfigSetting("network.width", "hidden_size"),
        ConfigSetting("network.heads", "num_attention_heads"),
        ConfigSetting("network.feedforward", "intermediate_size"),
        ConfigSetting("network.activation", "hidden_act", ACTIVATIONS),
        ConfigSetting("network.dropout", "hidden_dropout_prob"),
        ConfigSetting("network.attention.dropout", "attention_probs_dropout_prob"),
        ConfigSetting("network.position.maximum", "max_position_embeddings"),
        ConfigSetting("network.embedding.segments", "type_vocab_size"),
        ConfigSetting("network.norm.epsilon", "layer_norm_eps"),
        ConfigSetting("network.initialization.std", "initializer_range"),
    ),
    required_config={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    required_recipe={
        **DEFAULT_ARCHITECTURE, "network.norm.placement": "post", "network.attention.head_width": None,
        "network.position.kind": "learned", "network.position.offset": 0, "network.position.numbering": "absolute",
        "network.embedding.scale": False, "network.embedding.norm": True,
    },
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        TensorKey.of("embedding.segments.weight", "embeddings.token_type_embeddings.weight"),
        TensorKey.of("embedding.position.table.weight", "embeddings.position_embeddings.weight"),
        *linear_keys("embedding.norm", "embeddings.LayerNorm"),
        *linear_keys(BLOCK + "attention.input", LAYER + "attention.self.query", LAYER + "attention.self.key",
                     LAYER + "attention.self.value"),
        *linear_keys(BLOCK + "attention.output", LAYER + "attention.output.dense"),
        *linear_keys(BLOCK + "attention_norm", LAYER + "attention.output.LayerNorm"),
        *linear_keys(BLOCK + "feedforward.input", LAYER + "intermediate.dense"),
        *linear_keys(BLOCK + "feedforward.output", LAYER + "output.dense"),
        *linear_keys(BLOCK + "feedforward_norm", LAYER + "output.LayerNorm"),
    ),
    head_keys={
        "pooler": linear_keys("heads.pooler.dense", "pooler.dense"),
        "vocabulary": (
            *linear_keys("heads.vocabulary.dense", "cls.predictions.transform.dense"),
            *linear_keys("heads.vocabulary.norm", "cls.predictions.transform.LayerNorm"),
            TensorKey.of("heads.vocabulary.bias", "cls.predictions.bias"),
        ),
        "next_sentence": linear_keys("heads.next_sentence.output", "cls.seq_relationship"),
        # The heads of StructBERT and SpanBERT have names of our own: no Hugging Face class has them, and transformers
        # ignores their tensors.
        "sentence_order": linear_keys("heads.sentence_order.output", "cls.sentence_order"),
        "span_boundary": (
            TensorKey.of("heads.span_boundary.places.weight", "cls.span_boundary.places.weight"),
            *linear_keys("heads.span_boundary.input", "cls.span_boundary.input"),
            *linear_keys("heads.span_boundary.input_norm", "cls.span_boundary.input_norm"),
            *linear_keys("heads.span_boundary.output", "cls.span_boundary.output"),
            *linear_keys("heads.span_boundary.output_norm", "cls.span_boundary.output_norm"),
            TensorKey.of("heads.span_boundary.bias", "cls.span_boundary.bias"),
        ),
    },
    head_specs={"pooler": Pooler(), "vocabulary": LMHeadSpec(transform=True), "next_sentence": ClassHead(2),
                "sentence_order": ClassHead(3), "span_boundary": SpanBoundaryHeadSpec(15)},
    body_heads=frozenset({"pooler"}),
    architectures={
        frozenset({"pooler", "vocabulary", "next_sentence"}): "BertForPreTraining",
        frozenset({"vocabulary"}): "BertForMaskedLM",
        frozenset({"vocabulary", "span_boundary"}): "BertForMaskedLM",
        frozenset({"pooler", "vocabulary", "sentence_order"}): "BertForMaskedLM",
        frozenset({"pooler", "vocabulary"}): "BertForMaskedLM",  # early transformers releases stored a pooler too
        frozenset({"pooler", "next_sentence"}): "BertForNextSentencePrediction",
        frozenset({"pooler"}): "BertModel",
        frozenset(): "BertModel",
    },
    task_classes=bert_task_classes("Bert"),
    tied_head_tensors={"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
                       "cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored_buffers=("position_ids",),
    legacy_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)


@register("family", "bert")
def family() -> Family:
    return BERT
