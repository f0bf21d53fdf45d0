"""Transformer-XL (arXiv:1901.02860) as transformers laid it out up to release 4.35.

With words of one width (`div_val` 1) all parts of the vocabulary are one table over there.
"""

from __future__ import annotations

from stemma.exchange.keys import Key, linear
from stemma.exchange.table import ORDINARY, Family, Setting
from stemma.network.heads import TokenHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layers.{i}."
TABLES, BIASES = "embedding.tokens.tables.{i}.weight", "heads.vocabulary.biases.{i}"
NARROWER = "embedding.tokens.projections.0.weight"  # there if the parts' vectors differ in width
FIRST, PARTS = "heads.vocabulary.first.weight", "heads.vocabulary.parts."  # there if narrower; if there are parts

TRANSFORMER_XL = Family(
    model_type="transfo-xl",
    recipe="transformer-xl",
    sees=frozenset({"causal"}),
    prefix="transformer.",
    settings=(
        Setting("tokenizer.vocab_size", "vocab_size"),
        Setting("network.layers", "n_layer"),
        Setting("network.width", "d_model"),
        Setting("network.heads", "n_head"),
        Setting("network.attention.head_width", "d_head",
                writes=lambda value, values: value or values["network.width"] // values["network.heads"]),
        Setting("network.feedforward", "d_inner"),
        Setting("network.dropout", "dropout", default=0.1),
        Setting("network.inner_dropout", "dropout", default=0.1),  # the same; ours may differ, which only training
        Setting("network.output_dropout", "dropout", default=0.1),  # notices
        Setting("network.attention.dropout", "dropatt", default=0.0),
        # a small vocabulary has fewer parts; undivided, it is one part that ends where it ends
        Setting("network.embedding.cutoffs", "cutoffs", reads=lambda value, config: value or [config["vocab_size"]],
                writes=lambda value, values: [cut for cut in value if cut < values["tokenizer.vocab_size"]]),
        Setting("network.embedding.shrink", "div_val"),
        Setting("network.position.clamp", "clamp_len", reads=lambda value, config: value if value > 0 else None,
                writes=lambda value, values: value or -1),
        Setting("network.memory.evaluation", "mem_len",
                writes=lambda value, values: value or values["network.memory.length"]),
        Setting("network.memory.same_length", "same_length"),
        Setting("network.norm.epsilon", "layer_norm_epsilon"),
        Setting("network.initialization.spread", "init_std"),
    ),
    holds={"d_embed": lambda config: config["d_model"], "pre_lnorm": False, "attn_type": 0, "untie_r": True,
           "sample_softmax": -1, "adaptive": True, "tie_weight": True, "proj_share_all_but_first": True,
           "tie_projs": lambda config: [False, *(True for _ in config["cutoffs"])]},
    fixed={
        **ORDINARY, "network.activation": "relu", "network.norm.place": "post", "network.position.kind": "relative_xl",
        "network.attention.bias": False, "network.attention.segments": False,
        "network.embedding.scale": True, "network.embedding.norm": False, "network.embedding.query": False,
        "network.memory.start": "zeros",
    },
    body=(
        Key.of(TABLES, "word_emb.emb_layers.{i}.weight", given=NARROWER),
        Key.of(TABLES, "word_emb.emb_layers.0.weight", unless=NARROWER),
        Key.of("embedding.tokens.projections.{i}.weight", "word_emb.emb_projs.{i}", given=NARROWER),
        Key.of(BLOCK + "attention.input.weight", LAYER + "dec_attn.qkv_net.weight"),
        Key.of(BLOCK + "attention.output.weight", LAYER + "dec_attn.o_net.weight"),
        Key.of(BLOCK + "attention.relative.project.weight", LAYER + "dec_attn.r_net.weight"),
        Key.of(BLOCK + "attention.relative.content_bias", LAYER + "dec_attn.r_w_bias"),
        Key.of(BLOCK + "attention.relative.position_bias", LAYER + "dec_attn.r_r_bias"),
        *linear(BLOCK + "attention_norm", LAYER + "dec_attn.layer_norm"),
        *linear(BLOCK + "feedforward.input", LAYER + "pos_ff.CoreNet.0"),
        *linear(BLOCK + "feedforward.output", LAYER + "pos_ff.CoreNet.3"),
        *linear(BLOCK + "feedforward_norm", LAYER + "pos_ff.layer_norm"),
    ),
    heads={"vocabulary": (
        Key.of(BIASES, "crit.out_layers.{i}.bias", given=NARROWER),
        Key.of(BIASES, "crit.out_layers.0.bias", unless=NARROWER),
        Key.of(FIRST, "crit.out_projs.0", given=FIRST),
        Key.of(PARTS + "weight", "crit.cluster_weight", given=PARTS + "weight"),
        Key.of(PARTS + "bias", "crit.cluster_bias", given=PARTS + "bias"),
    )},
    specs={"vocabulary": TokenHead(transform=False, bias=False)},
    classes={frozenset({"vocabulary"}): "TransfoXLLMHeadModel", frozenset(): "TransfoXLModel"},
    aliases={"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
             "num_hidden_layers": "n_layer"},
    copies={"crit.out_layers.{i}.weight": "word_emb.emb_layers.{i}.weight",
            "crit.out_projs.{i}": "word_emb.emb_projs.{i}"},
    ignored=("pos_emb.inv_freq",),
)


@register("family", "transfo-xl")
def family() -> Family:
    return TRANSFORMER_XL
