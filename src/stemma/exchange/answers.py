"""How a family answers a task: the heads that its authors, and Hugging Face's classes of it, put on top.

BERT reads the pooled first place; RoBERTa, ELECTRA and DistilBERT put a layer of their own there; a model that reads
from left to right knows most at the last place, and so does XLNet, whose start token comes last.
"""

from __future__ import annotations

from stemma.exchange.model import Model
from stemma.exchange.save import family_of
from stemma.network.heads import ClassHead, HeadSpec, Pooler
from stemma.network.network import POOLER
from stemma.network.task_heads import SentenceHead, SpanHead
from stemma.schema.corpus import parse_template

FAMILY_HEADS = {"roberta": SentenceHead(2, "first", "tanh", early=True),
                "electra": SentenceHead(2, "first", "gelu", early=True),
                "distilbert": SentenceHead(2, "first", "relu", dropout=0.2)}
LEAST_DROPOUT = 0.1  # before the answer, also where the network was pre-trained without any


def answer_heads(model: Model, kind: str, classes: int, name: str) -> dict[str, HeadSpec]:
    """The heads for a task of this kind, of which the one called `name` answers."""
    dropout = max(LEAST_DROPOUT, model.recipe.settings.network.dropout)
    if kind == "tag":
        return {name: ClassHead(classes, dropout)}
    if kind == "qa":
        return {name: SpanHead()}
    family = family_of(model)
    own = FAMILY_HEADS.get(family.model_type) if family is not None else None
    if own is not None:
        return {name: SentenceHead(classes, own.place, own.dense, own.dropout, own.early)}
    if model.sees.causal:
        return {name: SentenceHead(classes, "last", None, dropout, bias=False)}
    if parse_template(model.recipe.settings.corpus.single)[-1].name == "start":
        return {name: SentenceHead(classes, "last", "tanh", dropout)}
    return {POOLER: Pooler(), name: ClassHead(classes, dropout)}
