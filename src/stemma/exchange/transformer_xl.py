"""Transformer-XL (arXiv:1901.02860) in the layout of transformers up to release 4.35.

If all clusters of the vocabulary have the same embedding size (`div_val` 1), they are stored as one matrix.
"""

from __future__ import annotations

from stemma.exchange.family import DEFAULT_ARCHITECTURE, ConfigSetting, Family
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import LMHeadSpec
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layers.{i}."
TABLES, BIASES = "embedding.tokens.tables.{i}.weight", "heads.vocabulary.biases.{i}"
PROJECTION = "embedding.tokens.projections.0.weight"  # exists if the clusters have different embedding sizes
FIRST = "heads.vocabulary.first.weight"  # exists in the same case
CLUSTERS = "heads.vocabulary.parts."  # exists if there is more than one cluster

TRANSFORMER_XL = Family(
    model_type="transfo-xl",
    recipe="transformer-xl",
    visibility=frozenset({"causal"}),
    prefix="transformer.",
    settings=(
        ConfigSetting("tokenizer.vocab_size", "vocab_size"),
        ConfigSetting("network.layers", "n_layer"),
        ConfigSetting("network.width", "d_model"),
        ConfigSetting("network.heads", "n_head"),
        ConfigSetting("network.attention.head_width", "d_head",
                      to_hf=lambda value, values: value or values["network.width"] // values["network.heads"]),
        ConfigSetting("network.feedforward", "d_inner"),
        # transformers has one value for these three; if a recipe has several, the first is saved: inference uses none
        ConfigSetting("network.dropout", "dropout", default=0.1),
        ConfigSetting("network.inner_dropout", "dropout", default=0.1),
        ConfigSetting("network.output_dropout", "dropout", default=0.1),
        ConfigSetting("network.attention.dropout", "dropatt", default=0.0),
        # a cutoff at the vocabulary's end means one cluster; a small vocabulary has fewer clusters than the recipe
        ConfigSetting("network.embedding.cutoffs", "cutoffs",
                      from_hf=lambda value, config: value or [config["vocab_size"]],
                      to_hf=lambda value, values: [cutoff for cutoff in value
                                                   if cutoff < values["tokenizer.vocab_size"]]),
        ConfigSetting("network.embedding.div_val", "div_val"),
        ConfigSetting("network.position.clamp", "clamp_len", from_hf=lambda value, config: value if value > 0 else None,
                      to_hf=lambda value, values: value or -1),
        ConfigSetting("network.memory.eval_length", "mem_len",
                      to_hf=lambda value, values: value or values["network.memory.length"]),
        ConfigSetting("network.memory.same_length", "same_length"),
        ConfigSetting("network.norm.epsilon", "layer_norm_epsilon"),
        ConfigSetting("network.initialization.std", "init_std"),
    ),
    required_config={"d_embed": lambda config: config["d_model"], "pre_lnorm": False, "attn_type": 0, "untie_r": True,
                     "sample_softmax": -1, "adaptive": True, "tie_weight": True, "proj_share_all_but_first": True,
                     "tie_projs": lambda config: [False, *(True for _ in config["cutoffs"])]},
    required_recipe={
        **DEFAULT_ARCHITECTURE, "network.activation": "relu", "network.norm.placement": "post",
        "network.position.kind": "relative_xl",
        "network.attention.bias": False, "network.attention.segments": False,
        "network.embedding.scale": True, "network.embedding.norm": False, "network.embedding.query": False,
        "network.memory.start": "zeros",
    },
    body_keys=(
        TensorKey.of(TABLES, "word_emb.emb_layers.{i}.weight", if_present=PROJECTION),
        TensorKey.of(TABLES, "word_emb.emb_layers.0.weight", if_absent=PROJECTION),
        TensorKey.of("embedding.tokens.projections.{i}.weight", "word_emb.emb_projs.{i}", if_present=PROJECTION),
        TensorKey.of(BLOCK + "attention.input.weight", LAYER + "dec_attn.qkv_net.weight"),
        TensorKey.of(BLOCK + "attention.output.weight", LAYER + "dec_attn.o_net.weight"),
        TensorKey.of(BLOCK + "attention.relative.project.weight", LAYER + "dec_attn.r_net.weight"),
        TensorKey.of(BLOCK + "attention.relative.content_bias", LAYER + "dec_attn.r_w_bias"),
        TensorKey.of(BLOCK + "attention.relative.position_bias", LAYER + "dec_attn.r_r_bias"),
        *linear_keys(BLOCK + "attention_norm", LAYER + "dec_attn.layer_norm"),
        *linear_keys(BLOCK + "feedforward.input", LAYER + "pos_ff.CoreNet.0"),
        *linear_keys(BLOCK + "feedforward.output", LAYER + "pos_ff.CoreNet.3"),
        *linear_keys(BLOCK + "feedforward_norm", LAYER + "pos_ff.layer_norm"),
    ),
    head_keys={"vocabulary": (
        TensorKey.of(BIASES, "crit.out_layers.{i}.bias", if_present=PROJECTION),
        TensorKey.of(BIASES, "crit.out_layers.0.bias", if_absent=PROJECTION),
        TensorKey.of(FIRST, "crit.out_projs.0", if_present=FIRST),
        TensorKey.of(CLUSTERS + "weight", "crit.cluster_weight", if_present=CLUSTERS + "weight"),
        TensorKey.of(CLUSTERS + "bias", "crit.cluster_bias", if_present=CLUSTERS + "bias"),
    )},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=False)},
    architectures={frozenset({"vocabulary"}): "TransfoXLLMHeadModel", frozenset(): "TransfoXLModel"},
    aliases={"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
             "num_hidden_layers": "n_layer"},
    tied_head_tensors={"crit.out_layers.{i}.weight": "word_emb.emb_layers.{i}.weight",
                       "crit.out_projs.{i}": "word_emb.emb_projs.{i}"},
    ignored_buffers=("pos_emb.inv_freq",),
)


@register("family", "transfo-xl")
def family() -> Family:
    return TRANSFORMER_XL
