"""T5 (arXiv:1910.10683) in the Hugging Face layout: no biases, and one relative position bias per stack.

T5 1.1 (gated feed-forward layers, untied output matrix) has the same model_type and is refused.
"""

from __future__ import annotations

from dataclasses import replace

from stemma.corpus.seq2seq_rows import DECODER
from stemma.exchange.bart import TEXT
from stemma.exchange.family import ACTIVATIONS, DEFAULT_ARCHITECTURE, ConfigSetting, Family
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TensorKey
from stemma.network.heads import ClassHead, LMHeadSpec
from stemma.network.task_heads import SpanHead
from stemma.registry import register


def weight_key(layer: str, *hf_layers: str) -> TensorKey:
    return TensorKey.of(f"{layer}.weight", *(f"{hf_layer}.weight" for hf_layer in hf_layers))


def stack_keys(part: str, *sublayers: str) -> tuple[TensorKey, ...]:
    """The keys of a stack with these sublayers in each block; Hugging Face numbers them."""
    keys = [weight_key(f"{part}.near.table", f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias"),
            weight_key(f"{part}.final_norm", f"{part}.final_layer_norm")]
    for index, name in enumerate(sublayers):
        block, layer = f"{part}.blocks.{{i}}.{name}", f"{part}.block.{{i}}.layer.{index}"
        keys.append(weight_key(f"{block}_norm", f"{layer}.layer_norm"))
        if name == "attention":
            self_attention = f"{layer}.SelfAttention"
            keys += [weight_key(f"{block}.input", *(f"{self_attention}.{matrix}" for matrix in "qkv")),
                     weight_key(f"{block}.output", f"{self_attention}.o")]
        elif name == "cross":
            cross_attention = f"{layer}.EncDecAttention"
            keys += [weight_key(f"{block}.query", f"{cross_attention}.q"),
                     weight_key(f"{block}.input", f"{cross_attention}.k", f"{cross_attention}.v"),
                     weight_key(f"{block}.output", f"{cross_attention}.o")]
        else:
            keys += [weight_key(f"{block}.input", f"{layer}.DenseReluDense.wi"),
                     weight_key(f"{block}.output", f"{layer}.DenseReluDense.wo")]
    return tuple(keys)


T5 = Family(
    model_type="t5",
    recipe="t5@small",
    visibility=frozenset({"full"}),
    prefix="",
    settings=(
        ConfigSetting("tokenizer.vocab_size", "vocab_size"),
        ConfigSetting("network.layers", "num_layers"),
        ConfigSetting("network.decoder.layers", "num_decoder_layers", default=lambda config: config["num_layers"]),
        ConfigSetting("network.width", "d_model"),
        ConfigSetting("network.heads", "num_heads"),
        ConfigSetting("network.attention.head_width", "d_kv",
                      to_hf=lambda value, values: value or values["network.width"] // values["network.heads"]),
        ConfigSetting("network.feedforward", "d_ff"),
        ConfigSetting("network.activation", "feed_forward_proj", ACTIVATIONS),
        # transformers has one dropout; a recipe may have four, and the first is saved: inference uses none of them
        ConfigSetting("network.dropout", "dropout_rate"),
        ConfigSetting("network.attention.dropout", "dropout_rate"),
        ConfigSetting("network.inner_dropout", "dropout_rate"),
        ConfigSetting("network.output_dropout", "dropout_rate"),
        ConfigSetting("network.position.buckets", "relative_attention_num_buckets"),
        ConfigSetting("network.position.distance", "relative_attention_max_distance"),
        ConfigSetting("network.norm.epsilon", "layer_norm_epsilon"),
    ),
    required_config={"is_encoder_decoder": True, "tie_word_embeddings": True, "scale_decoder_outputs": True},
    required_recipe={
        **DEFAULT_ARCHITECTURE, "network.norm.kind": "scale", "network.norm.placement": "pre",
        "network.position.kind": "bucketed",
        "network.attention.bias": False, "network.attention.scale": False, "network.bias": False,
        "network.embedding.scale": False, "network.embedding.norm": False, "network.embedding.scale_logits": True,
    },
    body_keys=(
        weight_key("embedding.tokens", "shared"),
        *stack_keys("encoder", "attention", "feedforward"),
        *stack_keys("decoder", "attention", "cross", "feedforward"),
    ),
    head_keys={"vocabulary": ()},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=False)},
    architectures={frozenset({"vocabulary"}): "T5ForConditionalGeneration"},
    task_classes={
        "classify": replace(TEXT, name="T5ForSequenceClassification", prefix="transformer."),
        # this class has only the encoder
        "tag": HFTaskClass("T5ForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"},
                           dropout="classifier_dropout", prefix="transformer."),
        "qa": HFTaskClass("T5ForQuestionAnswering", SpanHead(), {"output": "qa_outputs"}, stack=DECODER),
    },
    implicit_heads=frozenset({"vocabulary"}),
    aliases={"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
             "head_dim": "d_kv"},
    tied_head_tensors={"lm_head.weight": "shared.weight"},
    tied_body_tensors={"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    ignored_buffers=("EncDecAttention.relative_attention_bias.weight",),  # stored once, never used
)


@register("family", "t5")
def family() -> Family:
    return T5
