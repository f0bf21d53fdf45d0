"""GPT (2018) in the Hugging Face layout, and what GPT-2 shares with it.

Weight matrices are stored as (in, out): the authors' code has 1x1 convolutions for linear layers.
"""

from __future__ import annotations

from stemma.exchange.family import DEFAULT_ARCHITECTURE, ConfigSetting, Family
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TRANSPOSED, TensorKey, linear_keys
from stemma.network.heads import LMHeadSpec
from stemma.network.task_heads import SentenceHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "h.{i}."

# In this family "gelu" is the tanh approximation; in the others it is exact.
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}

SIZES = (
    ConfigSetting("tokenizer.vocab_size", "vocab_size"),
    ConfigSetting("network.layers", "n_layer"),
    ConfigSetting("network.width", "n_embd"),
    ConfigSetting("network.heads", "n_head"),
    ConfigSetting("network.position.maximum", "n_positions"),
    ConfigSetting("network.dropout", "resid_pdrop"),
    ConfigSetting("network.attention.dropout", "attn_pdrop"),
    ConfigSetting("network.norm.epsilon", "layer_norm_epsilon"),
    ConfigSetting("network.initialization.std", "initializer_range"),
)

REQUIRED_RECIPE = {
    **DEFAULT_ARCHITECTURE, "network.attention.head_width": None, "network.position.kind": "learned",
    "network.position.offset": 0, "network.position.numbering": "absolute", "network.embedding.scale": False,
}

BLOCKS = (
    *linear_keys(BLOCK + "attention.input", LAYER + "attn.c_attn", transform=TRANSPOSED),
    *linear_keys(BLOCK + "attention.output", LAYER + "attn.c_proj", transform=TRANSPOSED),
    *linear_keys(BLOCK + "attention_norm", LAYER + "ln_1"),
    *linear_keys(BLOCK + "feedforward.input", LAYER + "mlp.c_fc", transform=TRANSPOSED),
    *linear_keys(BLOCK + "feedforward.output", LAYER + "mlp.c_proj", transform=TRANSPOSED),
    *linear_keys(BLOCK + "feedforward_norm", LAYER + "ln_2"),
)

ALIASES = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
           "max_position_embeddings": "n_positions"}

BUFFERS = (".attn.bias", ".attn.masked_bias")  # causal masks, which early releases of transformers stored

LAST_TOKEN_HEAD = SentenceHead(1, "last", None, bias=False)  # only the last position attends to the whole text

GPT = Family(
    model_type="openai-gpt",
    recipe="gpt",
    visibility=frozenset({"causal"}),
    prefix="transformer.",
    settings=(*SIZES, ConfigSetting("network.activation", "afn", ACTIVATIONS)),
    derived_values={"network.feedforward": lambda values: 4 * values["network.width"]},
    duplicate_settings={"embd_pdrop": "resid_pdrop", "n_ctx": "n_positions"},
    required_config={},
    required_recipe={**REQUIRED_RECIPE, "network.norm.placement": "post"},
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "tokens_embed.weight"),
        TensorKey.of("embedding.position.table.weight", "positions_embed.weight"),
        *BLOCKS,
    ),
    head_keys={"vocabulary": ()},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=False)},
    architectures={frozenset({"vocabulary"}): "OpenAIGPTLMHeadModel", frozenset(): "OpenAIGPTModel"},
    task_classes={"classify": HFTaskClass("OpenAIGPTForSequenceClassification", LAST_TOKEN_HEAD, {"output": "score"})},
    aliases=ALIASES,
    tied_head_tensors={"lm_head.weight": "tokens_embed.weight"},
    ignored_buffers=BUFFERS,
)


@register("family", "openai-gpt")
def family() -> Family:
    return GPT
