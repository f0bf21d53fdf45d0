"""Next-sentence prediction: does B really follow A, or does it come from another document? (BERT, arXiv:1810.04805)"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.corpus.randomness import Randomness
from stemma.network.heads import ClassHead, Pooler
from stemma.network.network import POOLER, Network
from stemma.network.streams import Hidden
from stemma.objectives.base import Needs, Objective
from stemma.objectives.batch import Batch
from stemma.schema.objective import NextSentenceSettings

HEAD = "next_sentence"


class NextSentence(Objective):
    settings: NextSentenceSettings

    def needs(self) -> Needs:
        return Needs(heads={POOLER: Pooler(), HEAD: ClassHead(2)})

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """Label 0: B follows; 1: B is from elsewhere, as long as the one whose place it takes, so that a row's length
        does not tell; where A stood alone, long enough to fill what A leaves (as published)."""
        pieces, view, capacity = draft.pieces, draft.view, draft.layout.capacity(pair=True)
        sentences = view.corpus.sentences
        coin, where, offset = rng.random((draft.rows, 3)).T
        for_a, for_b = pieces.part_lengths(0), pieces.part_lengths(1)
        alone = for_b == 0  # nothing follows A in its document
        elsewhere = np.flatnonzero((coin < self.settings.random) | alone)
        begins, ends = view.documents.T
        own = np.searchsorted(begins, _first_start(draft)[elsewhere], side="right") - 1
        document = (where[elsewhere] * max(1, len(begins) - 1)).astype(np.int64)
        if len(begins) > 1:
            document += document >= own  # any document but A's own
        first = np.searchsorted(sentences, begins[document])
        last = np.searchsorted(sentences, ends[document])
        start = sentences[first + (offset[elsewhere] * (last - first)).astype(np.int64)]
        room = np.where(alone, np.maximum(1, capacity - for_a), for_b)[elsewhere]
        stop = sentences[np.minimum(np.searchsorted(sentences, start + room), last)]
        pieces.replace_part(1, elsewhere, start, stop - start)
        pieces.truncate_pairs(capacity, rng)
        labels = np.zeros(draft.rows, dtype=np.int64)
        labels[elsewhere] = 1
        draft.label(HEAD, labels)

    def loss(self, network: Network, hidden: Hidden, batch: Batch) -> dict[str, Tensor]:
        target = batch.labels[HEAD]
        return {self.name: network.head(HEAD).loss(network.pooled(hidden["encoder"]), target.labels, target.total)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        rate = min(max(self.settings.random, 1e-6), 1 - 1e-6)  # a lone A makes a 1 even where none are wanted
        labels = batch.labels[HEAD].labels.cpu().numpy()
        share = float(labels.mean())
        return {self.name: float(-(share * np.log(rate) + (1 - share) * np.log1p(-rate)))}


def _first_start(draft: Draft) -> np.ndarray:
    """(rows,) where A begins in the corpus."""
    start = np.zeros(draft.rows, dtype=np.int64)
    first = draft.pieces.part == 0
    start[draft.pieces.row[first]] = draft.pieces.start[first]
    return start
