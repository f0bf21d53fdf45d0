"""Task objectives: they encode examples, declare the heads they need, compute the loss and decode predictions.

The training loop treats a task objective like any other objective. The sequences of one example (the options of a
question) are adjacent in a batch, and the last layer is computed only at the positions that a head reads. Batches are
independent, so no recurrent memory is kept between them.
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
    """An example as input ids, with its training target."""

    sequences: tuple[EncodedSequence, ...]  # one, or several such as the options of a question
    target: Any  # the training target, specific to the objective; None: unlabelled
    example_index: int  # index of the example it belongs to
    decode_info: Any = None  # what `postprocess` needs, such as token offsets in the text

    @property
    def length(self) -> int:
        return max(len(sequence.input_ids) for sequence in self.sequences)


class TaskObjective(ABC):
    """The objective of one task. Its head is stored in the network under the task's name."""

    predicts_tokens = False
    stack = ENCODER  # the stack whose output the head reads

    def __init__(self, name: str, input_encoder: InputEncoder, weight: float = 1.0):
        self.name, self.input_encoder, self.weight = name, input_encoder, weight

    @abstractmethod
    def heads(self) -> dict[str, HeadSpec]:
        """The heads that the network must have."""

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encode examples; a long one may give several items with the same `example_index`."""

    def encode_training(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Encode training examples, if that differs from encoding for prediction."""
        return self.encode(examples)

    @abstractmethod
    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        """Token targets and row targets by name, for a batch of sequences padded to `length`."""

    @abstractmethod
    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        """Flat positions that the head reads; None: all."""

    @abstractmethod
    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        """The loss by task name, divided by the total of the whole step."""

    @abstractmethod
    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        """The outputs of each item of a batch that `postprocess` needs: usually logits."""

    @abstractmethod
    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        """A prediction for each example: a dictionary."""

    @abstractmethod
    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        """The loss of the class prior: a constant prediction of the label frequencies."""

    def mean_baseline(self, batches: Sequence[Batch], unigram: np.ndarray) -> float:
        return float(np.mean([self.baseline(batch, unigram)[self.name] for batch in batches]))

    def collate(self, model: Model, items: Sequence[EncodedExample]) -> Batch:
        """Pad the items into a batch."""
        sequences = [sequence for item in items for sequence in item.sequences]
        row_lengths = np.array([len(sequence.input_ids) for sequence in sequences])
        max_length = int(row_lengths.max())
        used = np.arange(max_length) < row_lengths[:, None]
        padded = np.zeros((2, len(sequences), max_length), dtype=np.int64)
        padded[0][used] = np.concatenate([sequence.input_ids for sequence in sequences])
        padded[1][used] = np.concatenate([sequence.segment_ids for sequence in sequences])
        ids, segments = torch.from_numpy(padded)
        non_pad, lengths = torch.from_numpy(used), torch.from_numpy(row_lengths)
        network = model.recipe.settings.network
        has_segments = network.embedding.segments > 1 or network.attention.segments
        streams = model.task_streams(ids, non_pad, segments if has_segments else None, self.stack)
        if spelled := self._text_inputs(model, sequences, max_length):
            streams[ENCODER] = replace(streams[ENCODER], inputs={**streams[ENCODER].inputs, **spelled})
        streams[ENCODER] = replace(streams[ENCODER], reuse_length=0, skip_padding=True)
        streams[self.stack] = replace(streams[self.stack], output_positions=self.output_positions(lengths, max_length))
        return Batch(streams, *self.targets(items, max_length), int(lengths.sum()), len(sequences), lengths=lengths,
                     rows_per_example=len(items[0].sequences))

    def _text_inputs(self, model: Model, sequences: Sequence[EncodedSequence], length: int) -> dict[str, Tensor]:
        """(rows, length, ...) values of the inputs that read the text, by name; empty if all words are known."""
        readers = {name: settings for name, settings in model.recipe.settings.network.inputs.items()
                   if settings.reads_text}
        if not readers or not any(sequence.unknown_words for sequence in sequences):
            return {}
        tokenizer = model.require_tokenizer()
        inputs = {}
        for name, settings in readers.items():
            rows = [settings.from_texts(tokenizer, np.pad(sequence.input_ids, (0, length - len(sequence.input_ids))),
                                        [sequence.unknown_words.get(position, "") for position in range(length)])
                    for sequence in sequences]
            inputs[name] = torch.from_numpy(np.stack(rows)).to(model.device)
        return inputs
