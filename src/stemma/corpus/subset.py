"""A view: some documents of a corpus, such as those to train on and those held out.

A corpus may hold several kinds of documents, told by its side arrays at their first token: running text, dialogues
(`roles`), and queries with titles (`relevance`). A packing reads those that it can lay out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.text_batches import RELEVANCE, ROLES
from stemma.schema.corpus import packing_settings
from stemma.text.holdout import MAX_DOCUMENT_SHARE

PLAIN = "running"  # text that is neither
DOCUMENT_KINDS = (PLAIN, ROLES, RELEVANCE)


@dataclass(frozen=True)
class CorpusSubset:
    """Some documents of a corpus: (D, 2) token offsets where each begins and ends."""

    corpus: Corpus
    document_ranges: np.ndarray

    @classmethod
    def all_documents(cls, corpus: Corpus) -> CorpusSubset:
        """Every document, nothing held out."""
        return cls(corpus, np.stack([corpus.document_starts[:-1], corpus.document_starts[1:]], axis=1))

    @property
    def num_tokens(self) -> int:
        return int((self.document_ranges[:, 1] - self.document_ranges[:, 0]).sum())

    def sentence_bounds(self, document: int) -> np.ndarray:
        """The sentence bounds of one document, its own edges included."""
        start, stop = self.document_ranges[document]
        sentences = self.corpus.sentence_starts
        inner = sentences[np.searchsorted(sentences, start, side="right"):np.searchsorted(sentences, stop)]
        return np.concatenate([[start], inner, [stop]])

    def document_text(self, document: int) -> str:
        """The text of one document; a view may hold only a part of it."""
        start, stop = self.document_ranges[document]
        whole = int(np.searchsorted(self.corpus.document_starts, start, side="right")) - 1
        first, last = self.corpus.document_starts[whole:whole + 2]
        begins = int(self.corpus.values_between("starts", start, start + 1)[0]) if start > first else 0
        ends = int(self.corpus.values_between("starts", stop, stop + 1)[0]) if stop < last else None
        return self.corpus.document_text(whole)[begins:ends]

    def document_kinds(self) -> np.ndarray:
        """(D,) of each document, its kind's number in KINDS."""
        numbers = np.zeros(len(self.document_ranges), np.int8)
        for number, side in enumerate(DOCUMENT_KINDS):
            if side in self.corpus.annotations():
                numbers[self.corpus.values_at(side, self.document_ranges[:, 0]) > 0] = number
        return numbers

    def documents_for(self, packing: str) -> CorpusSubset:
        """The documents that a packing can lay out: dialogues, queries with titles, or running text. In a corpus of
        pairs (source and target) there are no kinds: pairs also serve as text."""
        reads = packing_settings(packing).reads
        side = {"dialogues": ROLES, "pairs": RELEVANCE}.get(reads, PLAIN)
        known = set(self.corpus.annotations()) & {ROLES, RELEVANCE}
        if side not in known and (reads == "pairs" or side == PLAIN and not known):
            return self
        return CorpusSubset(self.corpus, self.document_ranges[self.document_kinds() == DOCUMENT_KINDS.index(side)])


def train_validation_split(corpus: Corpus, fraction: float, seed: int = 0) -> tuple[CorpusSubset, CorpusSubset]:
    """(training, validation): what the corpus itself holds out. Otherwise whole documents, of each kind as many as make
    the share; where there are only long ones, the last sentences of the longest; where those are single sentences, the
    shortest one."""
    bounds = CorpusSubset.all_documents(corpus).document_ranges
    groups = [group for group in corpus.manifest.get("groups", []) if group.get("held_out")]
    if groups:
        numbers = [np.arange(group["first"], group["first"] + group["documents"]) for group in groups]
        return _hold_out(corpus, bounds, np.concatenate(numbers))
    bounds = bounds[bounds[:, 1] > bounds[:, 0]]
    if (first := corpus.manifest.get("held_out_from")) is not None:
        return CorpusSubset(corpus, bounds[bounds[:, 0] < first]), CorpusSubset(corpus, bounds[bounds[:, 0] >= first])
    if fraction <= 0:
        return CorpusSubset(corpus, bounds), CorpusSubset(corpus, bounds[:0])
    kinds = CorpusSubset(corpus, bounds).document_kinds()
    parts = [_split(corpus, bounds[kinds == kind], fraction, seed) for kind in np.unique(kinds)]
    training, validation = (np.concatenate([view.document_ranges for view in views]) for views in zip(*parts,
                                                                                                      strict=True))
    return _sorted_subset(corpus, training), _sorted_subset(corpus, validation)


def _sorted_subset(corpus: Corpus, documents: np.ndarray) -> CorpusSubset:
    return CorpusSubset(corpus, documents[np.argsort(documents[:, 0])])


def _split(corpus: Corpus, bounds: np.ndarray, fraction: float, seed: int) -> tuple[CorpusSubset, CorpusSubset]:
    sizes = bounds[:, 1] - bounds[:, 0]
    wanted = max(1, round(fraction * sizes.sum()))
    order = np.random.default_rng([seed, 7]).permutation(len(bounds))
    order = order[sizes[order] <= max(wanted, sizes.sum() // MAX_DOCUMENT_SHARE)]
    chosen = order[:np.searchsorted(np.cumsum(sizes[order]), wanted) + 1]
    if 2 * sizes[chosen].sum() >= wanted and len(chosen) < len(bounds):
        return _hold_out(corpus, bounds, chosen)
    return _split_last(corpus, bounds, wanted)


def _hold_out(corpus: Corpus, bounds: np.ndarray, held_out: np.ndarray) -> tuple[CorpusSubset, CorpusSubset]:
    held = np.zeros(len(bounds), dtype=bool)
    held[held_out] = True
    return CorpusSubset(corpus, bounds[~held]), CorpusSubset(corpus, bounds[held])


def _split_last(corpus: Corpus, bounds: np.ndarray, num_tokens: int) -> tuple[CorpusSubset, CorpusSubset]:
    """Hold out the end of the longest document, from a sentence's start."""
    sizes = bounds[:, 1] - bounds[:, 0]
    longest = int(np.argmax(sizes))
    start, stop = bounds[longest]
    inside = corpus.sentence_starts[(corpus.sentence_starts > start) & (corpus.sentence_starts < stop)]
    inside = inside[inside >= start + (stop - start) // 2]
    if not len(inside):
        return _hold_out(corpus, bounds, np.argsort(sizes)[:min(1, len(sizes) - 1)])
    cut = inside[min(np.searchsorted(inside, stop - num_tokens), len(inside) - 1)]
    training = bounds.copy()
    training[longest, 1] = cut
    return CorpusSubset(corpus, training), CorpusSubset(corpus, np.array([[cut, stop]]))
