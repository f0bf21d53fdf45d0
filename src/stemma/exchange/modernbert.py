"""ModernBERT (arXiv:2412.13663) and its decoder (Ettin, arXiv:2507.11412) in the Hugging Face layout.

`layer_types` lists which layers have global attention, and `local_attention` is the window of the others, both sides
together; a recipe's window is one side. The keys of releases before transformers 5 are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stemma.exchange.family import ACTIVATIONS, DEFAULT_ARCHITECTURE, Config, ConfigSetting, Family, Values
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TensorKey
from stemma.network.heads import ClassHead, LMHeadSpec
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layers.{i}."
GLOBAL, LOCAL = "full_attention", "sliding_attention"
THETA_KEYS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
DEFAULT_WINDOW, GLOBAL_EVERY = 128, 3


def upgrade_config(config: Config) -> Config:
    """config.json with `layer_types` and one key for each RoPE base, whichever release of transformers wrote it."""
    upgraded = dict(config)
    parameters = config.get("rope_parameters")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    for kind, name in THETA_KEYS.items():
        rope = parameters.get(kind)
        if isinstance(rope, Mapping) and "rope_theta" in rope:
            upgraded[name] = float(rope["rope_theta"])
        elif isinstance(upgraded.get(name), int):
            upgraded[name] = float(upgraded[name])
    layers, every = config.get("num_hidden_layers"), config.get("global_attn_every_n_layers", GLOBAL_EVERY)
    if config.get("layer_types") is None \
            and type(layers) is int and 0 < layers < 10**6 and type(every) is int and every:
        upgraded["layer_types"] = [LOCAL if index % every else GLOBAL for index in range(layers)]
    return upgraded


def rope_parameters(config: Config) -> dict[str, Any]:
    return {kind: {"rope_theta": config[name], "rope_type": "default"} for kind, name in THETA_KEYS.items()}


def windows(value: object, config: Config) -> list[int]:
    """The recipe's windows: the shortest list that gives all layers' windows by repetition; 0 is global attention."""
    window = config["local_attention"] // 2
    layer_windows = [window if kind == LOCAL else 0 for kind in config["layer_types"]]
    for period in range(1, len(layer_windows)):
        if all(size == layer_windows[index % period] for index, size in enumerate(layer_windows)):
            layer_windows = layer_windows[:period]
            break
    return layer_windows if any(layer_windows) else []


def layer_types(value: Any, values: Values) -> list[str]:
    repeated = value or [0]
    return [LOCAL if repeated[index % len(repeated)] else GLOBAL for index in range(values["network.layers"])]


def local_attention(value: Any, values: Values) -> int:
    return 2 * max(value or [0]) or DEFAULT_WINDOW


def uniform_windows(values: Values) -> list[int]:
    """The recipe's windows if all local layers have one size, as Hugging Face requires; otherwise one size for all."""
    recipe_windows = values["network.attention.windows"]
    recipe_windows = recipe_windows if isinstance(recipe_windows, list) else []
    kinds, size = layer_types(recipe_windows, values), local_attention(recipe_windows, values) // 2
    uniform = all(recipe_windows[index % len(recipe_windows)] == (size if kind == LOCAL else 0)
                  for index, kind in enumerate(kinds) if recipe_windows)
    return recipe_windows if uniform else windows(None, {"layer_types": kinds, "local_attention": 2 * size})


SETTINGS = (
    ConfigSetting("tokenizer.vocab_size", "vocab_size"),
    ConfigSetting("network.layers", "num_hidden_layers"),
    ConfigSetting("network.width", "hidden_size"),
    ConfigSetting("network.heads", "num_attention_heads"),
    ConfigSetting("network.feedforward", "intermediate_size"),
    ConfigSetting("network.activation", "hidden_activation", ACTIVATIONS),
    ConfigSetting("network.position.maximum", "max_position_embeddings"),
    ConfigSetting("network.position.base", "global_rope_theta"),
    ConfigSetting("network.position.local_base", "local_rope_theta",
                  to_hf=lambda value, values: values["network.position.base"] if value is None else value),
    ConfigSetting("network.attention.windows", "local_attention", from_hf=windows, to_hf=local_attention,
                  required_value=lambda config: max(2, config["local_attention"])),
    ConfigSetting("network.attention.windows", "layer_types", from_hf=windows, to_hf=layer_types,
                  default=lambda config: upgrade_config(config)["layer_types"]),
    ConfigSetting("network.attention.dropout", "attention_dropout"),
    ConfigSetting("network.attention.output_dropout", "attention_dropout"),  # transformers has one value for both
    ConfigSetting("network.inner_dropout", "mlp_dropout"),
    ConfigSetting("network.embedding.dropout", "embedding_dropout",
                  to_hf=lambda value, values: values["network.dropout"] if value is None else value),
    ConfigSetting("network.norm.epsilon", "norm_eps"),
    ConfigSetting("network.initialization.std", "initializer_range"),
)
REQUIRED_CONFIG = {
    "attention_bias": False, "mlp_bias": False, "norm_bias": False, "decoder_bias": True, "classifier_bias": False,
    "classifier_activation": lambda config: config["hidden_activation"], "rope_parameters": rope_parameters,
}
REQUIRED_RECIPE = {
    **{key: value for key, value in DEFAULT_ARCHITECTURE.items() if key != "network.attention.windows"},
    "network.norm.placement": "pre", "network.norm.bias": False, "network.norm.weight": True,
    "network.norm.first": False, "network.bias": False, "network.attention.bias": False, "network.transition": "gated",
    "network.attention.head_width": None, "network.position.kind": "rotary", "network.embedding.scale": False,
    "network.embedding.norm": True, "network.embedding.segments": 0,
}
BODY = (
    TensorKey.of("embedding.tokens.weight", "embeddings.tok_embeddings.weight"),
    TensorKey.of("embedding.norm.weight", "embeddings.norm.weight"),
    TensorKey.of(BLOCK + "attention.output.weight", LAYER + "attn.Wo.weight"),
    TensorKey.of(BLOCK + "attention_norm.weight", LAYER + "attn_norm.weight",
                 if_present="encoder.blocks.1.attention_norm.weight"),  # the first layer has none
    TensorKey.of(BLOCK + "feedforward.input.weight", LAYER + "mlp.Wi.weight"),
    TensorKey.of(BLOCK + "feedforward.output.weight", LAYER + "mlp.Wo.weight"),
    TensorKey.of(BLOCK + "feedforward_norm.weight", LAYER + "mlp_norm.weight"),
    TensorKey.of("encoder.final_norm.weight", "final_norm.weight"),
)
TASK_LAYERS = {"transform.dense": "head.dense", "transform.norm": "head.norm", "output": "classifier"}
UNBIASED = frozenset({"transform.dense", "transform.norm"})


def head_keys(name: str) -> tuple[TensorKey, ...]:
    return (TensorKey.of("heads.vocabulary.dense.weight", f"{name}.dense.weight"),
            TensorKey.of("heads.vocabulary.norm.weight", f"{name}.norm.weight"),
            TensorKey.of("heads.vocabulary.bias", "decoder.bias"))


TEXT = HFTaskClass("ModernBertForSequenceClassification", SentenceHead(1, "first", "gelu", norm=True), TASK_LAYERS,
                   unbiased=UNBIASED, dropout="classifier_dropout", pooling="classifier_pooling")

MODERNBERT = Family(
    model_type="modernbert",
    recipe="modernbert",
    visibility=frozenset({"full"}),
    prefix="model.",
    settings=SETTINGS,
    upgrade_config=upgrade_config,
    derived_values={"network.attention.windows": uniform_windows},
    required_config=REQUIRED_CONFIG,
    required_recipe=REQUIRED_RECIPE,
    body_keys=(*BODY, TensorKey.of(BLOCK + "attention.input.weight", LAYER + "attn.Wqkv.weight")),
    head_keys={"vocabulary": head_keys("head")},
    head_specs={"vocabulary": LMHeadSpec(transform=True)},
    architectures={frozenset({"vocabulary"}): "ModernBertForMaskedLM", frozenset(): "ModernBertModel"},
    task_classes={
        "classify": TEXT,
        "choice": replace(TEXT, name="ModernBertForMultipleChoice"),
        "tag": HFTaskClass("ModernBertForTokenClassification", ClassHead(1, transform="gelu"), TASK_LAYERS,
                           unbiased=UNBIASED, dropout="classifier_dropout"),
        "qa": HFTaskClass("ModernBertForQuestionAnswering", SpanHead(transform="gelu"), TASK_LAYERS, unbiased=UNBIASED,
                          dropout="classifier_dropout"),
    },
    special_token_ids={"pad_token_id": ("padding",), "cls_token_id": ("start", "begin"),
                       "sep_token_id": ("separator", "end"),
                       "bos_token_id": ("begin", "start", "end"), "eos_token_id": ("end", "separator")},
    tied_head_tensors={"decoder.weight": "embeddings.tok_embeddings.weight"},
)

MODERNBERT_DECODER = replace(
    MODERNBERT,
    model_type="modernbert-decoder",
    recipe="ettin-decoder",
    visibility=frozenset({"causal"}),
    body_keys=(*BODY, TensorKey.of(BLOCK + "attention.input.weight",
                                   *(f"{LAYER}attn.{part}_proj.weight" for part in "qkv"))),
    head_keys={"vocabulary": head_keys("lm_head")},
    architectures={frozenset({"vocabulary"}): "ModernBertDecoderForCausalLM", frozenset(): "ModernBertDecoderModel"},
    task_classes={"classify": HFTaskClass("ModernBertDecoderForSequenceClassification",
                                          SentenceHead(1, "last", "gelu", norm=True, bias=False), TASK_LAYERS,
                                          unbiased=UNBIASED, dropout="classifier_dropout")},
    missing_token_id=0,  # its configuration class refuses null
)


@register("family", "modernbert")
def family() -> Family:
    return MODERNBERT


@register("family", "modernbert-decoder")
def decoder_family() -> Family:
    return MODERNBERT_DECODER
