"""One answer for a whole input: a class (classify, pair), a number (regress), the right option (choice), or the best
candidate of a query (rank).

Options and candidates are rows of their own that compete: each gets one number, and the right one should get the
highest (options as in GPT, see `gpt_style.py`; ranking as arXiv:1901.11504, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.features import FeatureHead
from stemma.network.heads import ClassHead, HeadSpec
from stemma.network.network import Network
from stemma.network.streams import Hidden
from stemma.network.task_heads import SentenceHead
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import ChoiceExample, Example, TextExample
from stemma.tasks.layout import Row, RowLayout
from stemma.tasks.learner import Item, Learner


class SentenceLearner(Learner):
    """Reads one vector of each row, through the head that the model's family has for it."""

    orders = 1  # 2: two texts are read in both, and what was read is summed

    def __init__(self, name: str, layout: RowLayout, specs: dict[str, HeadSpec], weight: float = 1.0):
        super().__init__(name, layout, weight)
        self._specs = specs  # what `exchange` says such an answer is made of; the one called by our name answers

    def read(self, examples: Sequence[TextExample]) -> Iterator[tuple[int, tuple[Row, ...], TextExample]]:
        """Each example with its number and its rows."""
        ways = [example.texts[::step] for example in examples for step in (1, -1)[:self.orders]]
        rows = iter(self.layout.rows(ways))
        for number, example in enumerate(examples):
            yield number, tuple(next(rows) for _ in range(self.orders)), example

    def heads(self) -> dict[str, HeadSpec]:
        return self._specs

    def wanted(self, lengths: Tensor, length: int) -> Tensor | None:
        spec = self._specs[self.name]
        first = torch.arange(len(lengths)) * length
        place = spec.place if isinstance(spec, SentenceHead) else "mean" if isinstance(spec, FeatureHead) else "first"
        return {"first": first, "last": first + lengths - 1, "mean": None}[place]

    def logits(self, network: Network, hidden: Hidden, batch: Batch) -> Tensor:
        """(rows, answers)"""
        head, text, spec = network.head(self.name), hidden[self.stack], self._specs[self.name]
        if isinstance(spec, FeatureHead):
            return head(hidden.all_layers(self.stack), batch.lengths)
        if isinstance(spec, ClassHead):
            return head(network.pooled(text)).float()
        return head(text, batch.lengths).float()

    def summed(self, network: Network, hidden: Hidden, batch: Batch) -> Tensor:
        """(examples, answers). A head without a layer of its own makes the same of the sum of its rows' vectors."""
        logits = self.logits(network, hidden, batch)
        return logits if self.orders == 1 else logits.view(-1, self.orders, logits.shape[-1]).sum(1)


class ClassLearner(SentenceLearner):
    """`labels` are the classes in order; `balance` weighs the loss of each, where some are rare."""

    def __init__(self, name: str, layout: RowLayout, specs: dict[str, HeadSpec], labels: Sequence[str],
                 counts: Sequence[int], balance: Sequence[float] | None = None, weight: float = 1.0):
        super().__init__(name, layout, specs, weight)
        self.labels = list(labels)
        self._number = {label: number for number, label in enumerate(labels)}
        self._prior = np.log((np.array(counts) + 1) / (sum(counts) + len(counts)))
        self._balance = None if balance is None else torch.tensor(balance)

    def items(self, examples: Sequence[Example]) -> list[Item]:
        told = [example for example in examples if isinstance(example, TextExample)]
        return [Item(rows, None if example.label is None else self._number[str(example.label)], number)
                for number, rows, example in self.read(told)]

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        labels = torch.tensor([-1 if item.answer is None else item.answer for item in items])
        known = torch.nonzero(labels >= 0)[:, 0]
        total = len(known) if self._balance is None else float(self._balance[labels[known]].sum())
        return {}, {self.name: Target(known * self.orders, labels[known], max(total, 1e-9))}

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[self.name]
        logits = self.summed(network, hidden, batch)[target.index // self.orders]
        weight = None if self._balance is None else self._balance.to(logits)
        return {self.name: functional.cross_entropy(logits, target.labels, weight, reduction="sum") / target.total}

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        return list(self.summed(network, hidden, batch).cpu().numpy())

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        return [{"label": self.labels[int(scores.argmax())],
                 "scores": dict(zip(self.labels, softmax(scores).tolist(), strict=True))} for scores in answers]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        labels = batch.labels[self.name].labels.cpu().numpy()
        weight = np.ones(len(labels)) if self._balance is None else self._balance.numpy()[labels]
        return {self.name: float(-(self._prior[labels] * weight).sum()) / batch.labels[self.name].total}


class NumberLearner(SentenceLearner):
    """Regression: the squared distance to the number. `spread` is what the training set's numbers lie around their mean
    by."""

    def __init__(self, name: str, layout: RowLayout, specs: dict[str, HeadSpec], spread: float, weight: float = 1.0):
        super().__init__(name, layout, specs, weight)
        self._spread = spread

    def items(self, examples: Sequence[Example]) -> list[Item]:
        told = [example for example in examples if isinstance(example, TextExample)]
        return [Item(rows, None if example.label is None else float(example.label), number)
                for number, rows, example in self.read(told)]

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        known = [number for number, item in enumerate(items) if item.answer is not None]
        labels = torch.tensor([items[number].answer for number in known], dtype=torch.float32)
        index = torch.tensor(known, dtype=torch.int64) * self.orders
        return {}, {self.name: Target(index, labels, max(1.0, len(known)))}

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[self.name]
        guessed = self.summed(network, hidden, batch)[target.index // self.orders, 0]
        return {self.name: functional.mse_loss(guessed, target.labels, reduction="sum") / target.total}

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        return list(self.summed(network, hidden, batch).cpu().numpy())

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        return [{"score": float(number[0])} for number in answers]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.labels[self.name]
        return {self.name: self._spread**2 * len(target.index) / target.total}  # who always says the mean


class OptionLearner(SentenceLearner):
    """Choice: every option is a row, context and question before it, and the rows of a question compete. The question
    goes with the option; or, `asked_first`, with the context (GPT)."""

    asked_first = False

    def items(self, examples: Sequence[Example]) -> list[Item]:
        told = [example for example in examples if isinstance(example, ChoiceExample)]
        pairs = [self.pair(example, option) for example in told for option in example.options]
        rows = iter(self.layout.rows(pairs))
        return [Item(tuple(next(rows) for _ in example.options), example.label, number)
                for number, example in enumerate(told)]

    def pair(self, example: ChoiceExample, option: str) -> tuple[str, str]:
        if self.asked_first:
            return f"{example.context} {example.question}".strip(), option
        return (example.context or example.question,
                f"{example.question} {option}".strip() if example.context else option)

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        options = len(items[0].rows)
        known = [number for number, item in enumerate(items) if item.answer is not None]
        index = torch.tensor(known, dtype=torch.int64) * options  # the first row of each question
        labels = torch.tensor([items[number].answer for number in known], dtype=torch.int64)
        return {}, {self.name: Target(index, labels, max(1.0, len(known)))}

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[self.name]
        scores = self.logits(network, hidden, batch).view(-1, batch.together)  # (questions, options)
        return {self.name: functional.cross_entropy(scores[target.index // batch.together], target.labels,
                                                    reduction="sum") / target.total}

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        return list(self.logits(network, hidden, batch).view(-1, batch.together).cpu().numpy())

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        return [{"label": int(scores.argmax()), "scores": softmax(scores).tolist()} for scores in answers]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.labels[self.name]
        return {self.name: float(np.log(batch.together)) * len(target.index) / target.total}


class RankLearner(SentenceLearner):
    """Candidates of a query: each one gets a number; while learning, a good one competes with `others` of the same
    query that are not."""

    def __init__(self, name: str, layout: RowLayout, specs: dict[str, HeadSpec], others: int = 3, seed: int = 0,
                 weight: float = 1.0):
        super().__init__(name, layout, specs, weight)
        self._others, self._seed = others, seed

    def items(self, examples: Sequence[Example]) -> list[Item]:
        """One candidate each."""
        told = [example for example in examples if isinstance(example, TextExample)]
        rows = self.layout.rows([example.texts for example in told])
        return [Item((row,), None if example.label is None else int(float(example.label) > 0), number)
                for number, (row, example) in enumerate(zip(rows, told, strict=True))]

    def lessons(self, examples: Sequence[Example]) -> list[Item]:
        """For each good candidate, it first and then as many others of its query as `others` says; where there are
        fewer, some come twice. Queries without either are left out: they teach no order."""
        single = self.items(examples)
        groups: dict[str, tuple[list[int], list[int]]] = {}
        for number, example in enumerate(examples):
            assert isinstance(example, TextExample)
            good, bad = groups.setdefault(example.group or example.texts[0], ([], []))
            (good if single[number].answer else bad).append(number)
        rng = np.random.default_rng([self._seed, 11])
        made = []
        for good, bad in groups.values():
            for best in good if bad else []:
                drawn = rng.choice(bad, self._others, replace=len(bad) < self._others)
                rows = tuple(single[number].rows[0] for number in (best, *drawn))
                made.append(Item(rows, 0, best))
        return made

    def targets(self, items: Sequence[Item], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        together = len(items[0].rows)
        known = torch.arange(len(items)) * together if together > 1 else torch.zeros(0, dtype=torch.int64)
        return {}, {self.name: Target(known, torch.zeros_like(known), max(1.0, len(known)))}

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[self.name]
        scores = self.logits(network, hidden, batch).view(-1, batch.together)
        right = functional.log_softmax(scores, dim=-1)[:, 0]  # the good one stands first
        return {self.name: -right.sum() / target.total}

    def answers(self, network: Network, hidden: Hidden, batch: Batch) -> list[np.ndarray]:
        return list(self.logits(network, hidden, batch).cpu().numpy())

    def decide(self, items: Sequence[Item], answers: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Any]:
        return [{"score": float(number[0])} for number in answers]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.labels[self.name]
        return {self.name: float(np.log(batch.together)) * len(target.index) / target.total}


def softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    chances: np.ndarray = shifted / shifted.sum(-1, keepdims=True)
    return chances
