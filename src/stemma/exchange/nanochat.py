"""nanochat (2025) in the Hugging Face layout: norms without weights, QK-norm after the rotation, an untied LM head.

Grouped-query attention (fewer key heads than query heads) has the same model_type and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stemma.exchange.family import ACTIVATIONS, DEFAULT_ARCHITECTURE, Config, ConfigSetting, Family
from stemma.exchange.tensor_map import TensorKey
from stemma.network.heads import LMHeadSpec
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layers.{i}."
THETA, SOFTCAP = "rope_theta", "final_logit_softcapping"


def upgrade_config(config: Config) -> Config:
    """config.json with `rope_theta` as a key of its own, and 0 for logits without a cap, which are null there."""
    upgraded = dict(config)
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping) and THETA in parameters:
        upgraded[THETA] = parameters[THETA]
    if isinstance(upgraded.get(THETA), int):
        upgraded[THETA] = float(upgraded[THETA])
    if SOFTCAP in config and config[SOFTCAP] is None:
        upgraded[SOFTCAP] = 0.0
    return upgraded


def rope_parameters(config: Config) -> dict[str, Any]:
    return {"rope_theta": config[THETA], "rope_type": "default"}


NANOCHAT = Family(
    model_type="nanochat",
    recipe="nanochat",
    visibility=frozenset({"causal"}),
    prefix="model.",
    settings=(
        ConfigSetting("tokenizer.vocab_size", "vocab_size"),
        ConfigSetting("network.layers", "num_hidden_layers"),
        ConfigSetting("network.width", "hidden_size"),
        ConfigSetting("network.heads", "num_attention_heads"),
        ConfigSetting("network.feedforward", "intermediate_size"),
        ConfigSetting("network.activation", "hidden_act", ACTIVATIONS),
        ConfigSetting("network.position.maximum", "max_position_embeddings"),
        ConfigSetting("network.position.base", THETA),
        ConfigSetting("network.attention.dropout", "attention_dropout"),
        ConfigSetting("network.embedding.logit_softcap", SOFTCAP, from_hf=lambda value, config: value or None,
                      to_hf=lambda value, values: value),
        ConfigSetting("network.norm.epsilon", "rms_norm_eps"),
        ConfigSetting("network.initialization.std", "initializer_range"),
    ),
    upgrade_config=upgrade_config,
    required_config={
        "num_key_value_heads": lambda config: config["num_attention_heads"], "attention_bias": False,
        "head_dim": lambda config: config["hidden_size"] // config["num_attention_heads"],
        "tie_word_embeddings": False, "rope_parameters": rope_parameters,
    },
    required_recipe={
        **{key: value for key, value in DEFAULT_ARCHITECTURE.items() if key != "network.embedding.logit_softcap"},
        "network.norm.kind": "rms", "network.norm.placement": "pre", "network.norm.weight": False,
        "network.norm.first": True, "network.bias": False, "network.attention.bias": False,
        "network.attention.head_width": None, "network.attention.qk_norm": "after",
        "network.attention.qk_norm_weight": False, "network.position.kind": "rotary",
        "network.position.clockwise": True, "network.embedding.scale": False, "network.embedding.norm": True,
        "network.embedding.segments": 0, "network.embedding.tied": False,
    },
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "embed_tokens.weight"),
        TensorKey.of(BLOCK + "attention.input.weight", *(f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv")),
        TensorKey.of(BLOCK + "attention.output.weight", LAYER + "self_attn.o_proj.weight"),
        TensorKey.of(BLOCK + "feedforward.input.weight", LAYER + "mlp.fc1.weight"),
        TensorKey.of(BLOCK + "feedforward.output.weight", LAYER + "mlp.fc2.weight"),
    ),
    head_keys={"vocabulary": (TensorKey.of("heads.vocabulary.output.weight", "lm_head.weight"),)},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=False)},
    architectures={frozenset({"vocabulary"}): "NanoChatForCausalLM", frozenset(): "NanoChatModel"},
    special_token_ids={"pad_token_id": ("padding",)},
)


@register("family", "nanochat")
def family() -> Family:
    return NANOCHAT
