"""How a model answers a task: by the heads that its family has for it, which are those of the authors and of Hugging
Face's classes. Where there is no such class, by what the body's way of reading suggests.

An encoder-decoder answers as BART does (arXiv:1910.13461, section 3): both stacks read the text, the decoder shifted
by one position, and the answer is read from the decoder's last hidden state, or from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stemma import registry
from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import UserError
from stemma.exchange.hf_task_class import HFTaskClass, hf_kind
from stemma.exchange.save import matching_body
from stemma.model import Model
from stemma.network.heads import ClassHead, HeadSpec, Pooler
from stemma.network.network import POOLER
from stemma.network.task_heads import PoolingPosition, SentenceHead
from stemma.schema.corpus import parse_template

MIN_DROPOUT = 0.1  # before the answer, also where the network was pre-trained without any


def default_stack(model: Model, kind: str, stack: str | None = None) -> str:
    """The stack that answers a task of this kind: the one that `asked` names, or that of the family's class."""
    if not model.is_encoder_decoder:
        if stack == DECODER:
            raise UserError(f"finetuning.stack is {stack}, and this {model.recipe.title} model has no decoder; leave "
                            "it out.")
        return ENCODER
    task = _hf_task_class(model, kind)
    return stack or (DECODER if task is None else task.stack)


def default_task_heads(model: Model, kind: str, classes: int, name: str, stack: str | None = None) -> dict[str,
                                                                                                           HeadSpec]:
    """The heads for a task of this kind, of which the one called `name` answers."""
    usual = model.recipe.settings.network.dropout
    stack = default_stack(model, kind) if stack is None else stack
    task = _hf_task_class(model, kind)
    if task is not None and task.stack == stack:
        return task.heads(name, classes, max(task.head.dropout, usual))
    dropout = max(MIN_DROPOUT, usual)
    own: dict[str, HeadSpec] | None = registry.get("task", kind).build(kind).heads(name, classes, dropout)
    if own is not None:
        return own
    if stack == DECODER:
        return {name: SentenceHead(classes, "last", "tanh", dropout, early=True)}
    if model.is_encoder_decoder or task is not None:  # the encoder of two stacks has no position of its own for the
    #                                                   whole text
        return {name: SentenceHead(classes, "mean", None, dropout)}
    if model.visibility.causal:  # who reads from left to right knows most at the last place
        return {name: SentenceHead(classes, "last", None, dropout, bias=False)}
    if parse_template(model.recipe.settings.corpus.single)[-1].name == "start":  # which has read the whole text there
        return {name: SentenceHead(classes, "last", "tanh", dropout)}
    return {POOLER: Pooler(), name: ClassHead(classes, dropout)}


def with_pooling(heads: Mapping[str, HeadSpec], name: str, pooling: PoolingPosition | None) -> Mapping[str, HeadSpec]:
    """The heads of a task whose texts are judged by another hidden state, or by the mean of all; None changes nothing.
    A head that judges every position has nothing to pool."""
    spec = heads[name]
    if pooling is not None and isinstance(spec, SentenceHead):
        return {**heads, name: replace(spec, place=pooling)}
    if pooling is not None and isinstance(spec, ClassHead) and POOLER in heads:  # which reads the first position only
        return {name: SentenceHead(spec.classes, pooling, None, spec.dropout)}
    return heads


def _hf_task_class(model: Model, kind: str) -> HFTaskClass | None:
    """The class over there that answers such a task with this body."""
    family = matching_body(model)
    return None if family is None else family.task_classes.get(hf_kind(kind))
