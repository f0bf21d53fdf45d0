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

from stemma.corpus.pieces import Pieces
from stemma.corpus.view import View
from stemma.objectives.classifiers import RowClassifier
from stemma.objectives.connectives import CONNECTIVES
from stemma.registry import register
from stemma.schema import base
from stemma.schema.corpus import neighbours
from stemma.schema.task import ObjectiveSettings, Sees

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.randomness import Randomness
    from stemma.corpus.shards import Corpus
    from stemma.text.tokenizer import Tokenizer

COMMAS = ("", ",", "，")
SPACES = " ▁Ġ"  # as tokenizers write a space
AT_ONCE = 1 << 20  # sentences that are looked through


@dataclass(frozen=True)
class Found:
    """Sentences that follow another one of their document and begin with a connective, one entry each."""

    number: np.ndarray  # of the sentence in the corpus
    skip: np.ndarray  # tokens that the connective takes up, with a comma behind it
    label: np.ndarray  # which connective

    def __getitem__(self, chosen: np.ndarray) -> Found:
        return Found(self.number[chosen], self.skip[chosen], self.label[chosen])


Connectives = Annotated[list[str], base.limit(lambda words: len({word.strip() for word in words} - {""}) == len(words),
                                              "must be words, each of them once")]


class DiscourseRelationSettings(ObjectiveSettings):
    """ERNIE 2.0: B began with a connective, which was taken away; which one was it?"""

    kind: Literal["discourse_relation"]
    connectives: Connectives = []  # empty = the built-in English and Chinese ones

    rearranges = True
    sees: ClassVar[Sees] = "full"

    @property
    def needs_packing(self) -> tuple[str, ...]:
        return neighbours()


@register("objective", "discourse_relation", DiscourseRelationSettings)
class DiscourseRelation(RowClassifier):
    settings: DiscourseRelationSettings
    needs_sentences = True

    def __init__(self, name: str, settings: DiscourseRelationSettings):
        super().__init__(name, settings)
        self.connectives = tuple(settings.connectives) or CONNECTIVES
        self.classes = len(self.connectives)
        self._views: list[tuple[View, Found]] = []

    def lacks(self, corpus: Corpus) -> str | None:
        if missing := super().lacks(corpus):
            return missing
        classes = len(np.unique(self._in_view(View.whole(corpus).read_by("segment_pair")).label))
        if classes >= 2:
            return None
        return (f"{'only one' if classes else 'none'} of its {self.classes} connectives begins a sentence of this "
                f"corpus that follows another; name others with objective.{self.name}.connectives")

    def settles(self, corpus: Corpus) -> dict[str, Any]:
        """Of the built-in connectives, those that the corpus has: the classes of a trained head must not follow our
        list as that grows."""
        if self.settings.connectives:
            return {}
        present = np.unique(self._in_view(View.whole(corpus).read_by("segment_pair")).label)
        return {"connectives": [self.connectives[number] for number in present]}

    def corrupt(self, draft: Draft, rng: Randomness) -> None:
        """A is the sentence before, B what is left of the one that began with the connective."""
        found = self._in_view(draft.view)
        drawn = rng.random((draft.rows, 1))[:, 0]
        labels = np.full(draft.rows, -1, dtype=np.int64)
        if len(found.number):
            sentences = draft.corpus.sentences
            chosen = found[(drawn * len(found.number)).astype(np.int64)]
            before, start, stop = (sentences[chosen.number + step] for step in (-1, 0, 1))
            start_b = start + chosen.skip
            draft.pieces = Pieces(
                draft.rows, np.repeat(np.arange(draft.rows), 2), np.stack([before, start_b], axis=1).reshape(-1),
                np.stack([start - before, stop - start_b], axis=1).reshape(-1),
                np.tile(np.array([0, 1], np.int8), draft.rows), np.zeros(2 * draft.rows, bool))
            labels = chosen.label
        draft.pieces.truncate_pairs(draft.layout.capacity(pair=True), rng)
        draft.label(self.name, labels)

    def _in_view(self, view: View) -> Found:
        """What of the corpus belongs to these documents; a view is looked through once."""
        for known, found in self._views:
            if known is view:
                return found
        found = find(view.corpus, self.connectives)
        sentences = view.corpus.sentences
        begins, ends = view.documents.T
        document = np.searchsorted(begins, sentences[found.number], side="right") - 1
        inside = (document >= 0) & (sentences[found.number - 1] >= begins[document]) & (
            sentences[found.number] < ends[document])
        self._views.append((view, found[inside]))
        return found[inside]


_FOUND: WeakKeyDictionary[Corpus, dict[tuple[str, ...], Found]] = WeakKeyDictionary()


def find(corpus: Corpus, connectives: tuple[str, ...]) -> Found:
    """Every sentence of the corpus that begins with one of these; asked a second time, the answer is at hand."""
    known = _FOUND.setdefault(corpus, {})
    if connectives not in known:
        spellings = list(_spellings(corpus.tokenizer, connectives))
        parts = [_search(corpus, spellings, first) for first in range(1, len(corpus.sentences) - 1, AT_ONCE)]
        known[connectives] = Found(*(np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
                                     for name in ("number", "skip", "label")))
    return known[connectives]


def _spellings(tokenizer: Tokenizer, connectives: Sequence[str]) -> Iterator[tuple[np.ndarray, int]]:
    """The tokens that each connective may be at a sentence's beginning, and its number: with and without a capital, the
    space before and the comma behind; the longest first: "in short" is more than "in"."""
    spelt: dict[tuple[int, ...], int] = {}
    unknown = tokenizer.roles.get("unknown")
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


def _search(corpus: Corpus, spellings: list[tuple[np.ndarray, int]], first: int) -> Found:
    """Among some sentences, from number `first` on."""
    number = np.arange(first, min(first + AT_ONCE, len(corpus.sentences) - 1))
    start, stop = corpus.sentences[number], corpus.sentences[number + 1]
    follows = ~np.isin(start, corpus.documents)
    number, start, stop = number[follows], start[follows], stop[follows]
    likely = np.isin(corpus.take("tokens", start), [tokens[0] for tokens, _ in spellings])
    number, start, stop = number[likely], start[likely], stop[likely]
    longest = max((len(tokens) for tokens, _ in spellings), default=0)
    places = np.minimum(start[:, None] + np.arange(longest + 1), corpus.tokens - 1)
    tokens, word_starts = corpus.take("tokens", places), corpus.take("word_starts", places)
    skip, label = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
    for spelling, connective in spellings:
        size = len(spelling)
        ends_a_word = word_starts[:, size] | (start + size >= stop)
        fits = (skip == 0) & ends_a_word & (tokens[:, :size] == spelling).all(axis=1)
        skip[fits], label[fits] = size, connective
    return Found(number, skip, label)[(skip > 0) & (start + skip < stop)]  # something is left to be asked about
