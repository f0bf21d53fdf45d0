"""GPT-2 (2019) as Hugging Face lays it out: the first GPT's blocks with their norms in front, and one norm more."""

from __future__ import annotations

from stemma.exchange.gpt import ALIASES, BLOCKS, BUFFERS, FIXED, LAST, SIZES
from stemma.exchange.keys import Key, linear
from stemma.exchange.table import ACTIVATIONS, Family, Setting
from stemma.exchange.task_class import TaskClass
from stemma.network.heads import ClassHead, TokenHead
from stemma.network.task_heads import SpanHead
from stemma.registry import register

GPT2 = Family(
    model_type="gpt2",
    recipe="gpt2",
    sees=frozenset({"causal"}),
    prefix="transformer.",
    settings=(
        *SIZES,
        Setting("network.feedforward", "n_inner", default=lambda config: 4 * config["n_embd"]),
        Setting("network.activation", "activation_function", ACTIVATIONS),
    ),
    repeats={"embd_pdrop": "resid_pdrop", "n_ctx": "n_positions"},
    holds={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    fixed={**FIXED, "network.norm.place": "pre"},
    body=(
        Key.of("embedding.tokens.weight", "wte.weight"),
        Key.of("embedding.position.table.weight", "wpe.weight"),
        *BLOCKS,
        *linear("encoder.final_norm", "ln_f"),
    ),
    heads={"vocabulary": ()},
    specs={"vocabulary": TokenHead(transform=False, bias=False)},
    classes={frozenset({"vocabulary"}): "GPT2LMHeadModel", frozenset(): "GPT2Model"},
    tasks={
        "classify": TaskClass("GPT2ForSequenceClassification", LAST, {"output": "score"}),
        "tag": TaskClass("GPT2ForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"},
                         dropout="classifier_dropout", otherwise=0.1),
        "qa": TaskClass("GPT2ForQuestionAnswering", SpanHead(), {"output": "qa_outputs"}),
    },
    aliases=ALIASES,
    copies={"lm_head.weight": "wte.weight"},
    ignored=BUFFERS,
)


@register("family", "gpt2")
def family() -> Family:
    return GPT2
