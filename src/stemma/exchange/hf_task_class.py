"""A class over there that answers one kind of task: what stands on top of the body, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from stemma import registry
from stemma.corpus.seq2seq_rows import ENCODER
from stemma.exchange.tensor_map import TensorKey, linear_keys
from stemma.network.heads import ClassHead, HeadSpec, Pooler
from stemma.network.network import POOLER
from stemma.network.task_heads import PoolingPosition, SentenceHead, SpanHead
from stemma.task_config import TaskConfig

POOLINGS: Mapping[str, PoolingPosition] = {"cls": "first", "mean": "mean"}
REGRESSION_LABEL = "score"  # what a single number is called where every answer has a label


def hf_kind(kind: str) -> str:
    """The kind of task whose class over there answers this one, too."""
    served: str | None = registry.get("task", kind).build(kind).hf_kind
    return kind if served is None else served


@dataclass(frozen=True)
class HFTaskClass:
    name: str
    head: ClassHead | SentenceHead | SpanHead  # how it answers; the number of classes is each task's own
    layers: Mapping[str, str]  # a layer of the head -> its name over there
    unbiased: frozenset[str] = frozenset()  # of these, the layers without a bias
    uses_pooler: bool = False  # whether it reads the pooler's vector
    dropout: str | None = None  # what config.json calls the dropout before the answer, where that has a name
    default_dropout: str | float = 0.0  # the same where nothing is said: the name of another setting, or its value
    pooling: str | None = None  # what config.json calls the place that a text is judged by, where that can be chosen
    required_config: Mapping[str, Any] = field(default_factory=dict)  # what config.json says, or leaves unsaid, of such
    #                                                                   a head
    stack: str = ENCODER  # whose output is read; the class of an encoder-decoder that reads the encoder has no decoder
    prefix: str | None = None  # the body's name inside this class, where it is not the family's

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        """The heads of a task of so many classes, of which the one called `name` answers."""
        head: HeadSpec = self.head
        if not isinstance(self.head, SpanHead):
            head = replace(self.head, classes=classes, dropout=dropout)
        elif self.dropout is not None:
            head = replace(self.head, dropout=dropout)
        return {POOLER: Pooler(), name: head} if self.uses_pooler else {name: head}

    def matches(self, name: str, heads: Mapping[str, HeadSpec]) -> bool:
        """Are these its heads, whatever the number of classes and the dropout?"""
        spec = heads[name]
        if isinstance(spec, SpanHead):
            return heads == self.heads(name, 0, spec.dropout)
        if not isinstance(spec, ClassHead | SentenceHead):
            return False
        own = self.heads(name, spec.classes, spec.dropout)
        if self.pooling is not None and isinstance(spec, SentenceHead) and spec.place in POOLINGS.values():
            own[name] = replace(cast(SentenceHead, own[name]), place=spec.place)
        return heads == own

    def tensor_keys(self, name: str) -> tuple[TensorKey, ...]:
        biased = not isinstance(self.head, SentenceHead) or self.head.bias
        keys: list[TensorKey] = []
        for ours, theirs in self.layers.items():
            pair = linear_keys(f"heads.{name}.{ours}", theirs)
            keys += pair if biased and ours not in self.unbiased else pair[:1]
        return tuple(keys)

    def hf_config(self, task_config: TaskConfig) -> dict[str, Any]:
        """What config.json says of a task, besides the class."""
        spec, told = task_config.heads[task_config.name], dict[str, Any]()
        if self.dropout is not None and isinstance(spec, ClassHead | SentenceHead | SpanHead):
            told[self.dropout] = spec.dropout
        if self.pooling is not None and isinstance(spec, SentenceHead):
            told[self.pooling] = next(theirs for theirs, place in POOLINGS.items() if place == spec.place)
        single = hf_kind(task_config.kind) == "classify"
        if single:
            told["problem_type"] = "single_label_classification" if task_config.labels else "regression"
        if labels := task_config.labels or ((REGRESSION_LABEL,) if single else ()):
            told["id2label"] = {str(number): label for number, label in enumerate(labels)}
            told["label2id"] = {label: number for number, label in enumerate(labels)}
        return told


def bert_task_classes(family: str, dropout: str = "classifier_dropout",
                   default_dropout: str | float = "hidden_dropout_prob") -> dict[str, HFTaskClass]:
    """BERT's classes, which others have too: texts are judged by the pooled vector, places each by its own."""
    head, answer = ClassHead(1, 0.1), {"output": "classifier"}
    tag = HFTaskClass(f"{family}ForTokenClassification", head, answer, dropout=dropout, default_dropout=default_dropout)
    return {
        "classify": replace(tag, name=f"{family}ForSequenceClassification", uses_pooler=True),
        "choice": replace(tag, name=f"{family}ForMultipleChoice", uses_pooler=True),
        "tag": tag,
        "qa": HFTaskClass(f"{family}ForQuestionAnswering", SpanHead(), {"output": "qa_outputs"}),
    }
