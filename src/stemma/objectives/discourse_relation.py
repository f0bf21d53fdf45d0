"""Discourse relation: predict the connective ("however", "for example") removed from the start of B
(ERNIE 2.0, arXiv:1907.12412, section 4.2.3, after arXiv:1803.10218).

Sentences that start with a connective are rare, so every row is built from one of them and the sentence before it. An
index of these sentences is built once per corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from stemma.corpus.row_spans import RowSpans
from stemma.corpus.subset import CorpusSubset
from stemma.objectives.classifiers import RowClassification
from stemma.objectives.connectives import CONNECTIVES
from stemma.registry import register
from stemma.schema import base
from stemma.schema.corpus import neighboring_pair_packings
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from stemma.corpus.corpus import Corpus
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.text.tokenizer import Tokenizer

COMMAS = ("", ",", "，")
SPACES = " ▁Ġ"  # the space marks of tokenizers
SCAN_SENTENCES = 1 << 20  # sentences scanned at once


@dataclass(frozen=True)
class ConnectiveMatches:
    """Sentences that start with a connective and follow another sentence of their document, one entry each."""

    sentence: np.ndarray  # index of the sentence in the corpus
    num_tokens: np.ndarray  # tokens of the connective, including a comma after it
    label: np.ndarray  # index of the connective

    def __getitem__(self, index: np.ndarray) -> ConnectiveMatches:
        return ConnectiveMatches(self.sentence[index], self.num_tokens[index], self.label[index])


Connectives = Annotated[list[str], base.constraint(
    lambda words: len({word.strip() for word in words} - {""}) == len(words), "must be words, each of them once")]


class DiscourseRelationSettings(ObjectiveSettings):
    """ERNIE 2.0: predict the connective that was removed from the start of B."""

    kind: Literal["discourse_relation"]
    connectives: Connectives = []  # empty = the built-in English and Chinese ones

    rearranges_text = True
    attention_mask: ClassVar[AttentionMaskKind] = "full"

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return neighboring_pair_packings()


@register("objective", "discourse_relation", DiscourseRelationSettings)
class DiscourseRelation(RowClassification):
    settings: DiscourseRelationSettings
    needs_several_sentences = True

    def __init__(self, name: str, settings: DiscourseRelationSettings):
        super().__init__(name, settings)
        self.connectives = tuple(settings.connectives) or CONNECTIVES
        self.classes = len(self.connectives)
        self._matches_by_subset: list[tuple[CorpusSubset, ConnectiveMatches]] = []

    def missing_data(self, corpus: Corpus) -> str | None:
        if missing := super().missing_data(corpus):
            return missing
        classes = len(self._labels_in(corpus))
        if classes >= 2:
            return None
        return (f"{'only one' if classes else 'none'} of its {self.classes} connectives begins a sentence of this "
                f"corpus that follows another; name others with objective.{self.name}.connectives")

    def corpus_settings(self, corpus: Corpus) -> dict[str, Any]:
        """Fix the classes to the built-in connectives that occur in the corpus: the head must not change when the
        built-in list grows."""
        if self.settings.connectives:
            return {}
        return {"connectives": [self.connectives[label] for label in self._labels_in(corpus)]}

    def _labels_in(self, corpus: Corpus) -> np.ndarray:
        """The labels that occur in the corpus, in ascending order."""
        documents = CorpusSubset.all_documents(corpus).documents_for("segment_pair")
        return np.unique(self._matches_in_subset(documents).label)

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """A is the sentence before; B is the sentence without its connective."""
        matches = self._matches_in_subset(draft.subset)
        uniform = rng.random((draft.rows, 1))[:, 0]
        labels = np.full(draft.rows, -1, dtype=np.int64)
        if len(matches.sentence):
            sentences = draft.corpus.sentence_starts
            match = matches[(uniform * len(matches.sentence)).astype(np.int64)]
            start_a, start, stop = (sentences[match.sentence + step] for step in (-1, 0, 1))
            start_b = start + match.num_tokens
            draft.spans = RowSpans(
                draft.rows, np.repeat(np.arange(draft.rows), 2), np.stack([start_a, start_b], axis=1).reshape(-1),
                np.stack([start - start_a, stop - start_b], axis=1).reshape(-1),
                np.tile(np.array([0, 1], np.int8), draft.rows), np.zeros(2 * draft.rows, bool))
            labels = match.label
        draft.spans.truncate_pairs(draft.template.capacity(pair=True), rng)
        draft.add_row_labels(self.name, labels)

    def _matches_in_subset(self, subset: CorpusSubset) -> ConnectiveMatches:
        """The matches inside these documents, computed once per subset."""
        for cached_subset, matches in self._matches_by_subset:
            if cached_subset is subset:
                return matches
        matches = find_connectives(subset.corpus, self.connectives)
        sentences = subset.corpus.sentence_starts
        document_starts, document_stops = subset.document_ranges.T
        document = np.searchsorted(document_starts, sentences[matches.sentence], side="right") - 1
        inside = (document >= 0) & (sentences[matches.sentence - 1] >= document_starts[document]) & (
            sentences[matches.sentence] < document_stops[document])
        self._matches_by_subset.append((subset, matches[inside]))
        return matches[inside]


_MATCHES: WeakKeyDictionary[Corpus, dict[tuple[str, ...], ConnectiveMatches]] = WeakKeyDictionary()


def find_connectives(corpus: Corpus, connectives: tuple[str, ...]) -> ConnectiveMatches:
    """Every sentence of the corpus that starts with one of these connectives (cached per corpus)."""
    cache = _MATCHES.setdefault(corpus, {})
    if connectives not in cache:
        spellings = list(_spellings(corpus.tokenizer, connectives))
        parts = [_search(corpus, spellings, first)
                 for first in range(1, len(corpus.sentence_starts) - 1, SCAN_SENTENCES)]
        cache[connectives] = ConnectiveMatches(
            *(np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
              for name in ("sentence", "num_tokens", "label")))
    return cache[connectives]


def _spellings(tokenizer: Tokenizer, connectives: Sequence[str]) -> Iterator[tuple[np.ndarray, int]]:
    """Token sequences of each connective at the start of a sentence, with its label: with and without a capital, a
    space before and a comma after. The longest come first: "in short" before "in"."""
    labels: dict[tuple[int, ...], int] = {}
    unknown = tokenizer.special_token_ids.get("unknown")
    for label, connective in enumerate(connectives):
        for word in (connective, connective[:1].upper() + connective[1:]):
            texts = [f"{space}{word}{comma}" for space in ("", " ") for comma in COMMAS]
            for encoding in tokenizer.encode_batch(texts, special=False):
                ids, tokens = encoding.ids, encoding.tokens
                if tokens and not tokens[0].strip(SPACES):  # a separate space token belongs to the sentence before
                    ids = ids[1:]
                if ids and unknown not in ids:  # an unknown token would match anything
                    labels.setdefault(tuple(ids), label)
    for spelling in sorted(labels, key=len, reverse=True):
        yield np.array(spelling, np.int32), labels[spelling]


def _search(corpus: Corpus, spellings: list[tuple[np.ndarray, int]], first: int) -> ConnectiveMatches:
    """The matches among `SCAN_SENTENCES` sentences from index `first` on."""
    sentence = np.arange(first, min(first + SCAN_SENTENCES, len(corpus.sentence_starts) - 1))
    start, stop = corpus.sentence_starts[sentence], corpus.sentence_starts[sentence + 1]
    follows = ~np.isin(start, corpus.document_starts)
    sentence, start, stop = sentence[follows], start[follows], stop[follows]
    likely = np.isin(corpus.values_at("tokens", start), [tokens[0] for tokens, _ in spellings])
    sentence, start, stop = sentence[likely], start[likely], stop[likely]
    longest = max((len(tokens) for tokens, _ in spellings), default=0)
    offsets = np.minimum(start[:, None] + np.arange(longest + 1), corpus.num_tokens - 1)
    tokens, word_starts = corpus.values_at("tokens", offsets), corpus.values_at("word_starts", offsets)
    num_tokens, label = np.zeros(len(sentence), np.int64), np.zeros(len(sentence), np.int64)
    for spelling, connective in spellings:
        size = len(spelling)
        ends_a_word = word_starts[:, size] | (start + size >= stop)
        matches = (num_tokens == 0) & ends_a_word & (tokens[:, :size] == spelling).all(axis=1)
        num_tokens[matches], label[matches] = size, connective
    not_empty = start + num_tokens < stop  # B has tokens besides the connective
    return ConnectiveMatches(sentence, num_tokens, label)[(num_tokens > 0) & not_empty]
