"""GPT-2 (2019) in the Hugging Face layout: GPT's blocks with pre-norm, and a final norm."""

from __future__ import annotations

from stemma.exchange.family import ACTIVATIONS, ConfigSetting, Family
from stemma.exchange.gpt import ALIASES, BLOCKS, BUFFERS, LAST_TOKEN_HEAD, REQUIRED_RECIPE, SIZES
from stemma.exchange.hf_task_class import HFTaskClass
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import ClassHead, LMHeadSpec
from stemma.network.task_heads import SpanHead
from stemma.registry import register

GPT2 = Family(
    model_type="gpt2",
    recipe="gpt2",
    visibility=frozenset({"causal"}),
    prefix="transformer.",
    settings=(
        *SIZES,
        ConfigSetting("network.feedforward", "n_inner", default=lambda config: 4 * config["n_embd"]),
        ConfigSetting("network.activation", "activation_function", ACTIVATIONS),
    ),
    duplicate_settings={"embd_pdrop": "resid_pdrop", "n_ctx": "n_positions"},
    required_config={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
                     "add_cross_attention": False},
    required_recipe={**REQUIRED_RECIPE, "network.norm.placement": "pre"},
    body_keys=(
        TensorKey.of("embedding.tokens.weight", "wte.weight"),
        TensorKey.of("embedding.position.table.weight", "wpe.weight"),
        *BLOCKS,
        *linear_keys("encoder.final_norm", "ln_f"),
    ),
    head_keys={"vocabulary": ()},
    head_specs={"vocabulary": LMHeadSpec(transform=False, bias=False)},
    architectures={frozenset({"vocabulary"}): "GPT2LMHeadModel", frozenset(): "GPT2Model"},
    task_classes={
        "classify": HFTaskClass("GPT2ForSequenceClassification", LAST_TOKEN_HEAD, {"output": "score"}),
        "tag": HFTaskClass("GPT2ForTokenClassification", ClassHead(1, 0.1), {"output": "classifier"},
                           dropout="classifier_dropout", default_dropout=0.1),
        "qa": HFTaskClass("GPT2ForQuestionAnswering", SpanHead(), {"output": "qa_outputs"}),
    },
    aliases=ALIASES,
    tied_head_tensors={"lm_head.weight": "wte.weight"},
    ignored_buffers=BUFFERS,
)


@register("family", "gpt2")
def family() -> Family:
    return GPT2
