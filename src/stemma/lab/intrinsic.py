"""How well a model knows text it never saw, in bits per byte: a unit that no tokenizer can change.

A model that reads from one end gives a text a probability, token by token, and its bits add up over the whole text.

A masked one does not, but it can be asked for each word from the words around it: its pseudo-likelihood (Salazar et al.
2020, arXiv:1910.14659). The pieces of a word give each other away, so a word is hidden whole and guessed from left to
right: each piece with those before it shown and those after it hidden (Kauf and Ivanova 2023, arXiv:2305.10588). Words
are those of the raw text, between white space and each Chinese character by itself, and word number w of a document is
asked in pass w mod 7: whatever its tokenizer, a model is asked the same words together, with about as many hidden as it
learned with. XLNet is asked through its second stream, where nobody sees what is hidden.

What a model does not spell is charged at eight bits a byte: the text behind an unknown token, besides that token, and a
first token with nothing before it. So a poor vocabulary gains nothing, and every byte of every document is counted. One
thing stays: a vocabulary without capitals is asked for a simpler text than one that has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional

from stemma.exchange.model import Model
from stemma.generation.score import score_tokens
from stemma.generation.ways import longest_text, way_of, writes_from_source
from stemma.generation.windows import TextReader
from stemma.lab.continuation import WORDS, continuation_bits
from stemma.lab.experiment import Measure, Score
from stemma.network.heads import Head
from stemma.network.streams import QUERY
from stemma.schema.task import ObjectiveSettings
from stemma.tasks.layout import RowLayout
from stemma.text.words import WORD

BITS, PSEUDO, CONTINUATION = "bits_per_byte", "pseudo_bits_per_byte", "continuation_bits_per_byte"
MEASURES = {measure.key: measure for measure in (
    Measure(BITS, "bits of held-out text", "bits per byte", higher=False, margin=0.01,
            about="What every token of the held-out text costs, guessed from those before it, over the text's bytes."),
    Measure(PSEUDO, "pseudo-likelihood of held-out text", "bits per byte", higher=False, margin=0.01,
            about="What every word of the held-out text costs, one in seven hidden at a time and guessed from the "
                  "rest, over the text's bytes. Not to be compared with bits of guessing from one side; a vocabulary "
                  "without capitals is asked for a simpler text than one that has them."),
    Measure(CONTINUATION, "continuation of held-out text", "bits per byte", higher=False, margin=0.01,
            about=f"What the second half of every {WORDS} words of the held-out text costs, written from the first "
                  "half in the model's own way, over the bytes of those second halves. Not to be compared with bits of "
                  "whole texts: half of the text is given, and none of it is scored."))}
PASSES = 7  # one word in so many is hidden at once: 14%
# Pieces of a word that are guessed one by one; whatever is left is guessed together with the last of them, which costs
# it something: a bound, because every round reads again all rows that have so long a word.
ROUNDS = 4
BATCH_TOKENS = 4096  # read at one go; more gains nothing on a CPU
SCORED_AT_ONCE = 128  # places; with more their logits leave the processor's cache before they are added up
BYTE = 8.0  # bits

def held_out_score(model: Model, documents: Sequence[str]) -> dict[str, Score]:
    """What can be asked of this model, by the keys of MEASURES. Nothing of one that judges tokens (ELECTRA). Of one
    that only ever writes from a source (T5, BART, MASS, a prefix LM), how a text goes on: a text by itself has no
    probability there."""
    if "vocabulary" not in model.network.heads:
        return {}
    texts = _Texts.of(model, documents)
    found = {}
    if way_of(model.recipe) in ("next", "permuted") and not writes_from_source(model.recipe):
        found[BITS] = texts.score(_read_through(model, texts))
    if (task := _asked_by(model)) is not None:
        found[PSEUDO] = texts.score(_ask_words(model, task, texts))
    if not found and writes_from_source(model.recipe):
        bits, sizes = continuation_bits(model, documents)
        asked = [(float(bit), float(size)) for bit, size in zip(bits, sizes, strict=True)]
        if sizes.sum():
            found[CONTINUATION] = Score(float(bits.sum() / sizes.sum()), tuple(asked))
    return found


@dataclass(frozen=True)
class _Texts:
    """Documents, as text and as this model's tokens."""

    texts: list[str]
    encodings: list[Encoding]
    sizes: list[int]  # bytes

    @classmethod
    def of(cls, model: Model, documents: Sequence[str]) -> _Texts:
        tokenizer = model.needs_tokenizer()
        prepared = [tokenizer.prepare(text) for text in documents]
        return cls(prepared, tokenizer.encode_batch(documents, special=False), [len(one.encode()) for one in documents])

    def ids(self) -> list[np.ndarray]:
        return [np.array(encoding.ids, np.int64) for encoding in self.encodings]

    def unspelt(self, number: int, tokens: np.ndarray) -> float:
        """The bits of the text behind these tokens of a document, for whoever cannot spell it."""
        offsets = self.encodings[number].offsets
        return BYTE * sum(len(self.texts[number][slice(*offsets[token])].encode()) for token in tokens.nonzero()[0])

    def score(self, bits: np.ndarray) -> Score:
        parts = tuple(zip(bits.tolist(), map(float, self.sizes), strict=True))
        return Score(float(bits.sum()) / max(1, sum(self.sizes)), parts)


def _read_through(model: Model, texts: _Texts) -> np.ndarray:
    """(documents,) bits of every token, guessed from those before it."""
    unknown = model.needs_tokenizer().roles.get("unknown", -1)
    ids = texts.ids()
    found = []
    for number, values in enumerate(score_tokens(TextReader(model), ids)):
        charged = np.isnan(values) | (ids[number] == unknown)
        found.append(-np.nansum(values, dtype=np.float64) / math.log(2) + texts.unspelt(number, charged))
    return np.array(found)


def _asked_by(model: Model) -> ObjectiveSettings | None:
    """The task by which the model learned to guess what is hidden from both sides; None: it did not."""
    if model.decodes:
        return None
    tasks = model.recipe.settings.objective.values()
    return next((task for task in tasks if task.guesses_from_both_sides), None)


def word_of_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """(tokens,) the word of the raw text that each belongs to. White space belongs to the word behind it. Words that
    share a token are one, under the number of the first."""
    ends = np.array([found.end() for found in WORD.finditer(text)] or [len(text)])
    places = np.array(offsets, np.int64).reshape(-1, 2)
    starts = np.maximum.accumulate(places[:, 0])  # pieces of one character may be reported out of order
    last = np.maximum(places[:, 1] - 1, starts)
    first, last = (np.searchsorted(ends, place, side="right").clip(max=len(ends) - 1) for place in (starts, last))
    reached = np.zeros(len(ends) + 1, np.int64)
    np.add.at(reached, first + 1, 1)
    np.add.at(reached, last + 1, -1)
    shared = np.cumsum(reached[:-1]) > 0  # a token reaches into this word from the one before
    word: np.ndarray = np.maximum.accumulate(np.where(shared, 0, np.arange(len(ends))))[first]
    return word


@dataclass(frozen=True)
class _Rows:
    """Documents as rows of the model's own layout, filled up on the right. No word is in two rows if it fits one."""

    ids: np.ndarray  # (R, L), as the rest
    segments: np.ndarray
    turn: np.ndarray  # the pass in which a place is hidden; -1 where no text stands
    piece: np.ndarray  # which piece of its word it is, from 0
    pieces: np.ndarray  # how many there are
    lengths: np.ndarray  # (R,)
    document: np.ndarray  # (R,)

    @classmethod
    def of(cls, layout: RowLayout, texts: _Texts) -> _Rows:
        cuts = [(number, words[part], ids[part]) for number, ids in enumerate(texts.ids())
                for words in [word_of_tokens(texts.texts[number], texts.encodings[number].offsets)]
                for part in _cut(words, layout.room(1))]
        length = max((len(ids) for *_, ids in cuts), default=0) + layout.longest - layout.room(1)
        nothing = np.zeros((len(cuts), length), np.int64)
        made = cls(nothing, nothing.copy(), nothing - 1, nothing.copy(), nothing.copy(), nothing[:, 0].copy(),
                   nothing[:, 0].copy())
        for row, (number, words, ids) in enumerate(cuts):
            laid = layout.row([ids.tolist()])
            ((first, count),) = laid.parts
            made.lengths[row], made.document[row] = len(laid.ids), number
            made.ids[row, : len(laid.ids)], made.segments[row, : len(laid.ids)] = laid.ids, laid.segments
            begins = np.flatnonzero(np.diff(words, prepend=-1))
            pieces = np.diff(begins, append=count)
            made.turn[row, first:first + count] = words % PASSES
            made.piece[row, first:first + count] = np.arange(count) - np.repeat(begins, pieces)
            made.pieces[row, first:first + count] = np.repeat(pieces, pieces)
        return made

    def questions(self) -> np.ndarray:
        """(N, 3) row, pass and round: as many rounds as the longest of the words has pieces; long rows first."""
        asked = np.zeros((len(self.ids), PASSES), np.int64)
        row, place = np.nonzero(self.turn >= 0)
        np.maximum.at(asked, (row, self.turn[row, place]), self.pieces[row, place])
        found = np.argwhere(np.arange(ROUNDS) < asked[..., None])
        return found[np.argsort(-self.lengths[found[:, 0]], kind="stable")]

    def lay(self, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, L) ids of the rows that are asked, which of them are hidden, and which of those are to be guessed."""
        place = np.s_[asked[:, 0], : self.lengths[asked[:, 0]].max()]
        chosen, now = self.turn[place] == asked[:, 1:2], asked[:, 2:]
        piece, pieces = self.piece[place], self.pieces[place]
        # a word that has been guessed is hidden again: a word of many pieces is to see no more of the others
        hidden = chosen & ((piece >= now) | (pieces <= now))
        return self.ids[place], hidden, chosen & ((piece == now) | ((now == ROUNDS - 1) & (piece > now)))


def _cut(words: np.ndarray, room: int) -> Iterator[slice]:
    """Stretches of at most so many tokens, cut between words; a word that is longer is cut where it must be."""
    start = 0
    while start < len(words):
        stop = min(start + room, len(words))
        if stop < len(words) and words[stop] == words[stop - 1]:
            begin = int(np.searchsorted(words, words[stop]))
            stop = begin if begin > start else stop
        yield slice(start, stop)
        start = stop


def _ask_words(model: Model, task: ObjectiveSettings, texts: _Texts) -> np.ndarray:
    """(documents,) bits of every word, guessed from the words around it."""
    tokenizer, corpus = model.needs_tokenizer(), model.recipe.settings.corpus
    layout = RowLayout(tokenizer, task.single or corpus.single, task.pair or corpus.pair,
                       longest_text(model) or corpus.sequence_length)
    rows = _Rows.of(layout, texts)
    unknown = tokenizer.roles.get("unknown", -1)
    bits = np.array([texts.unspelt(number, ids == unknown) for number, ids in enumerate(texts.ids())])
    model = model.in_eval_mode()
    with torch.inference_mode():
        for asked in _batches(rows):
            ids, hidden, scored = rows.lay(asked)
            real = np.arange(ids.shape[1]) < rows.lengths[asked[:, :1]]
            segments = rows.segments[asked[:, 0], : ids.shape[1]]
            states = _guesses(model, task, *map(torch.from_numpy, (ids, segments, real, hidden, scored)))
            nats = _nats(model.token_head(), states, torch.from_numpy(ids[scored]))
            owners = np.repeat(rows.document[asked[:, 0]], scored.sum(1))
            np.add.at(bits, owners, nats.double().numpy() / math.log(2))
    return bits


def _batches(rows: _Rows) -> Iterator[np.ndarray]:
    questions, start = rows.questions(), 0
    while start < len(questions):
        stop = start + max(1, BATCH_TOKENS // int(rows.lengths[questions[start, 0]]))
        yield questions[start:stop]
        start = stop


def _guesses(model: Model, task: ObjectiveSettings, ids: Tensor, segments: Tensor, real: Tensor, hidden: Tensor,
             scored: Tensor) -> Tensor:
    """(B, L) each -> (N, width) from which the scored places are guessed, row by row."""
    if task.visibility == "permuted":  # what is hidden is filling to everybody, and a query stands at each place
        counts = scored.sum(1)
        asking = torch.arange(int(counts.max())) < counts[:, None]
        places = torch.zeros(asking.shape, dtype=torch.int64)
        places[asking] = scored.nonzero()[:, 1]
        stream = model.inputs_of(ids, real & ~hidden, segments)
        return model.network({"encoder": replace(stream, query=places.to(model.device))})[QUERY][asking]
    stream = model.inputs_of(ids.masked_fill(hidden, model.needs_tokenizer().role("mask")), real, segments)
    wanted = scored.flatten().nonzero()[:, 0].to(model.device)
    return model.network({"encoder": replace(stream, wanted=wanted)})["encoder"].flatten(0, 1)[wanted]


def _nats(head: Head, states: Tensor, labels: Tensor) -> Tensor:
    """(N, width), (N,) -> (N,); some rows of logits at a time, while they are still at hand."""
    return torch.cat([functional.cross_entropy(head(some).float(), right.to(some.device), reduction="none").cpu()
                      for some, right in zip(torch.split(states, SCORED_AT_ONCE), torch.split(labels, SCORED_AT_ONCE),
                                          strict=True)])
