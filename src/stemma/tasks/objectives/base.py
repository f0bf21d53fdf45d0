"""What a task asks of a network: a learner lays examples out, names the heads it needs, scores them and reads answers.

To the training loop a learner is an objective like any other. Rows of one example (the options of a question) stand
together in a batch, and only the places that a head reads are computed to the end. No batch goes on where the one
before ended, so that nothing of it is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.seq2seq_rows import ENCODER
from stemma.model import Model
from stemma.network.heads import HeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example
from stemma.tasks.objectives.input_encoder import EncodedSequence, InputEncoder


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """An example as the network meets it."""

    sequences: tuple[EncodedSequence, ...]  # one; several where they compete or belong together
    target: Any  # what is to be learnt, in the learner's own terms; None: unknown
    example_index: int  # of the example it belongs to
    decode_info: Any = None  # what reading its answer takes: where its tokens stand in the text

    @property
    def length(self) -> int:
        return max(len(row.input_ids) for row in self.sequences)


class TaskObjective(ABC):
    """One task. Its head's weights stand in the network under its name."""

    predicts_tokens = False
    stack = ENCODER  # whose output its head reads

    def __init__(self, name: str, input_encoder: InputEncoder, weight: float = 1.0):
        self.name, self.input_encoder, self.weight = name, input_encoder, weight

    @abstractmethod
    def heads(self) -> dict[str, HeadSpec]:
        """What the network must have besides its body."""

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """The examples in rows; one that does not fit a row may give several items of one number."""

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """The items to learn from, where they are not those to answer."""
        return self.encode(examples)

    @abstractmethod
    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        """What is scored in a batch whose rows are `length` places long: places by name, and rows by name."""

    @abstractmethod
    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        """The flat places that the head reads; None: all of them."""

    @abstractmethod
    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        """The loss by the learner's name, divided by the whole step's total."""

    @abstractmethod
    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        """For each item of a batch, the numbers that `decide` needs: logits, as a rule."""

    @abstractmethod
    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        """A prediction for each example: a dictionary with at least what the user is told."""

    @abstractmethod
    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """What one who knows only how often each answer occurs would lose."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return float(np.mean([self.baseline(batch, unigram)[self.name] for batch in batches]))

    def collate(self, model: Model, items: Sequence[EncodedExample]) -> Batch:
        rows = [row for item in items for row in item.sequences]
        lengths = torch.tensor([len(row.input_ids) for row in rows])
        max_length = int(lengths.max())
        ids, segments = torch.zeros((2, len(rows), max_length), dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row.input_ids)] = torch.from_numpy(row.input_ids)
            segments[number, : len(row.input_ids)] = torch.from_numpy(row.segment_ids)
        non_pad = torch.arange(max_length) < lengths[:, None]
        network = model.recipe.settings.network
        has_segments = network.embedding.segments > 1 or network.attention.segments
        streams = model.task_streams(ids, non_pad, segments if has_segments else None, self.stack)
        streams[ENCODER] = replace(streams[ENCODER], reuse_length=0, skip_padding=True)
        streams[self.stack] = replace(streams[self.stack], output_positions=self.output_positions(lengths, max_length))
        return Batch(streams, *self.targets(items, max_length), int(lengths.sum()), len(rows), lengths=lengths,
                     rows_per_example=len(items[0].sequences))
