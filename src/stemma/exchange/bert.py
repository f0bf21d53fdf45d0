"""BERT (arXiv:1810.04805) as Hugging Face lays it out."""

from __future__ import annotations

from stemma.exchange.keys import Key, linear
from stemma.exchange.table import ACTIVATIONS, ORDINARY, Family, Setting
from stemma.exchange.task_class import pooled_answers
from stemma.network.boundary_head import BoundaryHead
from stemma.network.heads import ClassHead, Pooler, TokenHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "encoder.layer.{i}."

BERT = Family(
    model_type="bert",
    recipe="bert",
    sees=frozenset({"full"}),
    also=frozenset({"prefix", "causal", "later"}),  # UniLM's other cloze tasks: the network is the same
    prefix="bert.",
    settings=(
        Setting("tokenizer.vocab_size", "vocab_size"),
        Setting("network.layers", "num_hidden_layers"),
        Setting("network.width", "hidden_size"),
        Setting("network.heads", "num_attention_heads"),
        Setting("network.feedforward", "intermediate_size"),
        Setting("network.activation", "hidden_act", ACTIVATIONS),
        Setting("network.dropout", "hidden_dropout_prob"),
        Setting("network.attention.dropout", "attention_probs_dropout_prob"),
        Setting("network.position.maximum", "max_position_embeddings"),
        Setting("network.embedding.segments", "type_vocab_size"),
        Setting("network.norm.epsilon", "layer_norm_eps"),
        Setting("network.initialization.spread", "initializer_range"),
    ),
    holds={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    fixed={
        **ORDINARY, "network.norm.place": "post", "network.attention.head_width": None,
        "network.position.kind": "learned", "network.position.offset": 0, "network.position.counts": "places",
        "network.embedding.scale": False, "network.embedding.norm": True,
    },
    body=(
        Key.of("embedding.tokens.weight", "embeddings.word_embeddings.weight"),
        Key.of("embedding.segments.weight", "embeddings.token_type_embeddings.weight"),
        Key.of("embedding.position.table.weight", "embeddings.position_embeddings.weight"),
        *linear("embedding.norm", "embeddings.LayerNorm"),
        *linear(BLOCK + "attention.input", LAYER + "attention.self.query", LAYER + "attention.self.key",
                LAYER + "attention.self.value"),
        *linear(BLOCK + "attention.output", LAYER + "attention.output.dense"),
        *linear(BLOCK + "attention_norm", LAYER + "attention.output.LayerNorm"),
        *linear(BLOCK + "feedforward.input", LAYER + "intermediate.dense"),
        *linear(BLOCK + "feedforward.output", LAYER + "output.dense"),
        *linear(BLOCK + "feedforward_norm", LAYER + "output.LayerNorm"),
    ),
    heads={
        "pooler": linear("heads.pooler.dense", "pooler.dense"),
        "vocabulary": (
            *linear("heads.vocabulary.dense", "cls.predictions.transform.dense"),
            *linear("heads.vocabulary.norm", "cls.predictions.transform.LayerNorm"),
            Key.of("heads.vocabulary.bias", "cls.predictions.bias"),
        ),
        "next_sentence": linear("heads.next_sentence.output", "cls.seq_relationship"),
        "sentence_order": linear("heads.sentence_order.output", "cls.sentence_order"),  # StructBERT's, as the next one
        "span_boundary": (  # SpanBERT's, under names of our own: nobody has it over there, where it is left aside
            Key.of("heads.span_boundary.places.weight", "cls.span_boundary.places.weight"),
            *linear("heads.span_boundary.input", "cls.span_boundary.input"),
            *linear("heads.span_boundary.input_norm", "cls.span_boundary.input_norm"),
            *linear("heads.span_boundary.output", "cls.span_boundary.output"),
            *linear("heads.span_boundary.output_norm", "cls.span_boundary.output_norm"),
            Key.of("heads.span_boundary.bias", "cls.span_boundary.bias"),
        ),
    },
    specs={"pooler": Pooler(), "vocabulary": TokenHead(transform=True), "next_sentence": ClassHead(2),
           "sentence_order": ClassHead(3), "span_boundary": BoundaryHead(15)},
    inside=frozenset({"pooler"}),
    classes={
        frozenset({"pooler", "vocabulary", "next_sentence"}): "BertForPreTraining",
        frozenset({"vocabulary"}): "BertForMaskedLM",
        frozenset({"vocabulary", "span_boundary"}): "BertForMaskedLM",
        frozenset({"pooler", "vocabulary", "sentence_order"}): "BertForMaskedLM",
        frozenset({"pooler", "vocabulary"}): "BertForMaskedLM",  # early releases kept the pooler in it
        frozenset({"pooler", "next_sentence"}): "BertForNextSentencePrediction",
        frozenset({"pooler"}): "BertModel",
        frozenset(): "BertModel",
    },
    tasks=pooled_answers("Bert"),
    copies={"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=("position_ids",),
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)


@register("family", "bert")
def family() -> Family:
    return BERT
