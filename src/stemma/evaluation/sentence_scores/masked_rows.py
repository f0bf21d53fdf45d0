"""Pseudo-log-likelihood of sentences: each token is predicted with all others given (Salazar et al. 2020,
arXiv:1910.14659), and the log-probabilities are added.

A sentence of n tokens is n rows, and rows of one length form a batch, so nothing is padded. Only the predicted
positions meet the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.evaluation.likelihood import log_probabilities
from stemma.model import Model

BATCH_TOKENS = 8192  # per forward pass
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class MaskedBatch:
    """Rows of one length; one position of each is predicted."""

    ids: Tensor  # (B, L) rows, not masked
    segment_ids: Tensor  # (B, L)
    columns: Tensor  # (B,) position to predict
    labels: Tensor  # (B,) token there
    text_index: Tensor  # (B,) index of that token within its sentence
    text_start: Tensor  # (B,) position of the sentence's first token

    def masked(self, mask_id: int) -> Tensor:
        """(B, L) rows with a mask token at the predicted position."""
        return self.ids.scatter(1, self.columns[:, None], mask_id)

    def flat_columns(self) -> Tensor:
        """(B,) predicted positions as indices into B x L."""
        return torch.arange(len(self.ids), device=self.ids.device) * self.ids.shape[1] + self.columns


@dataclass(frozen=True)
class SentenceRow:
    """A sentence in the model's input format."""

    ids: np.ndarray  # (L,)
    segment_ids: np.ndarray  # (L,)
    start: int  # position of the first token of the text
    count: int  # number of its tokens


TargetStates = Callable[[MaskedBatch], Tensor]  # (B, width) hidden states that predict the labels


def pseudo_log_likelihoods(model: Model, rows: Sequence[SentenceRow], target_states: TargetStates,
                           on_progress: OnProgress, excluded: int | None = None) -> np.ndarray:
    """(rows,) sum of the log-probabilities of the tokens of each sentence. `excluded`: a token that is never
    predicted."""
    scores = np.zeros(len(rows))
    indices_by_length: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        indices_by_length.setdefault(len(row.ids), []).append(index)
    head, vocab_size, device = model.lm_head(), model.network.vocab_size, model.device
    with torch.inference_mode():
        for length, indices in sorted(indices_by_length.items()):
            ids, segments = (torch.from_numpy(np.stack([getattr(rows[index], name) for index in indices])).to(device)
                             for name in ("ids", "segment_ids"))
            counts = np.array([rows[index].count for index in indices])
            starts = np.array([rows[index].start for index in indices])
            sentence = np.repeat(np.arange(len(indices)), counts)  # of each row to compute
            token = np.arange(len(sentence)) - np.repeat(np.cumsum(counts) - counts, counts)
            values, batch_rows = np.zeros(len(sentence)), max(1, BATCH_TOKENS // length)
            for first in range(0, len(sentence), batch_rows):
                part = slice(first, first + batch_rows)
                at, text_index, start = (torch.from_numpy(array[part]).to(device)
                                         for array in (sentence, token, starts[sentence]))
                columns = start + text_index
                batch_ids = ids[at]
                labels = batch_ids.gather(1, columns[:, None])[:, 0]
                batch = MaskedBatch(batch_ids, segments[at], columns, labels, text_index, start)
                log_p, _ = log_probabilities(head, target_states(batch), labels, vocab_size, excluded,
                                             with_greedy=False)
                values[part] = log_p.cpu().numpy()
                on_progress(_num_finished(sentence, first, part.stop))
            scores[indices] = np.bincount(sentence, values, minlength=len(indices))
    return scores


def _num_finished(sentence: np.ndarray, first: int, stop: int) -> int:
    """The number of sentences whose last row is among the rows `first` to `stop`."""
    ends = np.append(sentence[1:] != sentence[:-1], True)
    return int(ends[first:stop].sum())


def check_lengths(model: Model, texts: Sequence[str], counts: Sequence[int], capacity: int | None) -> None:
    """Refuse sentences that are too long for the model, and empty ones."""
    for text, count in zip(texts, counts, strict=True):
        if not count:
            raise UserError(f'the sentence "{text}" has no token in the vocabulary of {model.recipe.label}, so it '
                            "cannot be scored; remove its pair.")
        if capacity is not None and count > capacity:
            raise UserError(f'"{text[:40]}..." is {count} tokens long, and {model.recipe.label} reads {capacity} at a '
                            "time; remove its pair.")
