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

from stemma.network.feature_head import FeatureHead
from stemma.network.heads import ClassHead, HeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.network.task_heads import SentenceHead
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import ChoiceExample, Example, TextExample
from stemma.tasks.objectives.base import EncodedExample, TaskObjective
from stemma.tasks.objectives.input_encoder import EncodedSequence, InputEncoder


class SequenceObjective(TaskObjective):
    """Reads one vector of each row, through the head that the model's family has for it."""

    text_orders = 1  # 2: two texts are read in both, and what was read is summed

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], weight: float = 1.0):
        super().__init__(name, input_encoder, weight)
        self._head_specs = head_specs  # what `exchange` says such an answer is made of; the one called by our name
        #                                answers

    def encode_texts(self, examples: Sequence[TextExample]) -> Iterator[tuple[int, tuple[EncodedSequence, ...],
                                                                              TextExample]]:
        """Each example with its number and its rows."""
        ways = [example.texts[::step] for example in examples for step in (1, -1)[:self.text_orders]]
        rows = iter(self.input_encoder.encode_examples(ways))
        for number, example in enumerate(examples):
            yield number, tuple(next(rows) for _ in range(self.text_orders)), example

    def heads(self) -> dict[str, HeadSpec]:
        return self._head_specs

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        spec = self._head_specs[self.name]
        first = torch.arange(len(lengths)) * length
        place = spec.place if isinstance(spec, SentenceHead) else "mean" if isinstance(spec, FeatureHead) else "first"
        return {"first": first, "last": first + lengths - 1, "mean": None}[place]

    def logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        """(rows, answers)"""
        head, text, spec = network.head(self.name), output[self.stack], self._head_specs[self.name]
        if isinstance(spec, FeatureHead):
            return head(output.all_hidden_states(self.stack), batch.lengths)
        if isinstance(spec, ClassHead):
            return head(network.pool(text)).float()
        return head(text, batch.lengths).float()

    def order_summed_logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        """(examples, answers). A head without a layer of its own makes the same of the sum of its rows' vectors."""
        logits = self.logits(network, output, batch)
        return logits if self.text_orders == 1 else logits.view(-1, self.text_orders, logits.shape[-1]).sum(1)


class ClassificationObjective(SequenceObjective):
    """`labels` are the classes in order; `balance` weighs the loss of each, where some are rare."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], labels: Sequence[str],
                 counts: Sequence[int], class_weights: Sequence[float] | None = None, weight: float = 1.0):
        super().__init__(name, input_encoder, head_specs, weight)
        self.labels = list(labels)
        self._label_index = {label: number for number, label in enumerate(labels)}
        self._prior = np.log((np.array(counts) + 1) / (sum(counts) + len(counts)))
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        told = [example for example in examples if isinstance(example, TextExample)]
        return [EncodedExample(rows, None if example.label is None else self._label_index[str(example.label)], number)
                for number, rows, example in self.encode_texts(told)]

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        labels = torch.tensor([-1 if item.target is None else item.target for item in items])
        known = torch.nonzero(labels >= 0)[:, 0]
        total = len(known) if self._class_weights is None else float(self._class_weights[labels[known]].sum())
        return {}, {self.name: Target(known * self.text_orders, labels[known], max(total, 1e-9))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        logits = self.order_summed_logits(network, output, batch)[target.index // self.text_orders]
        weight = None if self._class_weights is None else self._class_weights.to(logits)
        return {self.name: functional.cross_entropy(logits, target.labels, weight,
                                                    reduction="sum") / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self.order_summed_logits(network, output, batch).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return [{"label": self.labels[int(scores.argmax())],
                 "scores": dict(zip(self.labels, softmax(scores).tolist(), strict=True))} for scores in outputs]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        labels = batch.row_targets[self.name].labels.cpu().numpy()
        weight = np.ones(len(labels)) if self._class_weights is None else self._class_weights.numpy()[labels]
        return {self.name: float(-(self._prior[labels] * weight).sum()) / batch.row_targets[self.name].denominator}


class RegressionObjective(SequenceObjective):
    """Regression: the squared distance to the number. `spread` is what the training set's numbers lie around their mean
    by."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], label_std: float,
                 weight: float = 1.0):
        super().__init__(name, input_encoder, head_specs, weight)
        self._label_std = label_std

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        told = [example for example in examples if isinstance(example, TextExample)]
        return [EncodedExample(rows, None if example.label is None else float(example.label), number)
                for number, rows, example in self.encode_texts(told)]

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        known = [number for number, item in enumerate(items) if item.target is not None]
        labels = torch.tensor([items[number].target for number in known], dtype=torch.float32)
        index = torch.tensor(known, dtype=torch.int64) * self.text_orders
        return {}, {self.name: Target(index, labels, max(1.0, len(known)))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        guessed = self.order_summed_logits(network, output, batch)[target.index // self.text_orders, 0]
        return {self.name: functional.mse_loss(guessed, target.labels, reduction="sum") / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self.order_summed_logits(network, output, batch).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return [{"score": float(number[0])} for number in outputs]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.row_targets[self.name]
        return {self.name: self._label_std**2 * len(target.index) / target.denominator}  # who always says the mean


class MultipleChoiceObjective(SequenceObjective):
    """Choice: every option is a row, context and question before it, and the rows of a question compete. The question
    goes with the option; or, `asked_first`, with the context (GPT)."""

    question_with_context = False

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        told = [example for example in examples if isinstance(example, ChoiceExample)]
        pairs = [self.pair(example, option) for example in told for option in example.options]
        rows = iter(self.input_encoder.encode_examples(pairs))
        return [EncodedExample(tuple(next(rows) for _ in example.options), example.label, number)
                for number, example in enumerate(told)]

    def pair(self, example: ChoiceExample, option: str) -> tuple[str, str]:
        if self.question_with_context:
            return f"{example.context} {example.question}".strip(), option
        return (example.context or example.question,
                f"{example.question} {option}".strip() if example.context else option)

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        options = len(items[0].sequences)
        known = [number for number, item in enumerate(items) if item.target is not None]
        index = torch.tensor(known, dtype=torch.int64) * options  # the first row of each question
        labels = torch.tensor([items[number].target for number in known], dtype=torch.int64)
        return {}, {self.name: Target(index, labels, max(1.0, len(known)))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        scores = self.logits(network, output, batch).view(-1, batch.rows_per_example)  # (questions, options)
        return {self.name: functional.cross_entropy(scores[target.index // batch.rows_per_example], target.labels,
                                                    reduction="sum") / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self.logits(network, output, batch).view(-1, batch.rows_per_example).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return [{"label": int(scores.argmax()), "scores": softmax(scores).tolist()} for scores in outputs]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.row_targets[self.name]
        return {self.name: float(np.log(batch.rows_per_example)) * len(target.index) / target.denominator}


class RankingObjective(SequenceObjective):
    """Candidates of a query: each one gets a number; while learning, a good one competes with `others` of the same
    query that are not."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], num_negatives: int = 3,
                 seed: int = 0,
                 weight: float = 1.0):
        super().__init__(name, input_encoder, head_specs, weight)
        self._num_negatives, self._seed = num_negatives, seed

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """One candidate each."""
        told = [example for example in examples if isinstance(example, TextExample)]
        rows = self.input_encoder.encode_examples([example.texts for example in told])
        return [EncodedExample((row,), None if example.label is None else int(float(example.label) > 0), number)
                for number, (row, example) in enumerate(zip(rows, told, strict=True))]

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """For each good candidate, it first and then as many others of its query as `others` says; where there are
        fewer, some come twice. Queries without either are left out: they teach no order."""
        single = self.encode(examples)
        groups: dict[str, tuple[list[int], list[int]]] = {}
        for number, example in enumerate(examples):
            assert isinstance(example, TextExample)
            good, bad = groups.setdefault(example.group or example.texts[0], ([], []))
            (good if single[number].target else bad).append(number)
        rng = np.random.default_rng([self._seed, 11])
        made = []
        for good, bad in groups.values():
            for best in good if bad else []:
                drawn = rng.choice(bad, self._num_negatives, replace=len(bad) < self._num_negatives)
                rows = tuple(single[number].sequences[0] for number in (best, *drawn))
                made.append(EncodedExample(rows, 0, best))
        return made

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        together = len(items[0].sequences)
        known = torch.arange(len(items)) * together if together > 1 else torch.zeros(0, dtype=torch.int64)
        return {}, {self.name: Target(known, torch.zeros_like(known), max(1.0, len(known)))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        scores = self.logits(network, output, batch).view(-1, batch.rows_per_example)
        log_probs = functional.log_softmax(scores, dim=-1)[:, 0]  # the good one stands first
        return {self.name: -log_probs.sum() / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self.logits(network, output, batch).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return [{"score": float(number[0])} for number in outputs]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.row_targets[self.name]
        return {self.name: float(np.log(batch.rows_per_example)) * len(target.index) / target.denominator}


def softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    chances: np.ndarray = shifted / shifted.sum(-1, keepdims=True)
    return chances
