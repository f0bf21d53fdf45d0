"""A view: some documents of a corpus, such as those to train on and those held out.

A corpus may hold several kinds of documents, told by its side arrays at their first token: running text, dialogues
(`roles`), and queries with titles (`relevance`). A packing reads those that it can lay out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.batches import RELEVANCE, ROLES
from stemma.corpus.shards import Corpus
from stemma.schema.corpus import packing_of
from stemma.text.holdout import LARGEST

RUNNING = "running"  # text that is neither
KINDS = (RUNNING, ROLES, RELEVANCE)


@dataclass(frozen=True)
class View:
    """Some documents of a corpus: (D, 2) token offsets where each begins and ends."""

    corpus: Corpus
    documents: np.ndarray

    @classmethod
    def whole(cls, corpus: Corpus) -> View:
        """Every document, nothing held out."""
        return cls(corpus, np.stack([corpus.documents[:-1], corpus.documents[1:]], axis=1))

    @property
    def tokens(self) -> int:
        return int((self.documents[:, 1] - self.documents[:, 0]).sum())

    def bounds(self, document: int) -> np.ndarray:
        """The sentence bounds of one document, its own edges included."""
        start, stop = self.documents[document]
        sentences = self.corpus.sentences
        inner = sentences[np.searchsorted(sentences, start, side="right"):np.searchsorted(sentences, stop)]
        return np.concatenate([[start], inner, [stop]])

    def text(self, document: int) -> str:
        """The text of one document; a view may hold only a part of it."""
        start, stop = self.documents[document]
        whole = int(np.searchsorted(self.corpus.documents, start, side="right")) - 1
        first, last = self.corpus.documents[whole:whole + 2]
        begins = int(self.corpus.slice("starts", start, start + 1)[0]) if start > first else 0
        ends = int(self.corpus.slice("starts", stop, stop + 1)[0]) if stop < last else None
        return self.corpus.text(whole)[begins:ends]

    def kinds(self) -> np.ndarray:
        """(D,) of each document, its kind's number in KINDS."""
        numbers = np.zeros(len(self.documents), np.int8)
        for number, side in enumerate(KINDS):
            if side in self.corpus.sides():
                numbers[self.corpus.take(side, self.documents[:, 0]) > 0] = number
        return numbers

    def read_by(self, packing: str) -> View:
        """The documents that a packing can lay out: dialogues, queries with titles, or running text. In a corpus of
        pairs (source and target) there are no kinds: pairs also serve as text."""
        reads = packing_of(packing).reads
        side = {"dialogues": ROLES, "pairs": RELEVANCE}.get(reads, RUNNING)
        known = set(self.corpus.sides()) & {ROLES, RELEVANCE}
        if side not in known and (reads == "pairs" or side == RUNNING and not known):
            return self
        return View(self.corpus, self.documents[self.kinds() == KINDS.index(side)])


def split(corpus: Corpus, share: float, seed: int = 0) -> tuple[View, View]:
    """(training, validation): what the corpus itself holds out. Otherwise whole documents, of each kind as many as make
    the share; where there are only long ones, the last sentences of the longest; where those are single sentences, the
    shortest one."""
    bounds = View.whole(corpus).documents
    groups = [group for group in corpus.manifest.get("groups", []) if group.get("held_out")]
    if groups:
        numbers = [np.arange(group["first"], group["first"] + group["documents"]) for group in groups]
        return _hold_out(corpus, bounds, np.concatenate(numbers))
    bounds = bounds[bounds[:, 1] > bounds[:, 0]]
    if (first := corpus.manifest.get("held_out_from")) is not None:
        return View(corpus, bounds[bounds[:, 0] < first]), View(corpus, bounds[bounds[:, 0] >= first])
    if share <= 0:
        return View(corpus, bounds), View(corpus, bounds[:0])
    kinds = View(corpus, bounds).kinds()
    parts = [_split(corpus, bounds[kinds == kind], share, seed) for kind in np.unique(kinds)]
    training, validation = (np.concatenate([view.documents for view in views]) for views in zip(*parts, strict=True))
    return _sorted(corpus, training), _sorted(corpus, validation)


def _sorted(corpus: Corpus, documents: np.ndarray) -> View:
    return View(corpus, documents[np.argsort(documents[:, 0])])


def _split(corpus: Corpus, bounds: np.ndarray, share: float, seed: int) -> tuple[View, View]:
    sizes = bounds[:, 1] - bounds[:, 0]
    wanted = max(1, round(share * sizes.sum()))
    order = np.random.default_rng([seed, 7]).permutation(len(bounds))
    order = order[sizes[order] <= max(wanted, sizes.sum() // LARGEST)]
    chosen = order[:np.searchsorted(np.cumsum(sizes[order]), wanted) + 1]
    if 2 * sizes[chosen].sum() >= wanted and len(chosen) < len(bounds):
        return _hold_out(corpus, bounds, chosen)
    return _split_last(corpus, bounds, wanted)


def _hold_out(corpus: Corpus, bounds: np.ndarray, chosen: np.ndarray) -> tuple[View, View]:
    held = np.zeros(len(bounds), dtype=bool)
    held[chosen] = True
    return View(corpus, bounds[~held]), View(corpus, bounds[held])


def _split_last(corpus: Corpus, bounds: np.ndarray, wanted: int) -> tuple[View, View]:
    """Hold out the end of the longest document, from a sentence's start."""
    sizes = bounds[:, 1] - bounds[:, 0]
    longest = int(np.argmax(sizes))
    start, stop = bounds[longest]
    inside = corpus.sentences[(corpus.sentences > start) & (corpus.sentences < stop)]
    inside = inside[inside >= start + (stop - start) // 2]
    if not len(inside):
        return _hold_out(corpus, bounds, np.argsort(sizes)[:min(1, len(sizes) - 1)])
    cut = inside[min(np.searchsorted(inside, stop - wanted), len(inside) - 1)]
    training = bounds.copy()
    training[longest, 1] = cut
    return View(corpus, training), View(corpus, np.array([[cut, stop]]))
