"""T5 (arXiv:1910.10683) as Hugging Face lays it out: no constants anywhere, and one table of distances a stack.

The later releases (1.1, with gates and an output matrix of its own) go by the same name over there and are refused.
"""

from __future__ import annotations

from dataclasses import replace

from stemma.corpus.sides import DECODER
from stemma.exchange.bart import TEXT
from stemma.exchange.keys import Key
from stemma.exchange.table import ACTIVATIONS, ORDINARY, Family, Setting
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import ClassHead, TokenHead
from stemma.network.task_heads import SpanHead
from stemma.registry import register


def weight(ours: str, *theirs: str) -> Key:
    return Key.of(f"{ours}.weight", *(f"{name}.weight" for name in theirs))


def stack(part: str, *sublayers: str) -> tuple[Key, ...]:
    """A part's blocks: what we call its sublayers, in their order; over there they are numbered."""
    keys = [weight(f"{part}.near.table", f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias"),
            weight(f"{part}.final_norm", f"{part}.final_layer_norm")]
    for number, name in enumerate(sublayers):
        block, layer = f"{part}.blocks.{{i}}.{name}", f"{part}.block.{{i}}.layer.{number}"
        keys.append(weight(f"{block}_norm", f"{layer}.layer_norm"))
        if name == "attention":
            own = f"{layer}.SelfAttention"
            keys += [weight(f"{block}.input", f"{own}.q", f"{own}.k", f"{own}.v"),
                     weight(f"{block}.output", f"{own}.o")]
        elif name == "cross":
            other = f"{layer}.EncDecAttention"
            keys += [weight(f"{block}.query", f"{other}.q"), weight(f"{block}.input", f"{other}.k", f"{other}.v"),
                     weight(f"{block}.output", f"{other}.o")]
        else:
            keys += [weight(f"{block}.input", f"{layer}.DenseReluDense.wi"),
                     weight(f"{block}.output", f"{layer}.DenseReluDense.wo")]
    return tuple(keys)


T5 = Family(
    model_type="t5",
    recipe="t5@small",
    sees=frozenset({"full"}),
    prefix="",
    settings=(
        Setting("tokenizer.vocab_size", "vocab_size"),
        Setting("network.layers", "num_layers"),
        Setting("network.decoder.layers", "num_decoder_layers", default=lambda config: config["num_layers"]),
        Setting("network.width", "d_model"),
        Setting("network.heads", "num_heads"),
        Setting("network.attention.head_width", "d_kv",
                writes=lambda value, values: value or values["network.width"] // values["network.heads"]),
        Setting("network.feedforward", "d_ff"),
        Setting("network.activation", "feed_forward_proj", ACTIVATIONS),
        Setting("network.dropout", "dropout_rate"),
        Setting("network.attention.dropout", "dropout_rate"),  # the same; ours may differ, which only training notices
        Setting("network.inner_dropout", "dropout_rate"),
        Setting("network.output_dropout", "dropout_rate"),
        Setting("network.position.buckets", "relative_attention_num_buckets"),
        Setting("network.position.distance", "relative_attention_max_distance"),
        Setting("network.norm.epsilon", "layer_norm_epsilon"),
    ),
    holds={"is_encoder_decoder": True, "tie_word_embeddings": True, "scale_decoder_outputs": True},
    fixed={
        **ORDINARY, "network.norm.kind": "scale", "network.norm.place": "pre", "network.position.kind": "bucketed",
        "network.attention.bias": False, "network.attention.scale": False, "network.bias": False,
        "network.embedding.scale": False, "network.embedding.norm": False, "network.embedding.quiet": True,
    },
    body=(
        weight("embedding.tokens", "shared"),
        *stack("encoder", "attention", "feedforward"),
        *stack("decoder", "attention", "cross", "feedforward"),
    ),
    heads={"vocabulary": ()},
    specs={"vocabulary": TokenHead(transform=False, bias=False)},
    classes={frozenset({"vocabulary"}): "T5ForConditionalGeneration"},
    tasks={
        "classify": replace(TEXT, name="T5ForSequenceClassification", prefix="transformer."),
        # there are no decoder's weights in it
        "tag": TaskClass("T5ForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"},
                         dropout="classifier_dropout", prefix="transformer."),
        "qa": TaskClass("T5ForQuestionAnswering", SpanHead(), {"output": "qa_outputs"}, stack=DECODER),
    },
    always=frozenset({"vocabulary"}),
    aliases={"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
             "head_dim": "d_kv"},
    copies={"lm_head.weight": "shared.weight"},
    shares={"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    ignored=("EncDecAttention.relative_attention_bias.weight",),  # once stored, never used
)


@register("family", "t5")
def family() -> Family:
    return T5
