"""Sentence reordering: split a paragraph into parts, shuffle them, and predict the permutation (ERNIE 2.0,
arXiv:1907.12412, section 4.2.2).

The classes are all permutations of 1, 2, ... m parts, K = 1! + 2! + ... + m!. As in the paper, identity permutations of
different numbers of parts are different classes with equal inputs.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from stemma.corpus.row_spans import RowSpans
from stemma.objectives.classifiers import RowClassification
from stemma.registry import register
from stemma.schema import base
from stemma.schema.corpus import packing_names
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG


class SentenceReorderingSettings(ObjectiveSettings):
    """ERNIE 2.0: split a paragraph into 1 to `parts` parts, shuffle them, and predict the permutation."""

    kind: Literal["sentence_reordering"]
    parts: Annotated[int, base.constraint(
        lambda n: 2 <= n <= 6, "must lie between 2 and 6: there are 1! + 2! + ... classes")] = 3

    rearranges_text = True
    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return packing_names(one_document=True)


@register("objective", "sentence_reordering", SentenceReorderingSettings)
class SentenceReordering(RowClassification):
    settings: SentenceReorderingSettings
    needs_several_sentences = True

    def __init__(self, name: str, settings: SentenceReorderingSettings):
        super().__init__(name, settings)
        self.orders = all_permutations(settings.parts)
        self.classes = len(self.orders)

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The number of parts (as far as the sentences of a row allow), the cuts and the permutation are uniform."""
        max_parts, sentences = self.settings.parts, np.asarray(draft.corpus.sentence_starts)
        uniform = rng.random((draft.rows, max_parts + 1))
        start, stop = draft.spans.start, draft.spans.start + draft.spans.length
        assert np.array_equal(draft.spans.row, np.arange(draft.rows)), "a row must be one span of one document"
        first = np.searchsorted(sentences, start, side="right")  # first sentence boundary of the row
        boundaries = np.searchsorted(sentences, stop) - first
        parts = 1 + (uniform[:, 0] * np.minimum(max_parts, boundaries + 1)).astype(np.int64)
        cuts = sample_cuts(boundaries, parts - 1, uniform[:, 1:max_parts])
        inner = sentences[np.minimum(first[:, None] + cuts, len(sentences) - 1)]
        edges = np.where(cuts < boundaries[:, None], inner, stop[:, None])  # no cut: the part is empty
        edges = np.concatenate([start[:, None], edges, stop[:, None]], axis=1)

        sizes = np.cumprod(np.arange(1, max_parts + 1))  # permutations of 1, 2, ... parts
        first_label = (np.cumsum(sizes) - sizes)[parts - 1]
        labels = first_label + (uniform[:, max_parts] * sizes[parts - 1]).astype(np.int64)
        order = self.orders[labels]  # (rows, max_parts): part at each position; -1 after the last
        row, position = np.nonzero(order >= 0)
        part = order[row, position]
        part_start = edges[row, part]
        draft.spans = RowSpans(draft.rows, row, part_start, edges[row, part + 1] - part_start,
                               np.zeros(len(row), np.int8), np.zeros(len(row), bool))
        draft.add_row_labels(self.name, labels)


def all_permutations(max_parts: int) -> np.ndarray:
    """(K, max_parts): the permutations of one part, of two, ... of `max_parts`, padded with -1."""
    rows = [[*order, *[-1] * (max_parts - parts)] for parts in range(1, max_parts + 1)
            for order in permutations(range(parts))]
    return np.array(rows, dtype=np.int64)


def sample_cuts(counts: np.ndarray, num_cuts: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """(rows, n) ascending: `num_cuts` distinct integers below `counts`, all sets equally likely, padded with the count.
    `uniform` (rows, n) are uniform samples. Floyd's algorithm: the k-th integer is sampled from a range that grows by
    one; if it is already chosen, the new upper end is taken instead."""
    cuts = np.repeat(counts[:, None], uniform.shape[1], axis=1)
    for index in range(uniform.shape[1]):
        highest = counts - num_cuts + index
        sample = (uniform[:, index] * (highest + 1)).astype(np.int64)
        repeated = (cuts[:, :index] == sample[:, None]).any(1)
        cuts[:, index] = np.where(index < num_cuts, np.where(repeated, highest, sample), counts)
    return np.sort(cuts, axis=1)
