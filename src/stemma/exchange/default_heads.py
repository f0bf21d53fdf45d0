"""The default heads of a task: those of the family's Hugging Face class, or a head that suits the attention mask.

An encoder-decoder is used as in BART (arXiv:1910.13461, section 3): both stacks get the text, the decoder shifted by
one position, and the head reads the decoder's last hidden state, or all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from stemma import registry
from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import UserError
from stemma.exchange.hf_task_class import HFTaskClass, hf_kind
from stemma.exchange.save import matching_body
from stemma.model import Model
from stemma.network.concat_pool_head import ConcatPoolHead
from stemma.network.heads import ClassHead, HeadSpec, Pooler
from stemma.network.network import POOLER
from stemma.network.task_heads import PoolingPosition, SentenceHead
from stemma.schema.corpus import parse_template

MIN_DROPOUT = 0.1  # before the output layer, even if the network was pre-trained without dropout


def default_stack(model: Model, kind: str, stack: str | None = None) -> str:
    """The stack that the head of a task reads: `stack` if given, otherwise that of the family's class."""
    if not model.is_encoder_decoder:
        if stack == DECODER:
            raise UserError(f"finetuning.stack is {stack}, and this {model.recipe.title} model has no decoder; leave "
                            "it out.")
        return ENCODER
    task = _hf_task_class(model, kind)
    return stack or (DECODER if task is None else task.stack)


def default_task_heads(model: Model, kind: str, classes: int, name: str,
                       stack: str | None = None) -> dict[str, HeadSpec]:
    """The heads for a task of this kind; the one called `name` computes the output."""
    network_dropout = model.recipe.settings.network.dropout
    stack = default_stack(model, kind) if stack is None else stack
    task = _hf_task_class(model, kind)
    if task is not None and task.stack == stack:
        return task.heads(name, classes, max(task.head.dropout, network_dropout))
    dropout = max(MIN_DROPOUT, network_dropout)
    kind_heads: dict[str, HeadSpec] | None = registry.get("task", kind).build(kind).heads(name, classes, dropout)
    if kind_heads is not None:
        return kind_heads
    if stack == DECODER:
        return {name: SentenceHead(classes, "last", "tanh", dropout, early=True)}
    if model.is_encoder_decoder or task is not None:  # the encoder of an encoder-decoder has no [CLS] position
        return {name: SentenceHead(classes, "mean", None, dropout)}
    if model.visibility.causal:  # only the last position attends to the whole text
        return {name: SentenceHead(classes, "last", None, dropout, bias=False)}
    if parse_template(model.recipe.settings.corpus.single)[-1].name == "start":  # [CLS] is last (XLNet)
        return {name: SentenceHead(classes, "last", "tanh", dropout)}
    return {POOLER: Pooler(), name: ClassHead(classes, dropout)}


def with_pooling(heads: Mapping[str, HeadSpec], name: str,
                 pooling: PoolingPosition | Literal["concat"] | None) -> Mapping[str, HeadSpec]:
    """The heads with another pooling of the text; None changes nothing. Heads for every position have no pooling."""
    spec = heads[name]
    if pooling == "concat":
        return {name: ConcatPoolHead(spec.classes)} if isinstance(spec, (SentenceHead, ClassHead)) else heads
    if pooling is not None and isinstance(spec, SentenceHead):
        return {**heads, name: replace(spec, place=pooling)}
    if pooling is not None and isinstance(spec, ClassHead) and POOLER in heads:  # the pooler reads the first position
        return {name: SentenceHead(spec.classes, pooling, None, spec.dropout)}
    return heads


def _hf_task_class(model: Model, kind: str) -> HFTaskClass | None:
    """The Hugging Face class for this kind of task and this body."""
    family = matching_body(model)
    return None if family is None else family.task_classes.get(hf_kind(kind))
