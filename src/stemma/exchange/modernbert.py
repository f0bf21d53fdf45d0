"""ModernBERT (arXiv:2412.13663) and its decoder (Ettin, arXiv:2507.11412) as Hugging Face lays them out.

Which layers see everything is a list of names over there (`layer_types`), and how far the others see is twice our
number (`local_attention`). Releases before transformers 5 say the same by other keys, which are read too.
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
BASES = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
DEFAULT_WINDOW, GLOBAL_EVERY = 128, 3


def upgrade_config(config: Config) -> Config:
    """What releases before transformers 5 said by other keys."""
    told = dict(config)
    parameters = config.get("rope_parameters")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    for kind, name in BASES.items():
        stated = parameters.get(kind)
        if isinstance(stated, Mapping) and "rope_theta" in stated:
            told[name] = float(stated["rope_theta"])
        elif isinstance(told.get(name), int):
            told[name] = float(told[name])
    layers, turn = config.get("num_hidden_layers"), config.get("global_attn_every_n_layers", GLOBAL_EVERY)
    if config.get("layer_types") is None and type(layers) is int and type(turn) is int and 0 < layers < 10**6 and turn:
        told["layer_types"] = [LOCAL if number % turn else GLOBAL for number in range(layers)]
    return told


def rope_parameters(told: Config) -> dict[str, Any]:
    return {kind: {"rope_theta": told[name], "rope_type": "default"} for kind, name in BASES.items()}


def windows(value: object, told: Config) -> list[int]:
    """In turn, as few as say it all."""
    window = told["local_attention"] // 2
    each = [window if kind == LOCAL else 0 for kind in told["layer_types"]]
    for length in range(1, len(each)):
        if all(one == each[number % length] for number, one in enumerate(each)):
            each = each[:length]
            break
    return each if any(each) else []


def layer_types(value: Any, values: Values) -> list[str]:
    turn = value or [0]
    return [LOCAL if turn[number % len(turn)] else GLOBAL for number in range(values["network.layers"])]


def local_attention(value: Any, values: Values) -> int:
    return 2 * max(value or [0]) or DEFAULT_WINDOW


def uniform_windows(values: Values) -> list[int]:
    """The windows as stated, if each layer has the same one over there, where all windows are of one size."""
    stated = values["network.attention.windows"]
    stated = stated if isinstance(stated, list) else []
    kinds, size = layer_types(stated, values), local_attention(stated, values) // 2
    alike = all(stated[number % len(stated)] == (size if kind == LOCAL else 0)
                for number, kind in enumerate(kinds) if stated)
    return stated if alike else windows(None, {"layer_types": kinds, "local_attention": 2 * size})


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
            required_value=lambda told: max(2, told["local_attention"])),
    ConfigSetting("network.attention.windows", "layer_types", from_hf=windows, to_hf=layer_types,
            default=lambda told: upgrade_config(told)["layer_types"]),
    ConfigSetting("network.attention.dropout", "attention_dropout"),
    ConfigSetting("network.attention.output_dropout", "attention_dropout"),  # one number for both over there
    ConfigSetting("network.inner_dropout", "mlp_dropout"),
    ConfigSetting("network.embedding.dropout", "embedding_dropout",
            to_hf=lambda value, values: values["network.dropout"] if value is None else value),
    ConfigSetting("network.norm.epsilon", "norm_eps"),
    ConfigSetting("network.initialization.spread", "initializer_range"),
)
HOLDS = {
    "attention_bias": False, "mlp_bias": False, "norm_bias": False, "decoder_bias": True, "classifier_bias": False,
    "classifier_activation": lambda told: told["hidden_activation"], "rope_parameters": rope_parameters,
}
FIXED = {
    **{key: value for key, value in DEFAULT_ARCHITECTURE.items() if key != "network.attention.windows"},
    "network.norm.place": "pre", "network.norm.bias": False, "network.norm.weight": True,
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
ANSWER = {"transform.dense": "head.dense", "transform.norm": "head.norm", "output": "classifier"}
UNBIASED = frozenset({"transform.dense", "transform.norm"})


def head(name: str) -> tuple[TensorKey, ...]:
    return (TensorKey.of("heads.vocabulary.dense.weight", f"{name}.dense.weight"),
            TensorKey.of("heads.vocabulary.norm.weight", f"{name}.norm.weight"),
            TensorKey.of("heads.vocabulary.bias", "decoder.bias"))


TEXT = HFTaskClass("ModernBertForSequenceClassification", SentenceHead(1, "first", "gelu", norm=True), ANSWER,
                 unbiased=UNBIASED, dropout="classifier_dropout", pooling="classifier_pooling")

MODERNBERT = Family(
    model_type="modernbert",
    recipe="modernbert",
    visibility=frozenset({"full"}),
    prefix="model.",
    settings=SETTINGS,
    upgrade_config=upgrade_config,
    derived_values={"network.attention.windows": uniform_windows},
    required_config=HOLDS,
    required_recipe=FIXED,
    body_keys=(*BODY, TensorKey.of(BLOCK + "attention.input.weight", LAYER + "attn.Wqkv.weight")),
    head_keys={"vocabulary": head("head")},
    head_specs={"vocabulary": LMHeadSpec(transform=True)},
    architectures={frozenset({"vocabulary"}): "ModernBertForMaskedLM", frozenset(): "ModernBertModel"},
    task_classes={
        "classify": TEXT,
        "choice": replace(TEXT, name="ModernBertForMultipleChoice"),
        "tag": HFTaskClass("ModernBertForTokenClassification", ClassHead(1, transform="gelu"), ANSWER,
                           unbiased=UNBIASED,
                         dropout="classifier_dropout"),
        "qa": HFTaskClass("ModernBertForQuestionAnswering", SpanHead(transform="gelu"), ANSWER, unbiased=UNBIASED,
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
    head_keys={"vocabulary": head("lm_head")},
    architectures={frozenset({"vocabulary"}): "ModernBertDecoderForCausalLM", frozenset(): "ModernBertDecoderModel"},
    task_classes={"classify": HFTaskClass("ModernBertDecoderForSequenceClassification",
                                 SentenceHead(1, "last", "gelu", norm=True, bias=False), ANSWER, unbiased=UNBIASED,
                                 dropout="classifier_dropout")},
    missing_token_id=0,  # its configuration takes nothing but numbers
)


@register("family", "modernbert")
def family() -> Family:
    return MODERNBERT


@register("family", "modernbert-decoder")
def decoder_family() -> Family:
    return MODERNBERT_DECODER
