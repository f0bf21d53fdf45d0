"""BART (arXiv:1910.13461) in the Hugging Face layout, and what other encoder-decoders share with it."""

from __future__ import annotations

from stemma.corpus.seq2seq_rows import DECODER
from stemma.exchange.family import ACTIVATIONS, DEFAULT_ARCHITECTURE, ConfigSetting, Family
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import LMHeadSpec
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

SIZES = (
    ConfigSetting("tokenizer.vocab_size", "vocab_size"),
    ConfigSetting("network.layers", "encoder_layers"),
    ConfigSetting("network.decoder.layers", "decoder_layers"),
    ConfigSetting("network.width", "d_model"),
    ConfigSetting("network.heads", "encoder_attention_heads"),
    ConfigSetting("network.feedforward", "encoder_ffn_dim"),
    ConfigSetting("network.activation", "activation_function", ACTIVATIONS),
    ConfigSetting("network.dropout", "dropout"),
    ConfigSetting("network.attention.dropout", "attention_dropout"),
    ConfigSetting("network.inner_dropout", "activation_dropout"),
    ConfigSetting("network.position.maximum", "max_position_embeddings"),
    ConfigSetting("network.embedding.scale", "scale_embedding"),
    ConfigSetting("network.initialization.std", "init_std"),
)

REQUIRED_CONFIG = {"decoder_attention_heads": lambda config: config["encoder_attention_heads"],
                   "decoder_ffn_dim": lambda config: config["encoder_ffn_dim"],
                   "is_encoder_decoder": True, "tie_word_embeddings": True}

EPSILON = 1e-5  # fixed in transformers

REQUIRED_RECIPE = {**DEFAULT_ARCHITECTURE, "network.norm.placement": "post", "network.norm.epsilon": EPSILON,
                   "network.attention.head_width": None}


def stack_keys(part: str) -> tuple[TensorKey, ...]:
    """The keys of a stack's blocks; those of a decoder also have cross-attention."""
    block, layer = part + ".blocks.{i}.", part + ".layers.{i}."
    keys = (
        *linear_keys(block + "attention.input", layer + "self_attn.q_proj", layer + "self_attn.k_proj",
                     layer + "self_attn.v_proj"),
        *linear_keys(block + "attention.output", layer + "self_attn.out_proj"),
        *linear_keys(block + "attention_norm", layer + "self_attn_layer_norm"),
        *linear_keys(block + "feedforward.input", layer + "fc1"),
        *linear_keys(block + "feedforward.output", layer + "fc2"),
        *linear_keys(block + "feedforward_norm", layer + "final_layer_norm"),
    )
    if part == "encoder":
        return keys
    return (
        *keys,
        *linear_keys(block + "cross.query", layer + "encoder_attn.q_proj"),
        *linear_keys(block + "cross.input", layer + "encoder_attn.k_proj", layer + "encoder_attn.v_proj"),
        *linear_keys(block + "cross.output", layer + "encoder_attn.out_proj"),
        *linear_keys(block + "cross_norm", layer + "encoder_attn_layer_norm"),
    )


BODY = (TensorKey.of("embedding.tokens.weight", "shared.weight"), *stack_keys("encoder"), *stack_keys("decoder"))

ALIASES = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",
           "num_hidden_layers": "encoder_layers"}

TIED_TENSORS = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}

# The head reads the decoder's hidden state at the last end token.
TEXT = HFTaskClass("BartForSequenceClassification", SentenceHead(1, "last", "tanh", early=True),
                   {"dense": "classification_head.dense", "output": "classification_head.out_proj"},
                   dropout="classifier_dropout", stack=DECODER)

BART = Family(
    model_type="bart",
    recipe="bart@large",
    visibility=frozenset({"full"}),
    prefix="model.",
    settings=SIZES,
    required_config=REQUIRED_CONFIG,
    required_recipe={**REQUIRED_RECIPE, "network.position.kind": "learned", "network.position.offset": 2,
                     "network.position.numbering": "absolute", "network.embedding.norm": True},
    body_keys=(
        *BODY,
        TensorKey.of("embedding.position.table.weight", "encoder.embed_positions.weight"),
        *linear_keys("embedding.norm", "encoder.layernorm_embedding"),
        TensorKey.of("decoder_embedding.position.table.weight", "decoder.embed_positions.weight"),
        *linear_keys("decoder_embedding.norm", "decoder.layernorm_embedding"),
    ),
    head_keys={"vocabulary": ()},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=False)},
    architectures={frozenset({"vocabulary"}): "BartForConditionalGeneration"},
    task_classes={"classify": TEXT, "qa": HFTaskClass("BartForQuestionAnswering", SpanHead(), {"output": "qa_outputs"},
                                                      stack=DECODER)},
    implicit_heads=frozenset({"vocabulary"}),  # published checkpoints hold only the body
    aliases=ALIASES,
    tied_head_tensors={"lm_head.weight": "shared.weight"},
    tied_body_tensors=TIED_TENSORS,
    zero_tensors=("final_logits_bias",),
    ignored_buffers=("encoder.version", "decoder.version"),
)


@register("family", "bart")
def family() -> Family:
    return BART
