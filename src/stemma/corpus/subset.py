"""A subset of a corpus's documents, such as the training or the validation split.

A corpus may have several kinds of documents: plain text, dialogues (annotation `roles`), and queries with titles
(annotation `relevance`). The annotation of its first token decides a document's kind. A packing uses one kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.text_batches import RELEVANCE, ROLES
from stemma.schema.corpus import packing_settings
from stemma.text.holdout import LARGE_DOCUMENT_DIVISOR

PLAIN = "running"  # plain text: neither of the other two
DOCUMENT_KINDS = (PLAIN, ROLES, RELEVANCE)


@dataclass(frozen=True)
class CorpusSubset:
    """Documents of a corpus as (D, 2) token offsets, start and end of each."""

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
        """Sentence bounds of one document, including its start and end."""
        start, stop = self.document_ranges[document]
        sentences = self.corpus.sentence_starts
        inner = sentences[np.searchsorted(sentences, start, side="right"):np.searchsorted(sentences, stop)]
        return np.concatenate([[start], inner, [stop]])

    def document_text(self, document: int) -> str:
        """Text of one document; a subset may contain only a part of it."""
        start, stop = self.document_ranges[document]
        corpus_document = int(np.searchsorted(self.corpus.document_starts, start, side="right")) - 1
        document_start, document_stop = self.corpus.document_starts[corpus_document:corpus_document + 2]
        first_char = int(self.corpus.values_between("starts", start, start + 1)[0]) if start > document_start else 0
        stop_char = int(self.corpus.values_between("starts", stop, stop + 1)[0]) if stop < document_stop else None
        return self.corpus.document_text(corpus_document)[first_char:stop_char]

    def document_kinds(self) -> np.ndarray:
        """(D,) index of each document's kind in DOCUMENT_KINDS."""
        kinds = np.zeros(len(self.document_ranges), np.int8)
        for index, annotation in enumerate(DOCUMENT_KINDS):
            if annotation in self.corpus.annotations():
                kinds[self.corpus.values_at(annotation, self.document_ranges[:, 0]) > 0] = index
        return kinds

    def documents_for(self, packing: str) -> CorpusSubset:
        """The documents that a packing uses: dialogues, queries with titles, or plain text. A corpus of pairs (source
        and target) has no kinds: its pairs also serve as plain text."""
        reads = packing_settings(packing).reads
        kind = {"dialogues": ROLES, "pairs": RELEVANCE}.get(reads, PLAIN)
        present = set(self.corpus.annotations()) & {ROLES, RELEVANCE}
        if kind not in present and (reads == "pairs" or kind == PLAIN and not present):
            return self
        return CorpusSubset(self.corpus, self.document_ranges[self.document_kinds() == DOCUMENT_KINDS.index(kind)])


def train_validation_split(corpus: Corpus, fraction: float, seed: int = 0) -> tuple[CorpusSubset, CorpusSubset]:
    """(training, validation). Uses the corpus's own held-out documents, if it has any. Otherwise holds out `fraction`
    of the tokens of each kind, as whole documents; if all documents are too long, the last sentences of the longest;
    if that is a single sentence, the shortest document."""
    bounds = CorpusSubset.all_documents(corpus).document_ranges
    groups = [group for group in corpus.manifest.get("groups", []) if group.get("held_out")]
    if groups:
        indices = [np.arange(group["first"], group["first"] + group["documents"]) for group in groups]
        return _hold_out(corpus, bounds, np.concatenate(indices))
    bounds = bounds[bounds[:, 1] > bounds[:, 0]]
    if (first := corpus.manifest.get("held_out_from")) is not None:
        return CorpusSubset(corpus, bounds[bounds[:, 0] < first]), CorpusSubset(corpus, bounds[bounds[:, 0] >= first])
    if fraction <= 0:
        return CorpusSubset(corpus, bounds), CorpusSubset(corpus, bounds[:0])
    kinds = CorpusSubset(corpus, bounds).document_kinds()
    parts = [_split(corpus, bounds[kinds == kind], fraction, seed) for kind in np.unique(kinds)]
    training, validation = (np.concatenate([subset.document_ranges for subset in subsets])
                            for subsets in zip(*parts, strict=True))
    return _sorted_subset(corpus, training), _sorted_subset(corpus, validation)


def _sorted_subset(corpus: Corpus, documents: np.ndarray) -> CorpusSubset:
    return CorpusSubset(corpus, documents[np.argsort(documents[:, 0])])


def _split(corpus: Corpus, bounds: np.ndarray, fraction: float, seed: int) -> tuple[CorpusSubset, CorpusSubset]:
    sizes = bounds[:, 1] - bounds[:, 0]
    num_tokens = max(1, round(fraction * sizes.sum()))
    order = np.random.default_rng([seed, 7]).permutation(len(bounds))
    order = order[sizes[order] <= max(num_tokens, sizes.sum() // LARGE_DOCUMENT_DIVISOR)]
    selected = order[:np.searchsorted(np.cumsum(sizes[order]), num_tokens) + 1]
    if 2 * sizes[selected].sum() >= num_tokens and len(selected) < len(bounds):
        return _hold_out(corpus, bounds, selected)
    return _split_last(corpus, bounds, num_tokens)


def _hold_out(corpus: Corpus, bounds: np.ndarray, held_out: np.ndarray) -> tuple[CorpusSubset, CorpusSubset]:
    mask = np.zeros(len(bounds), dtype=bool)
    mask[held_out] = True
    return CorpusSubset(corpus, bounds[~mask]), CorpusSubset(corpus, bounds[mask])


def _split_last(corpus: Corpus, bounds: np.ndarray, num_tokens: int) -> tuple[CorpusSubset, CorpusSubset]:
    """Hold out the end of the longest document, from the start of a sentence on."""
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
