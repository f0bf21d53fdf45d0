"""How a model answers a task: by the heads that its family has for it, which are those of the authors and of Hugging
Face's classes. Where there is no such class, by what the body's way of reading suggests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stemma.exchange.model import Model
from stemma.exchange.save import body_of
from stemma.exchange.task_class import SERVED
from stemma.network.heads import ClassHead, HeadSpec, Pooler
from stemma.network.network import POOLER
from stemma.network.task_heads import Place, SentenceHead, SpanHead
from stemma.schema.corpus import parse_template

LEAST_DROPOUT = 0.1  # before the answer, also where the network was pre-trained without any


def answer_heads(model: Model, kind: str, classes: int, name: str) -> dict[str, HeadSpec]:
    """The heads for a task of this kind, of which the one called `name` answers."""
    usual = model.recipe.settings.network.dropout
    family = body_of(model)
    task = None if family is None else family.tasks.get(SERVED.get(kind, kind))
    if task is not None:
        return task.heads(name, classes, max(task.head.dropout, usual))
    dropout = max(LEAST_DROPOUT, usual)
    if kind == "tag":
        return {name: ClassHead(classes, dropout)}
    if kind == "qa":
        return {name: SpanHead()}
    if model.sees.causal:  # who reads from left to right knows most at the last place
        return {name: SentenceHead(classes, "last", None, dropout, bias=False)}
    if parse_template(model.recipe.settings.corpus.single)[-1].name == "start":  # which has read the whole text there
        return {name: SentenceHead(classes, "last", "tanh", dropout)}
    return {POOLER: Pooler(), name: ClassHead(classes, dropout)}


def with_pooling(heads: Mapping[str, HeadSpec], name: str, pooling: Place | None) -> Mapping[str, HeadSpec]:
    """The heads of a task whose texts are judged by another hidden state, or by the mean of all; None changes nothing.
    A head that judges every position has nothing to pool."""
    spec = heads[name]
    if pooling is not None and isinstance(spec, SentenceHead):
        return {**heads, name: replace(spec, place=pooling)}
    if pooling is not None and isinstance(spec, ClassHead) and POOLER in heads:  # which reads the first position only
        return {name: SentenceHead(spec.classes, pooling, None, spec.dropout)}
    return heads
