"""Sequence-level tasks: classification, regression, multiple choice and ranking.

Each option or candidate is its own sequence with one logit; a softmax over them is trained (options as in GPT, see
`gpt_format.py`; ranking as in arXiv:1901.11504, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.concat_pool_head import ConcatPoolHead
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
    """Reads one pooled vector per sequence, through the head of the model family."""

    text_orders = 1  # 2: text pairs are encoded in both orders, and the logits are summed

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], weight: float = 1.0):
        super().__init__(name, input_encoder, weight)
        self._head_specs = head_specs  # the one with the name of the task computes the logits

    def encode_texts(
            self, examples: Sequence[TextExample]) -> Iterator[tuple[int, tuple[EncodedSequence, ...], TextExample]]:
        """(index, sequences, example) of each example."""
        ordered = [example.texts[::step] for example in examples for step in (1, -1)[:self.text_orders]]
        sequences = iter(self.input_encoder.encode_examples(ordered))
        for index, example in enumerate(examples):
            yield index, tuple(next(sequences) for _ in range(self.text_orders)), example

    def heads(self) -> dict[str, HeadSpec]:
        return self._head_specs

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        spec = self._head_specs[self.name]
        first = torch.arange(len(lengths)) * length
        if isinstance(spec, (FeatureHead, ConcatPoolHead)):
            return None  # these read all positions
        pooling = spec.place if isinstance(spec, SentenceHead) else "first"
        return {"first": first, "last": first + lengths - 1, "mean": None}[pooling]

    def logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        """(sequences, classes)"""
        head, hidden, spec = network.head(self.name), output[self.stack], self._head_specs[self.name]
        if isinstance(spec, FeatureHead):
            return head(output.all_hidden_states(self.stack), batch.lengths)
        if isinstance(spec, ClassHead):
            return head(network.pool(hidden)).float()
        return head(hidden, batch.lengths).float()

    def order_summed_logits(self, network: Network, output: NetworkOutput, batch: Batch) -> Tensor:
        """(examples, classes) logits, summed over the text orders."""
        logits = self.logits(network, output, batch)
        return logits if self.text_orders == 1 else logits.view(-1, self.text_orders, logits.shape[-1]).sum(1)


class ClassificationObjective(SequenceObjective):
    """`labels` are the classes in order; `class_weights` weight the loss of each class."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], labels: Sequence[str],
                 counts: Sequence[int], class_weights: Sequence[float] | None = None, weight: float = 1.0):
        super().__init__(name, input_encoder, head_specs, weight)
        self.labels = list(labels)
        self._label_index = {label: index for index, label in enumerate(labels)}
        self._prior = np.log((np.array(counts) + 1) / (sum(counts) + len(counts)))
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        text_examples = [example for example in examples if isinstance(example, TextExample)]
        return [EncodedExample(sequences, None if example.label is None else self._label_index[str(example.label)],
                               index)
                for index, sequences, example in self.encode_texts(text_examples)]

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        labels = torch.tensor([-1 if item.target is None else item.target for item in items])
        labelled = torch.nonzero(labels >= 0)[:, 0]
        total = len(labelled) if self._class_weights is None else float(self._class_weights[labels[labelled]].sum())
        return {}, {self.name: Target(labelled * self.text_orders, labels[labelled], max(total, 1e-9))}

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
    """Regression with the squared error. `label_std` is the standard deviation of the training labels."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], label_std: float,
                 weight: float = 1.0):
        super().__init__(name, input_encoder, head_specs, weight)
        self._label_std = label_std

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        text_examples = [example for example in examples if isinstance(example, TextExample)]
        return [EncodedExample(sequences, None if example.label is None else float(example.label), index)
                for index, sequences, example in self.encode_texts(text_examples)]

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        labelled = [i for i, item in enumerate(items) if item.target is not None]
        labels = torch.tensor([items[i].target for i in labelled], dtype=torch.float32)
        index = torch.tensor(labelled, dtype=torch.int64) * self.text_orders
        return {}, {self.name: Target(index, labels, max(1.0, len(labelled)))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        predicted = self.order_summed_logits(network, output, batch)[target.index // self.text_orders, 0]
        return {self.name: functional.mse_loss(predicted, target.labels, reduction="sum") / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self.order_summed_logits(network, output, batch).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return [{"score": float(logits[0])} for logits in outputs]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """The loss of always predicting the mean."""
        target = batch.row_targets[self.name]
        return {self.name: self._label_std**2 * len(target.index) / target.denominator}


class MultipleChoiceObjective(SequenceObjective):
    """Multiple choice: one sequence per option, with a softmax over the options of a question.

    The question joins the option in the second text, or the context in the first if `question_with_context` (GPT)."""

    question_with_context = False

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        choices = [example for example in examples if isinstance(example, ChoiceExample)]
        pairs = [self.pair(example, option) for example in choices for option in example.options]
        sequences = iter(self.input_encoder.encode_examples(pairs))
        return [EncodedExample(tuple(next(sequences) for _ in example.options), example.label, index)
                for index, example in enumerate(choices)]

    def pair(self, example: ChoiceExample, option: str) -> tuple[str, str]:
        if self.question_with_context:
            return f"{example.context} {example.question}".strip(), option
        return (example.context or example.question,
                f"{example.question} {option}".strip() if example.context else option)

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        options = len(items[0].sequences)
        labelled = [i for i, item in enumerate(items) if item.target is not None]
        index = torch.tensor(labelled, dtype=torch.int64) * options  # the first sequence of each question
        labels = torch.tensor([items[i].target for i in labelled], dtype=torch.int64)
        return {}, {self.name: Target(index, labels, max(1.0, len(labelled)))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        logits = self.logits(network, output, batch).view(-1, batch.rows_per_example)  # (questions, options)
        return {self.name: functional.cross_entropy(logits[target.index // batch.rows_per_example], target.labels,
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
    """Ranking: one score per candidate. In training, a softmax runs over a relevant candidate and `num_negatives`
    irrelevant ones of the same query."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], num_negatives: int = 3,
                 seed: int = 0, weight: float = 1.0):
        super().__init__(name, input_encoder, head_specs, weight)
        self._num_negatives, self._seed = num_negatives, seed

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """One candidate per item."""
        candidates = [example for example in examples if isinstance(example, TextExample)]
        sequences = self.input_encoder.encode_examples([example.texts for example in candidates])
        return [EncodedExample((sequence,), None if example.label is None else int(float(example.label) > 0), index)
                for index, (sequence, example) in enumerate(zip(sequences, candidates, strict=True))]

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """One item per relevant candidate: its sequence first, then sampled negatives of the same query, with
        replacement if there are too few. Queries without relevant or without irrelevant candidates are skipped."""
        encoded = self.encode(examples)
        groups: dict[str, tuple[list[int], list[int]]] = {}
        for index, example in enumerate(examples):
            assert isinstance(example, TextExample)
            positives, negatives = groups.setdefault(example.group or example.texts[0], ([], []))
            (positives if encoded[index].target else negatives).append(index)
        rng = np.random.default_rng([self._seed, 11])
        items = []
        for positives, negatives in groups.values():
            for positive in positives if negatives else []:
                sampled = rng.choice(negatives, self._num_negatives, replace=len(negatives) < self._num_negatives)
                sequences = tuple(encoded[index].sequences[0] for index in (positive, *sampled))
                items.append(EncodedExample(sequences, 0, positive))
        return items

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        rows = len(items[0].sequences)
        index = torch.arange(len(items)) * rows if rows > 1 else torch.zeros(0, dtype=torch.int64)
        return {}, {self.name: Target(index, torch.zeros_like(index), max(1.0, len(index)))}

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.row_targets[self.name]
        logits = self.logits(network, output, batch).view(-1, batch.rows_per_example)
        log_probs = functional.log_softmax(logits, dim=-1)[:, 0]  # the relevant candidate comes first
        return {self.name: -log_probs.sum() / target.denominator}

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        return list(self.logits(network, output, batch).cpu().numpy())

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        return [{"score": float(logits[0])} for logits in outputs]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.row_targets[self.name]
        return {self.name: float(np.log(batch.rows_per_example)) * len(target.index) / target.denominator}


def softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities: np.ndarray = shifted / shifted.sum(-1, keepdims=True)
    return probabilities
