"""A tag for each word, said by its first piece (arXiv:1810.04805, section 5.3); the other pieces are not asked.

A sentence that is longer than a row is read in rows that overlap by a quarter, and each word is asked in one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.feature_head import FeatureHead
from stemma.network.heads import HeadSpec
from stemma.network.inputs_outputs import NetworkOutput
from stemma.network.network import Network
from stemma.objectives.batch import Batch, Target
from stemma.tasks.data.examples import Example, TaggedExample
from stemma.tasks.objectives.base import EncodedExample, TaskObjective
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.objectives.sequence import softmax
from stemma.tasks.objectives.sliding_windows import max_context_window, split_windows


class TokenClassificationObjective(TaskObjective):
    """`labels` are the tags in order. An item's `extra` is (places, words): which places of its row are asked, and
    which word each speaks for; its answer is their tags."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], labels: Sequence[str],
                 counts: Sequence[int], class_weights: Sequence[float] | None = None, weight: float = 1.0):
        super().__init__(name, input_encoder, weight)
        self._head_specs, self.labels = head_specs, list(labels)
        self._label_index = {label: number for number, label in enumerate(labels)}
        self._prior = np.log((np.array(counts) + 1) / (sum(counts) + len(counts)))
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)

    def heads(self) -> dict[str, HeadSpec]:
        return self._head_specs

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        told = [example for example in examples if isinstance(example, TaggedExample)]
        made = []
        for number, (example, (ids, offsets)) in enumerate(
                zip(told, self.input_encoder.encode_with_offsets([" ".join(example.words) for example in told]),
                    strict=True)):
            first = first_subtokens(example.words, offsets)
            tags = None if example.tags is None else np.array([self._label_index[tag] for tag in example.tags])
            room = self.input_encoder.text_capacity(1)
            cut = split_windows(len(ids), room, room - room // 4)
            spoken = np.flatnonzero(first >= 0)  # a word of nothing but control characters has no piece
            owner = max_context_window(len(ids), cut)[first[spoken]]  # ascending, so that the words of a window stand
            #                                                           together
            shares = np.split(spoken, np.searchsorted(owner, np.arange(1, len(cut))))
            for words, (start, stop) in zip(shares, cut, strict=True):
                row = self.input_encoder.build_sequence([ids[start:stop].tolist()])
                places = first[words] - start + row.text_spans[0][0]
                made.append(EncodedExample((row,), None if tags is None else tags[words], number, (places, words)))
        return made

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        places = [number * length + item.decode_info[0] for number, item in enumerate(items) if item.target is not None]
        tags = [item.target for item in items if item.target is not None]
        index = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *places]))
        labels = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *tags]))
        total = float(len(index)) if self._class_weights is None else float(self._class_weights[labels].sum())
        return {self.name: Target(index, labels, total or 1.0, length)}, {}

    def output_positions(self, lengths: Tensor, length: int) -> Tensor | None:
        return None

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        target = batch.token_targets[self.name]
        logits = self.logits(network, output, batch, target.index)
        weight = None if self._class_weights is None else self._class_weights.to(logits)
        return {self.name: functional.cross_entropy(logits, target.labels, weight,
                                                    reduction="sum") / target.denominator}

    def logits(self, network: Network, output: NetworkOutput, batch: Batch, positions: Tensor) -> Tensor:
        """(N, tags) of these flat places."""
        head = network.head(self.name)
        if isinstance(self._head_specs[self.name], FeatureHead):
            return head(output.all_hidden_states(self.stack), batch.lengths).flatten(0, 1)[positions]
        return head(output[self.stack].flatten(0, 1)[positions]).float()

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        rows, length = output[self.stack].shape[:2]
        every = torch.arange(rows * length, device=output[self.stack].device)
        return list(self.logits(network, output, batch, every).view(rows, length, -1).cpu().numpy())  # (L, tags) each

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        silent = self._label_index.get("O", int(self._prior.argmax()))  # what is said of a word that has no piece
        tags = [np.full(len(example.words), silent) for example in examples if isinstance(example, TaggedExample)]
        sure = [np.zeros(len(one)) for one in tags]
        for item, scores in zip(items, outputs, strict=True):
            places, words = item.decode_info
            chances = softmax(scores[places])
            tags[item.example_index][words] = chances.argmax(-1)
            sure[item.example_index][words] = chances.max(-1, initial=0)
        return [{"tags": [self.labels[tag] for tag in one], "scores": chance.tolist()}
                for one, chance in zip(tags, sure, strict=True)]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.token_targets[self.name]
        labels = target.labels.cpu().numpy()
        weight = 1.0 if self._class_weights is None else self._class_weights.numpy()[labels]
        return {self.name: float(-(self._prior[labels] * weight).sum()) / target.denominator}


def first_subtokens(words: Sequence[str], offsets: np.ndarray) -> np.ndarray:
    """(words,) the first token of each word in the words joined by blanks; -1 where none of its characters has one. A
    token may begin with the blank before its word, so what counts is the first that ends inside."""
    lengths = np.array([len(word) for word in words], np.int64)
    begins = np.cumsum(lengths + 1) - lengths - 1
    token = np.searchsorted(offsets[:, 1], begins, side="right")
    inside = token < len(offsets)
    starts = offsets[np.minimum(token, len(offsets) - 1), 0] if len(offsets) else begins
    return np.where(inside & (starts < begins + lengths), token, -1)
