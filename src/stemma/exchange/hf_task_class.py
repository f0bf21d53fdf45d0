"""A Hugging Face class for one kind of task, such as BertForSequenceClassification: its head and its tensor names."""

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
REGRESSION_LABEL = "score"  # Hugging Face gives the single output of a regression a label too


def hf_kind(kind: str) -> str:
    """The kind of task whose Hugging Face class also serves this one."""
    other: str | None = registry.get("task", kind).build(kind).hf_kind
    return kind if other is None else other


@dataclass(frozen=True)
class HFTaskClass:
    name: str
    head: ClassHead | SentenceHead | SpanHead  # with any number of classes
    layers: Mapping[str, str]  # layer of the head -> its Hugging Face name
    unbiased: frozenset[str] = frozenset()  # layers without a bias
    uses_pooler: bool = False
    dropout: str | None = None  # the config.json key of the head's dropout, if there is one
    default_dropout: str | float = 0.0  # if config.json does not state it: another key, or a value
    pooling: str | None = None  # the config.json key of the pooling, if it can be chosen
    required_config: Mapping[str, Any] = field(default_factory=dict)  # values that config.json must have, or leave out
    stack: str = ENCODER  # the stack that the head reads; an encoder-decoder's class that reads the encoder has no
    #                       decoder
    prefix: str | None = None  # the body's prefix in this class, if it is not the family's

    def heads(self, name: str, classes: int, dropout: float) -> dict[str, HeadSpec]:
        """The heads of a task with this many classes; the one called `name` computes the output."""
        head: HeadSpec = self.head
        if not isinstance(self.head, SpanHead):
            head = replace(self.head, classes=classes, dropout=dropout)
        elif self.dropout is not None:
            head = replace(self.head, dropout=dropout)
        return {POOLER: Pooler(), name: head} if self.uses_pooler else {name: head}

    def matches(self, name: str, heads: Mapping[str, HeadSpec]) -> bool:
        """Whether these are the heads of this class, with any number of classes and any dropout."""
        spec = heads[name]
        if isinstance(spec, SpanHead):
            return heads == self.heads(name, 0, spec.dropout)
        if not isinstance(spec, ClassHead | SentenceHead):
            return False
        expected = self.heads(name, spec.classes, spec.dropout)
        if self.pooling is not None and isinstance(spec, SentenceHead) and spec.place in POOLINGS.values():
            expected[name] = replace(cast(SentenceHead, expected[name]), place=spec.place)
        return heads == expected

    def tensor_keys(self, name: str) -> tuple[TensorKey, ...]:
        biased = not isinstance(self.head, SentenceHead) or self.head.bias
        keys: list[TensorKey] = []
        for layer, hf_name in self.layers.items():
            pair = linear_keys(f"heads.{name}.{layer}", hf_name)
            keys += pair if biased and layer not in self.unbiased else pair[:1]
        return tuple(keys)

    def hf_config(self, task_config: TaskConfig) -> dict[str, Any]:
        """The config.json entries of a task, besides the class."""
        spec, config = task_config.heads[task_config.name], dict[str, Any]()
        if self.dropout is not None and isinstance(spec, ClassHead | SentenceHead | SpanHead):
            config[self.dropout] = spec.dropout
        if self.pooling is not None and isinstance(spec, SentenceHead):
            config[self.pooling] = next(hf_name for hf_name, pooling in POOLINGS.items() if pooling == spec.place)
        single = hf_kind(task_config.kind) == "classify"
        if single:
            config["problem_type"] = "single_label_classification" if task_config.labels else "regression"
        if labels := task_config.labels or ((REGRESSION_LABEL,) if single else ()):
            config["id2label"] = {str(index): label for index, label in enumerate(labels)}
            config["label2id"] = {label: index for index, label in enumerate(labels)}
        return config


def bert_task_classes(family: str, dropout: str = "classifier_dropout",
                      default_dropout: str | float = "hidden_dropout_prob") -> dict[str, HFTaskClass]:
    """BERT's task classes, which other families share: pooler for texts, hidden states for tokens."""
    head, layers = ClassHead(1, 0.1), {"output": "classifier"}
    tag = HFTaskClass(f"{family}ForTokenClassification", head, layers, dropout=dropout, default_dropout=default_dropout)
    return {
        "classify": replace(tag, name=f"{family}ForSequenceClassification", uses_pooler=True),
        "choice": replace(tag, name=f"{family}ForMultipleChoice", uses_pooler=True),
        "tag": tag,
        "qa": HFTaskClass(f"{family}ForQuestionAnswering", SpanHead(), {"output": "qa_outputs"}),
    }
