"""Sentence reordering: a paragraph was cut into some parts and these were shuffled; which shuffle was it?
(ERNIE 2.0, arXiv:1907.12412, section 4.2.2)

Every permutation of 1, 2, ... m parts is an answer, K = 1! + 2! + ... + m! of them. As in the paper, parts that happen
to stay in order look alike however many they are.
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
    """ERNIE 2.0: cut a paragraph into 1 to `parts` parts, shuffle them, and say which shuffle it was."""

    kind: Literal["sentence_reordering"]
    parts: Annotated[int, base.constraint(lambda n: 2 <= n <= 6, "must lie between 2 and 6: there are 1! + 2! + ... "
                                                            "classes")] = 3

    rearranges_text = True
    sees: ClassVar[AttentionMaskKind] = "full"

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
        """Each number of parts that a row's sentences allow is as likely as any other, so is each set of cuts, and so
        is each order of the parts."""
        most, sentences = self.settings.parts, np.asarray(draft.corpus.sentence_starts)
        drawn = rng.random((draft.rows, most + 1))
        start, stop = draft.spans.start, draft.spans.start + draft.spans.length
        assert np.array_equal(draft.spans.row, np.arange(draft.rows)), "a row must be one stretch of one document"
        first = np.searchsorted(sentences, start, side="right")  # the row's first place to cut at
        places = np.searchsorted(sentences, stop) - first
        parts = 1 + (drawn[:, 0] * np.minimum(most, places + 1)).astype(np.int64)
        cuts = sample_cuts(places, parts - 1, drawn[:, 1:most])
        inner = sentences[np.minimum(first[:, None] + cuts, len(sentences) - 1)]
        edges = np.where(cuts < places[:, None], inner, stop[:, None])  # where there is no cut, nothing is left over
        edges = np.concatenate([start[:, None], edges, stop[:, None]], axis=1)

        sizes = np.cumprod(np.arange(1, most + 1))  # orders of so many parts
        before = (np.cumsum(sizes) - sizes)[parts - 1]
        labels = before + (drawn[:, most] * sizes[parts - 1]).astype(np.int64)
        order = self.orders[labels]  # (rows, most): which part stands where; -1 behind the last
        row, place = np.nonzero(order >= 0)
        part = order[row, place]
        begins = edges[row, part]
        draft.spans = RowSpans(draft.rows, row, begins, edges[row, part + 1] - begins, np.zeros(len(row), np.int8),
                              np.zeros(len(row), bool))
        draft.add_row_labels(self.name, labels)


def all_permutations(max_parts: int) -> np.ndarray:
    """(K, most): the permutations of one part, of two, ... of `most`, each row filled up with -1."""
    rows = [[*order, *[-1] * (max_parts - parts)] for parts in range(1,
                                                                     max_parts + 1)
            for order in permutations(range(parts))]
    return np.array(rows, dtype=np.int64)


def sample_cuts(counts: np.ndarray, num_cuts: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """(rows, n) ascending: `wanted` different numbers below `counts`, every set as likely as any other; behind them the
    count itself. `drawn` (rows, n) are uniform numbers. This is Floyd's way: the k-th number is drawn among one more
    than the one before, and where it is taken already the new one is."""
    chosen = np.repeat(counts[:, None], uniform.shape[1], axis=1)
    for number in range(uniform.shape[1]):
        among = counts - num_cuts + number
        pick = (uniform[:, number] * (among + 1)).astype(np.int64)
        taken = (chosen[:, :number] == pick[:, None]).any(1)
        chosen[:, number] = np.where(number < num_cuts, np.where(taken, among, pick), counts)
    return np.sort(chosen, axis=1)
