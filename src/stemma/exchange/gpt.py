"""GPT (2018), and what it has in common with GPT-2, as Hugging Face lays them out.

Their matrices are (in, out): a convolution over one place, as in the authors' code.
"""

from __future__ import annotations

from stemma.exchange.keys import TURNED, Key, linear
from stemma.exchange.table import ORDINARY, Family, Setting
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import TokenHead
from stemma.network.task_heads import SentenceHead
from stemma.registry import register

BLOCK, LAYER = "encoder.blocks.{i}.", "h.{i}."

# "gelu" is the tanh form here, whatever it means in other families.
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}

SIZES = (
    Setting("tokenizer.vocab_size", "vocab_size"),
    Setting("network.layers", "n_layer"),
    Setting("network.width", "n_embd"),
    Setting("network.heads", "n_head"),
    Setting("network.position.maximum", "n_positions"),
    Setting("network.dropout", "resid_pdrop"),
    Setting("network.attention.dropout", "attn_pdrop"),
    Setting("network.norm.epsilon", "layer_norm_epsilon"),
    Setting("network.initialization.spread", "initializer_range"),
)

FIXED = {
    **ORDINARY, "network.attention.head_width": None, "network.position.kind": "learned",
    "network.position.offset": 0, "network.position.counts": "places", "network.embedding.scale": False,
}

BLOCKS = (
    *linear(BLOCK + "attention.input", LAYER + "attn.c_attn", form=TURNED),
    *linear(BLOCK + "attention.output", LAYER + "attn.c_proj", form=TURNED),
    *linear(BLOCK + "attention_norm", LAYER + "ln_1"),
    *linear(BLOCK + "feedforward.input", LAYER + "mlp.c_fc", form=TURNED),
    *linear(BLOCK + "feedforward.output", LAYER + "mlp.c_proj", form=TURNED),
    *linear(BLOCK + "feedforward_norm", LAYER + "ln_2"),
)

ALIASES = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
           "max_position_embeddings": "n_positions"}

BUFFERS = (".attn.bias", ".attn.masked_bias")  # the triangle of who sees whom, once stored beside the weights

LAST = SentenceHead(1, "last", None, bias=False)  # where the whole text has been read

GPT = Family(
    model_type="openai-gpt",
    recipe="gpt",
    sees=frozenset({"causal"}),
    prefix="transformer.",
    settings=(*SIZES, Setting("network.activation", "afn", ACTIVATIONS)),
    follows={"network.feedforward": lambda values: 4 * values["network.width"]},
    repeats={"embd_pdrop": "resid_pdrop", "n_ctx": "n_positions"},
    holds={},
    fixed={**FIXED, "network.norm.place": "post"},
    body=(
        Key.of("embedding.tokens.weight", "tokens_embed.weight"),
        Key.of("embedding.position.table.weight", "positions_embed.weight"),
        *BLOCKS,
    ),
    heads={"vocabulary": ()},
    specs={"vocabulary": TokenHead(transform=False, bias=False)},
    classes={frozenset({"vocabulary"}): "OpenAIGPTLMHeadModel", frozenset(): "OpenAIGPTModel"},
    tasks={"classify": TaskClass("OpenAIGPTForSequenceClassification", LAST, {"output": "score"})},
    aliases=ALIASES,
    copies={"lm_head.weight": "tokens_embed.weight"},
    ignored=BUFFERS,
)


@register("family", "openai-gpt")
def family() -> Family:
    return GPT
