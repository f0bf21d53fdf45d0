"""XLNet (arXiv:1906.08237) as Hugging Face lays it out: every projection of its attention is parted by heads."""

from __future__ import annotations

from dataclasses import replace

from stemma.exchange.keys import Form, Key, linear
from stemma.exchange.table import ACTIVATIONS, ORDINARY, Family, Setting
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import ClassHead, TokenHead
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layer.{i}."

# (width, heads, head width): into the heads, as (heads x head width, width) with us, and out of them again.
INTO_HEADS = Form(lambda theirs: theirs.flatten(1).T, lambda ours, heads: ours.T.unflatten(1, (heads, -1)))
FROM_HEADS = Form(lambda theirs: theirs.flatten(1), lambda ours, heads: ours.unflatten(1, (heads, -1)))
ONE_PLACE = Form(lambda theirs: theirs.flatten(), lambda ours, heads: ours[None, None])  # of one row

TEXT = TaskClass("XLNetForSequenceClassification", SentenceHead(1, "last", "tanh"),
                 {"dense": "sequence_summary.summary", "output": "logits_proj"}, dropout="summary_last_dropout",
                 otherwise=0.1, holds={"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"})

XLNET = Family(
    model_type="xlnet",
    recipe="xlnet@large",
    sees=frozenset({"full", "permuted"}),
    prefix="transformer.",
    settings=(
        Setting("tokenizer.vocab_size", "vocab_size"),
        Setting("network.layers", "n_layer"),
        Setting("network.width", "d_model"),
        Setting("network.heads", "n_head"),
        Setting("network.feedforward", "d_inner"),
        # "gelu" is the exact form over there and the tanh form in the authors' code: each model keeps what it computes
        Setting("network.activation", "ff_activation", ACTIVATIONS, default="gelu"),
        Setting("network.dropout", "dropout"),
        Setting("network.attention.dropout", "dropout"),  # the same; ours may differ, which only training notices
        Setting("network.inner_dropout", "dropout"),
        Setting("network.output_dropout", "dropout"),
        Setting("network.norm.epsilon", "layer_norm_eps"),
        Setting("network.position.clamp", "clamp_len", default=-1,
                reads=lambda value, config: value if value > 0 else None, writes=lambda value, values: value or -1),
        # none, or 0, keeps all that was ever read; we keep as much as the family does by default
        Setting("network.memory.evaluation", "mem_len", default=512, reads=lambda value, config: value or 512,
                writes=lambda value, values: value or values["network.memory.length"]),
        Setting("network.initialization.spread", "initializer_range"),
    ),
    follows={"network.attention.head_width": lambda values: values["network.width"] // values["network.heads"]},
    holds={"d_head": lambda config: config["d_model"] // config["n_head"], "attn_type": "bi", "bi_data": False,
           "untie_r": True},
    fixed={
        **ORDINARY, "network.norm.place": "post", "network.position.kind": "relative_xl",
        "network.attention.bias": False, "network.attention.segments": True,
        "network.embedding.scale": False, "network.embedding.norm": False, "network.embedding.query": True,
        "network.memory.start": "empty", "network.memory.same_length": False,
    },
    body=(
        Key.of("embedding.tokens.weight", "word_embedding.weight"),
        Key.of("embedding.query", "mask_emb", form=ONE_PLACE),
        Key.of(BLOCK + "attention.input.weight", LAYER + "rel_attn.q", LAYER + "rel_attn.k", LAYER + "rel_attn.v",
               form=INTO_HEADS),
        Key.of(BLOCK + "attention.output.weight", LAYER + "rel_attn.o", form=FROM_HEADS),
        Key.of(BLOCK + "attention.relative.project.weight", LAYER + "rel_attn.r", form=INTO_HEADS),
        Key.of(BLOCK + "attention.relative.content_bias", LAYER + "rel_attn.r_w_bias"),
        Key.of(BLOCK + "attention.relative.position_bias", LAYER + "rel_attn.r_r_bias"),
        Key.of(BLOCK + "attention.relative.segment_bias", LAYER + "rel_attn.r_s_bias"),
        Key.of(BLOCK + "attention.relative.segments", LAYER + "rel_attn.seg_embed"),
        *linear(BLOCK + "attention_norm", LAYER + "rel_attn.layer_norm"),
        *linear(BLOCK + "feedforward.input", LAYER + "ff.layer_1"),
        *linear(BLOCK + "feedforward.output", LAYER + "ff.layer_2"),
        *linear(BLOCK + "feedforward_norm", LAYER + "ff.layer_norm"),
    ),
    heads={"vocabulary": (Key.of("heads.vocabulary.bias", "lm_loss.bias"),)},
    specs={"vocabulary": TokenHead(transform=False, bias=True)},
    classes={frozenset({"vocabulary"}): "XLNetLMHeadModel", frozenset(): "XLNetModel"},
    tasks={
        "classify": TEXT,
        "choice": replace(TEXT, name="XLNetForMultipleChoice"),
        "tag": TaskClass("XLNetForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"}),
        "qa": TaskClass("XLNetForQuestionAnsweringSimple", SpanHead(), {"output": "qa_outputs"}),
    },
    aliases={"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
             "num_hidden_layers": "n_layer"},
    copies={"lm_loss.weight": "word_embedding.weight"},
)


@register("family", "xlnet")
def family() -> Family:
    return XLNET
