"""ModernBERT (arXiv:2412.13663) and its decoder (Ettin, arXiv:2507.11412) as Hugging Face lays them out.

Which layers see everything is a list of names over there (`layer_types`), and how far the others see is twice our
number (`local_attention`). Releases before transformers 5 say the same by other keys, which are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stemma.exchange.keys import Key
from stemma.exchange.table import ACTIVATIONS, ORDINARY, Config, Family, Setting, Values
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import ClassHead, TokenHead
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "layers.{i}."
GLOBAL, LOCAL = "full_attention", "sliding_attention"
BASES = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
USUAL_WINDOW, USUAL_TURN = 128, 3


def current(config: Config) -> Config:
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
    layers, turn = config.get("num_hidden_layers"), config.get("global_attn_every_n_layers", USUAL_TURN)
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
    return 2 * max(value or [0]) or USUAL_WINDOW


def expressible(values: Values) -> list[int]:
    """The windows as stated, if each layer has the same one over there, where all windows are of one size."""
    stated = values["network.attention.windows"]
    stated = stated if isinstance(stated, list) else []
    kinds, size = layer_types(stated, values), local_attention(stated, values) // 2
    alike = all(stated[number % len(stated)] == (size if kind == LOCAL else 0)
                for number, kind in enumerate(kinds) if stated)
    return stated if alike else windows(None, {"layer_types": kinds, "local_attention": 2 * size})


SETTINGS = (
    Setting("tokenizer.vocab_size", "vocab_size"),
    Setting("network.layers", "num_hidden_layers"),
    Setting("network.width", "hidden_size"),
    Setting("network.heads", "num_attention_heads"),
    Setting("network.feedforward", "intermediate_size"),
    Setting("network.activation", "hidden_activation", ACTIVATIONS),
    Setting("network.position.maximum", "max_position_embeddings"),
    Setting("network.position.base", "global_rope_theta"),
    Setting("network.position.local_base", "local_rope_theta",
            writes=lambda value, values: values["network.position.base"] if value is None else value),
    Setting("network.attention.windows", "local_attention", reads=windows, writes=local_attention,
            only=lambda told: max(2, told["local_attention"])),
    Setting("network.attention.windows", "layer_types", reads=windows, writes=layer_types,
            default=lambda told: current(told)["layer_types"]),
    Setting("network.attention.dropout", "attention_dropout"),
    Setting("network.attention.output_dropout", "attention_dropout"),  # one number for both over there
    Setting("network.inner_dropout", "mlp_dropout"),
    Setting("network.embedding.dropout", "embedding_dropout",
            writes=lambda value, values: values["network.dropout"] if value is None else value),
    Setting("network.norm.epsilon", "norm_eps"),
    Setting("network.initialization.spread", "initializer_range"),
)
HOLDS = {
    "attention_bias": False, "mlp_bias": False, "norm_bias": False, "decoder_bias": True, "classifier_bias": False,
    "classifier_activation": lambda told: told["hidden_activation"], "rope_parameters": rope_parameters,
}
FIXED = {
    **{key: value for key, value in ORDINARY.items() if key != "network.attention.windows"},
    "network.norm.place": "pre", "network.norm.bias": False, "network.norm.weight": True,
    "network.norm.first": False, "network.bias": False, "network.attention.bias": False, "network.transition": "gated",
    "network.attention.head_width": None, "network.position.kind": "rotary", "network.embedding.scale": False,
    "network.embedding.norm": True, "network.embedding.segments": 0,
}
BODY = (
    Key.of("embedding.tokens.weight", "embeddings.tok_embeddings.weight"),
    Key.of("embedding.norm.weight", "embeddings.norm.weight"),
    Key.of(BLOCK + "attention.output.weight", LAYER + "attn.Wo.weight"),
    Key.of(BLOCK + "attention_norm.weight", LAYER + "attn_norm.weight",
           given="encoder.blocks.1.attention_norm.weight"),  # the first layer has none
    Key.of(BLOCK + "feedforward.input.weight", LAYER + "mlp.Wi.weight"),
    Key.of(BLOCK + "feedforward.output.weight", LAYER + "mlp.Wo.weight"),
    Key.of(BLOCK + "feedforward_norm.weight", LAYER + "mlp_norm.weight"),
    Key.of("encoder.final_norm.weight", "final_norm.weight"),
)
ANSWER = {"transform.dense": "head.dense", "transform.norm": "head.norm", "output": "classifier"}
UNBIASED = frozenset({"transform.dense", "transform.norm"})


def head(name: str) -> tuple[Key, ...]:
    return (Key.of("heads.vocabulary.dense.weight", f"{name}.dense.weight"),
            Key.of("heads.vocabulary.norm.weight", f"{name}.norm.weight"),
            Key.of("heads.vocabulary.bias", "decoder.bias"))


TEXT = TaskClass("ModernBertForSequenceClassification", SentenceHead(1, "first", "gelu", norm=True), ANSWER,
                 unbiased=UNBIASED, dropout="classifier_dropout", pooling="classifier_pooling")

MODERNBERT = Family(
    model_type="modernbert",
    recipe="modernbert",
    sees=frozenset({"full"}),
    prefix="model.",
    settings=SETTINGS,
    current=current,
    follows={"network.attention.windows": expressible},
    holds=HOLDS,
    fixed=FIXED,
    body=(*BODY, Key.of(BLOCK + "attention.input.weight", LAYER + "attn.Wqkv.weight")),
    heads={"vocabulary": head("head")},
    specs={"vocabulary": TokenHead(transform=True)},
    classes={frozenset({"vocabulary"}): "ModernBertForMaskedLM", frozenset(): "ModernBertModel"},
    tasks={
        "classify": TEXT,
        "choice": replace(TEXT, name="ModernBertForMultipleChoice"),
        "tag": TaskClass("ModernBertForTokenClassification", ClassHead(1, transform="gelu"), ANSWER, unbiased=UNBIASED,
                         dropout="classifier_dropout"),
        "qa": TaskClass("ModernBertForQuestionAnswering", SpanHead(transform="gelu"), ANSWER, unbiased=UNBIASED,
                        dropout="classifier_dropout"),
    },
    special={"pad_token_id": ("padding",), "cls_token_id": ("start", "begin"), "sep_token_id": ("separator", "end"),
             "bos_token_id": ("begin", "start", "end"), "eos_token_id": ("end", "separator")},
    copies={"decoder.weight": "embeddings.tok_embeddings.weight"},
)

MODERNBERT_DECODER = replace(
    MODERNBERT,
    model_type="modernbert-decoder",
    recipe="ettin-decoder",
    sees=frozenset({"causal"}),
    body=(*BODY, Key.of(BLOCK + "attention.input.weight", *(f"{LAYER}attn.{part}_proj.weight" for part in "qkv"))),
    heads={"vocabulary": head("lm_head")},
    classes={frozenset({"vocabulary"}): "ModernBertDecoderForCausalLM", frozenset(): "ModernBertDecoderModel"},
    tasks={"classify": TaskClass("ModernBertDecoderForSequenceClassification",
                                 SentenceHead(1, "last", "gelu", norm=True, bias=False), ANSWER, unbiased=UNBIASED,
                                 dropout="classifier_dropout")},
    missing=0,  # its configuration takes nothing but numbers
)


@register("family", "modernbert")
def family() -> Family:
    return MODERNBERT


@register("family", "modernbert-decoder")
def decoder_family() -> Family:
    return MODERNBERT_DECODER
