"""BART (arXiv:1910.13461) as Hugging Face lays it out, and what other encoder-decoders there have in common with it."""

from __future__ import annotations

from stemma.corpus.sides import DECODER
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import ACTIVATIONS, ORDINARY, Family, Setting
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import TokenHead
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

SIZES = (
    Setting("tokenizer.vocab_size", "vocab_size"),
    Setting("network.layers", "encoder_layers"),
    Setting("network.decoder.layers", "decoder_layers"),
    Setting("network.width", "d_model"),
    Setting("network.heads", "encoder_attention_heads"),
    Setting("network.feedforward", "encoder_ffn_dim"),
    Setting("network.activation", "activation_function", ACTIVATIONS),
    Setting("network.dropout", "dropout"),
    Setting("network.attention.dropout", "attention_dropout"),
    Setting("network.inner_dropout", "activation_dropout"),
    Setting("network.position.maximum", "max_position_embeddings"),
    Setting("network.embedding.scale", "scale_embedding"),
    Setting("network.initialization.spread", "init_std"),
)

HOLDS = {"decoder_attention_heads": lambda config: config["encoder_attention_heads"],
         "decoder_ffn_dim": lambda config: config["encoder_ffn_dim"],
         "is_encoder_decoder": True, "tie_word_embeddings": True}

EPSILON = 1e-5  # has no name over there

FIXED = {**ORDINARY, "network.norm.place": "post", "network.norm.epsilon": EPSILON,
         "network.attention.head_width": None}


def stack(part: str) -> tuple[Key, ...]:
    """A part's blocks; a decoder's look across besides."""
    block, layer = part + ".blocks.{i}.", part + ".layers.{i}."
    keys = (
        *linear(block + "attention.input", layer + "self_attn.q_proj", layer + "self_attn.k_proj",
                layer + "self_attn.v_proj"),
        *linear(block + "attention.output", layer + "self_attn.out_proj"),
        *linear(block + "attention_norm", layer + "self_attn_layer_norm"),
        *linear(block + "feedforward.input", layer + "fc1"),
        *linear(block + "feedforward.output", layer + "fc2"),
        *linear(block + "feedforward_norm", layer + "final_layer_norm"),
    )
    if part == "encoder":
        return keys
    return (
        *keys,
        *linear(block + "cross.query", layer + "encoder_attn.q_proj"),
        *linear(block + "cross.input", layer + "encoder_attn.k_proj", layer + "encoder_attn.v_proj"),
        *linear(block + "cross.output", layer + "encoder_attn.out_proj"),
        *linear(block + "cross_norm", layer + "encoder_attn_layer_norm"),
    )


BODY = (Key.of("embedding.tokens.weight", "shared.weight"), *stack("encoder"), *stack("decoder"))

ALIASES = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",
           "num_hidden_layers": "encoder_layers"}

SHARES = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}

# The hidden state of the last end token answers for a text, through a layer of its own.
TEXT = TaskClass("BartForSequenceClassification", SentenceHead(1, "last", "tanh", early=True),
                 {"dense": "classification_head.dense", "output": "classification_head.out_proj"},
                 dropout="classifier_dropout", stack=DECODER)

BART = Family(
    model_type="bart",
    recipe="bart@large",
    sees=frozenset({"full"}),
    prefix="model.",
    settings=SIZES,
    holds=HOLDS,
    fixed={**FIXED, "network.position.kind": "learned", "network.position.offset": 2,
           "network.position.counts": "places", "network.embedding.norm": True},
    body=(
        *BODY,
        Key.of("embedding.position.table.weight", "encoder.embed_positions.weight"),
        *linear("embedding.norm", "encoder.layernorm_embedding"),
        Key.of("decoder_embedding.position.table.weight", "decoder.embed_positions.weight"),
        *linear("decoder_embedding.norm", "decoder.layernorm_embedding"),
    ),
    heads={"vocabulary": ()},
    specs={"vocabulary": TokenHead(transform=False, bias=False)},
    classes={frozenset({"vocabulary"}): "BartForConditionalGeneration"},
    tasks={"classify": TEXT, "qa": TaskClass("BartForQuestionAnswering", SpanHead(), {"output": "qa_outputs"},
                                             stack=DECODER)},
    always=frozenset({"vocabulary"}),  # the published files are bodies
    aliases=ALIASES,
    copies={"lm_head.weight": "shared.weight"},
    shares=SHARES,
    zeros=("final_logits_bias",),
    ignored=("encoder.version", "decoder.version"),
)


@register("family", "bart")
def family() -> Family:
    return BART
