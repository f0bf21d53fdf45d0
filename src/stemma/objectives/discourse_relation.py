"""Discourse relation: B began with "however" or "for example", which was taken away; which was it?
(ERNIE 2.0, arXiv:1907.12412, section 4.2.3, after arXiv:1803.10218)

Sentences that begin so are few, so rows are not waited for: every row is filled with one of them and the sentence
before. They are found once, by the tokens that sentences begin with.
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
SPACES = " ▁Ġ"  # as tokenizers write a space
SCAN_SENTENCES = 1 << 20  # sentences that are looked through


@dataclass(frozen=True)
class ConnectiveMatches:
    """Sentences that follow another one of their document and begin with a connective, one entry each."""

    sentence: np.ndarray  # of the sentence in the corpus
    num_tokens: np.ndarray  # tokens that the connective takes up, with a comma behind it
    label: np.ndarray  # which connective

    def __getitem__(self, index: np.ndarray) -> ConnectiveMatches:
        return ConnectiveMatches(self.sentence[index], self.num_tokens[index], self.label[index])


Connectives = Annotated[list[str], base.constraint(lambda words: len({word.strip() for word in words} - {""})
                                                   == len(words),
                                              "must be words, each of them once")]


class DiscourseRelationSettings(ObjectiveSettings):
    """ERNIE 2.0: B began with a connective, which was taken away; which one was it?"""

    kind: Literal["discourse_relation"]
    connectives: Connectives = []  # empty = the built-in English and Chinese ones

    rearranges_text = True
    sees: ClassVar[AttentionMaskKind] = "full"

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
        classes = len(np.unique(self._matches_in_subset(CorpusSubset.all_documents(corpus).documents_for("segment_pair")).label))
        if classes >= 2:
            return None
        return (f"{'only one' if classes else 'none'} of its {self.classes} connectives begins a sentence of this "
                f"corpus that follows another; name others with objective.{self.name}.connectives")

    def corpus_settings(self, corpus: Corpus) -> dict[str, Any]:
        """Of the built-in connectives, those that the corpus has: the classes of a trained head must not follow our
        list as that grows."""
        if self.settings.connectives:
            return {}
        present = np.unique(self._matches_in_subset(CorpusSubset.all_documents(corpus).documents_for("segment_pair")).label)
        return {"connectives": [self.connectives[number] for number in present]}

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """A is the sentence before, B what is left of the one that began with the connective."""
        found = self._matches_in_subset(draft.subset)
        drawn = rng.random((draft.rows, 1))[:, 0]
        labels = np.full(draft.rows, -1, dtype=np.int64)
        if len(found.sentence):
            sentences = draft.corpus.sentence_starts
            chosen = found[(drawn * len(found.sentence)).astype(np.int64)]
            before, start, stop = (sentences[chosen.sentence + step] for step in (-1, 0, 1))
            start_b = start + chosen.num_tokens
            draft.spans = RowSpans(
                draft.rows, np.repeat(np.arange(draft.rows), 2), np.stack([before, start_b], axis=1).reshape(-1),
                np.stack([start - before, stop - start_b], axis=1).reshape(-1),
                np.tile(np.array([0, 1], np.int8), draft.rows), np.zeros(2 * draft.rows, bool))
            labels = chosen.label
        draft.spans.truncate_pairs(draft.template.capacity(pair=True), rng)
        draft.add_row_labels(self.name, labels)

    def _matches_in_subset(self, subset: CorpusSubset) -> ConnectiveMatches:
        """What of the corpus belongs to these documents; a view is looked through once."""
        for known, found in self._matches_by_subset:
            if known is subset:
                return found
        found = find_connectives(subset.corpus, self.connectives)
        sentences = subset.corpus.sentence_starts
        begins, ends = subset.document_ranges.T
        document = np.searchsorted(begins, sentences[found.sentence], side="right") - 1
        inside = (document >= 0) & (sentences[found.sentence - 1] >= begins[document]) & (
            sentences[found.sentence] < ends[document])
        self._matches_by_subset.append((subset, found[inside]))
        return found[inside]


_MATCHES: WeakKeyDictionary[Corpus, dict[tuple[str, ...], ConnectiveMatches]] = WeakKeyDictionary()


def find_connectives(corpus: Corpus, connectives: tuple[str, ...]) -> ConnectiveMatches:
    """Every sentence of the corpus that begins with one of these; asked a second time, the answer is at hand."""
    known = _MATCHES.setdefault(corpus, {})
    if connectives not in known:
        spellings = list(_spellings(corpus.tokenizer, connectives))
        parts = [_search(corpus, spellings, first) for first in range(1, len(corpus.sentence_starts) - 1,
                                                                      SCAN_SENTENCES)]
        known[connectives] = ConnectiveMatches(*(np.concatenate([np.zeros(0, np.int64),
                                                                 *(getattr(part, name) for part in parts)])
                                     for name in ("sentence", "num_tokens", "label")))
    return known[connectives]


def _spellings(tokenizer: Tokenizer, connectives: Sequence[str]) -> Iterator[tuple[np.ndarray, int]]:
    """The tokens that each connective may be at a sentence's beginning, and its number: with and without a capital, the
    space before and the comma behind; the longest first: "in short" is more than "in"."""
    spelt: dict[tuple[int, ...], int] = {}
    unknown = tokenizer.special_token_ids.get("unknown")
    for label, connective in enumerate(connectives):
        for word in (connective, connective[:1].upper() + connective[1:]):
            texts = [f"{space}{word}{comma}" for space in ("", " ") for comma in COMMAS]
            for encoding in tokenizer.encode_batch(texts, special=False):
                ids, tokens = encoding.ids, encoding.tokens
                if tokens and not tokens[0].strip(SPACES):  # a space alone belongs to the sentence before
                    ids = ids[1:]
                if ids and unknown not in ids:  # which stands for anything
                    spelt.setdefault(tuple(ids), label)
    for spelling in sorted(spelt, key=len, reverse=True):
        yield np.array(spelling, np.int32), spelt[spelling]


def _search(corpus: Corpus, spellings: list[tuple[np.ndarray, int]], first: int) -> ConnectiveMatches:
    """Among some sentences, from number `first` on."""
    number = np.arange(first, min(first + SCAN_SENTENCES, len(corpus.sentence_starts) - 1))
    start, stop = corpus.sentence_starts[number], corpus.sentence_starts[number + 1]
    follows = ~np.isin(start, corpus.document_starts)
    number, start, stop = number[follows], start[follows], stop[follows]
    likely = np.isin(corpus.values_at("tokens", start), [tokens[0] for tokens, _ in spellings])
    number, start, stop = number[likely], start[likely], stop[likely]
    longest = max((len(tokens) for tokens, _ in spellings), default=0)
    places = np.minimum(start[:, None] + np.arange(longest + 1), corpus.num_tokens - 1)
    tokens, word_starts = corpus.values_at("tokens", places), corpus.values_at("word_starts", places)
    skip, label = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
    for spelling, connective in spellings:
        size = len(spelling)
        ends_a_word = word_starts[:, size] | (start + size >= stop)
        fits = (skip == 0) & ends_a_word & (tokens[:, :size] == spelling).all(axis=1)
        skip[fits], label[fits] = size, connective
    return ConnectiveMatches(number, skip, label)[(skip > 0) & (start + skip < stop)]  # something is left to be asked
    #                                                                                    about
