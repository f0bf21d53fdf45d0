"""XLNet (arXiv:1906.08237) in the Hugging Face layout: its attention projections have an axis for the heads."""

from __future__ import annotations

from dataclasses import replace

from stemma.exchange.family import ACTIVATIONS, DEFAULT_ARCHITECTURE, ConfigSetting, Family
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TensorKey, TensorTransform, linear_keys
from stemma.network.heads import ClassHead, LMHeadSpec
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layer.{i}."

# Hugging Face stores all projections as (width, heads, head width). Here a projection to the heads is
# (heads x head width, width), and the output projection is (width, heads x head width).
SPLIT_OUTPUT_HEADS = TensorTransform(lambda tensor: tensor.flatten(1).T,
                                     lambda tensor, heads: tensor.T.unflatten(1, (heads, -1)))
SPLIT_INPUT_HEADS = TensorTransform(lambda tensor: tensor.flatten(1),
                                    lambda tensor, heads: tensor.unflatten(1, (heads, -1)))
SINGLE_VECTOR = TensorTransform(lambda tensor: tensor.flatten(), lambda tensor, heads: tensor[None, None])

TEXT = HFTaskClass("XLNetForSequenceClassification", SentenceHead(1, "last", "tanh"),
                   {"dense": "sequence_summary.summary", "output": "logits_proj"}, dropout="summary_last_dropout",
                   default_dropout=0.1, required_config={"summary_type": "last", "summary_use_proj": True,
                                                         "summary_activation": "tanh"})

XLNET = Family(
    model_type="xlnet",
    recipe="xlnet@large",
    visibility=frozenset({"full", "permuted"}),
    prefix="transformer.",
    settings=(
        ConfigSetting("tokenizer.vocab_size", "vocab_size"),
        ConfigSetting("network.layers", "n_layer"),
        ConfigSetting("network.width", "d_model"),
        ConfigSetting("network.heads", "n_head"),
        ConfigSetting("network.feedforward", "d_inner"),
        # "gelu" is exact in transformers; the authors' code has the tanh approximation, which is the recipe's value
        ConfigSetting("network.activation", "ff_activation", ACTIVATIONS, default="gelu"),
        # transformers has one dropout; a recipe may have four, and the first is saved: inference uses none of them
        ConfigSetting("network.dropout", "dropout"),
        ConfigSetting("network.attention.dropout", "dropout"),
        ConfigSetting("network.inner_dropout", "dropout"),
        ConfigSetting("network.output_dropout", "dropout"),
        ConfigSetting("network.norm.epsilon", "layer_norm_eps"),
        ConfigSetting("network.position.clamp", "clamp_len", default=-1,
                      from_hf=lambda value, config: value if value > 0 else None,
                      to_hf=lambda value, values: value or -1),
        # with null or 0, transformers keeps every earlier hidden state; here the memory then has 512, the default
        ConfigSetting("network.memory.eval_length", "mem_len", default=512, from_hf=lambda value, config: value or 512,
                      to_hf=lambda value, values: value or values["network.memory.length"]),
        ConfigSetting("network.initialization.std", "initializer_range"),
    ),
    derived_values={"network.attention.head_width": lambda values: values["network.width"] // values["network.heads"]},
    required_config={"d_head": lambda config: config["d_model"] // config["n_head"], "attn_type": "bi",
                     "bi_data": False, "untie_r": True},
    required_recipe={
        **DEFAULT_ARCHITECTURE, "network.norm.placement": "post", "network.position.kind": "relative_xl",
        "network.attention.bias": False, "network.attention.segments": True,
        "network.embedding.scale": False, "network.embedding.norm": False, "network.embedding.query": True,
        "network.memory.start": "empty", "network.memory.same_length": False,
    },
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "word_embedding.weight"),
        TensorKey.of("embedding.query", "mask_emb", transform=SINGLE_VECTOR),
        TensorKey.of(BLOCK + "attention.input.weight", LAYER + "rel_attn.q", LAYER + "rel_attn.k", LAYER + "rel_attn.v",
                     transform=SPLIT_OUTPUT_HEADS),
        TensorKey.of(BLOCK + "attention.output.weight", LAYER + "rel_attn.o", transform=SPLIT_INPUT_HEADS),
        TensorKey.of(BLOCK + "attention.relative.project.weight", LAYER + "rel_attn.r", transform=SPLIT_OUTPUT_HEADS),
        TensorKey.of(BLOCK + "attention.relative.content_bias", LAYER + "rel_attn.r_w_bias"),
        TensorKey.of(BLOCK + "attention.relative.position_bias", LAYER + "rel_attn.r_r_bias"),
        TensorKey.of(BLOCK + "attention.relative.segment_bias", LAYER + "rel_attn.r_s_bias"),
        TensorKey.of(BLOCK + "attention.relative.segments", LAYER + "rel_attn.seg_embed"),
        *linear_keys(BLOCK + "attention_norm", LAYER + "rel_attn.layer_norm"),
        *linear_keys(BLOCK + "feedforward.input", LAYER + "ff.layer_1"),
        *linear_keys(BLOCK + "feedforward.output", LAYER + "ff.layer_2"),
        *linear_keys(BLOCK + "feedforward_norm", LAYER + "ff.layer_norm"),
    ),
    head_keys={"vocabulary": (TensorKey.of("heads.vocabulary.bias", "lm_loss.bias"),)},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=True)},
    architectures={frozenset({"vocabulary"}): "XLNetLMHeadModel", frozenset(): "XLNetModel"},
    task_classes={
        "classify": TEXT,
        "choice": replace(TEXT, name="XLNetForMultipleChoice"),
        "tag": HFTaskClass("XLNetForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"}),
        "qa": HFTaskClass("XLNetForQuestionAnsweringSimple", SpanHead(), {"output": "qa_outputs"}),
    },
    aliases={"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
             "num_hidden_layers": "n_layer"},
    tied_head_tensors={"lm_loss.weight": "word_embedding.weight"},
)


@register("family", "xlnet")
def family() -> Family:
    return XLNET
