"""Token classification: a tag for each word, predicted at its first subtoken (arXiv:1810.04805, section 5.3).

A long sentence is split into windows that overlap by a quarter; each word is predicted in one of them.
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
    """`labels` are the tags in order. The `decode_info` of an item is (positions, words): the positions of the first
    subtokens, and the indices of their words; its target are their tags."""

    def __init__(self, name: str, input_encoder: InputEncoder, head_specs: dict[str, HeadSpec], labels: Sequence[str],
                 counts: Sequence[int], class_weights: Sequence[float] | None = None, weight: float = 1.0):
        super().__init__(name, input_encoder, weight)
        self._head_specs, self.labels = head_specs, list(labels)
        self._label_index = {label: index for index, label in enumerate(labels)}
        self._prior = np.log((np.array(counts) + 1) / (sum(counts) + len(counts)))
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)

    def heads(self) -> dict[str, HeadSpec]:
        return self._head_specs

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        sentences = [example for example in examples if isinstance(example, TaggedExample)]
        encodings = self.input_encoder.encode_with_offsets([" ".join(example.words) for example in sentences])
        encoded = []
        for index, (example, (ids, offsets)) in enumerate(zip(sentences, encodings, strict=True)):
            first = first_subtokens(example.words, offsets)
            tags = None if example.tags is None else np.array([self._label_index[tag] for tag in example.tags])
            window_size = self.input_encoder.text_capacity(1)
            windows = split_windows(len(ids), window_size, window_size - window_size // 4)
            with_subtoken = np.flatnonzero(first >= 0)  # a word of only control characters has no subtoken
            # window indices ascend, so the words of each window are contiguous
            best_window = max_context_window(len(ids), windows)[first[with_subtoken]]
            words_by_window = np.split(with_subtoken, np.searchsorted(best_window, np.arange(1, len(windows))))
            for words, (start, stop) in zip(words_by_window, windows, strict=True):
                sequence = self.input_encoder.build_sequence([ids[start:stop].tolist()])
                positions = first[words] - start + sequence.text_spans[0][0]
                encoded.append(EncodedExample((sequence,), None if tags is None else tags[words], index,
                                              (positions, words)))
        return encoded

    def targets(self, items: Sequence[EncodedExample], length: int) -> tuple[dict[str, Target], dict[str, Target]]:
        positions = [row * length + item.decode_info[0] for row, item in enumerate(items) if item.target is not None]
        tags = [item.target for item in items if item.target is not None]
        index = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *positions]))
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
        """(N, tags) logits at flat positions."""
        head = network.head(self.name)
        if isinstance(self._head_specs[self.name], FeatureHead):
            return head(output.all_hidden_states(self.stack), batch.lengths).flatten(0, 1)[positions]
        return head(output[self.stack].flatten(0, 1)[positions]).float()

    def outputs(self, network: Network, output: NetworkOutput, batch: Batch) -> list[np.ndarray]:
        rows, length = output[self.stack].shape[:2]
        positions = torch.arange(rows * length, device=output[self.stack].device)
        logits = self.logits(network, output, batch, positions).view(rows, length, -1)
        return list(logits.cpu().numpy())  # (L, tags) each

    def postprocess(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray],
                    examples: Sequence[Example]) -> list[Any]:
        default = self._label_index.get("O", int(self._prior.argmax()))  # for words without a subtoken
        tag_ids = [np.full(len(example.words), default) for example in examples if isinstance(example, TaggedExample)]
        confidences = [np.zeros(len(ids)) for ids in tag_ids]
        for item, (ids, scores) in zip(items, self.decode(items, outputs), strict=True):
            _, words = item.decode_info
            tag_ids[item.example_index][words] = ids
            confidences[item.example_index][words] = scores
        return [{"tags": [self.labels[tag] for tag in ids], "scores": scores.tolist()}
                for ids, scores in zip(tag_ids, confidences, strict=True)]

    def decode(self, items: Sequence[EncodedExample], outputs: Sequence[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
        """For each item, the predicted tag of each word and its probability, both (words,)."""
        probabilities = [softmax(logits[item.decode_info[0]]) for item, logits in zip(items, outputs, strict=True)]
        return [(words.argmax(-1), words.max(-1, initial=0)) for words in probabilities]

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        target = batch.token_targets[self.name]
        labels = target.labels.cpu().numpy()
        weight = 1.0 if self._class_weights is None else self._class_weights.numpy()[labels]
        return {self.name: float(-(self._prior[labels] * weight).sum()) / target.denominator}


def first_subtokens(words: Sequence[str], offsets: np.ndarray) -> np.ndarray:
    """(words,) index of the first token of each word, for words joined by spaces; -1 if the word has none. A token may
    include the space before its word, so the first token that ends inside the word counts."""
    lengths = np.array([len(word) for word in words], np.int64)
    word_starts = np.cumsum(lengths + 1) - lengths - 1
    token = np.searchsorted(offsets[:, 1], word_starts, side="right")
    inside = token < len(offsets)
    token_starts = offsets[np.minimum(token, len(offsets) - 1), 0] if len(offsets) else word_starts
    return np.where(inside & (token_starts < word_starts + lengths), token, -1)
