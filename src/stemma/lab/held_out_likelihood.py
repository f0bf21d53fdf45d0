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

from stemma.evaluation.likelihood import score_tokens
from stemma.evaluation.lm_scorer import LMScorer
from stemma.generation.decoding_mode import decoding_mode, is_seq2seq, max_input_tokens
from stemma.lab.continuation_likelihood import CHUNK_WORDS, continuation_bits
from stemma.lab.experiment import MetricInfo, Score
from stemma.model import Model
from stemma.network.heads import ScoringHead
from stemma.network.inputs_outputs import QUERY
from stemma.schema.objective import ObjectiveSettings
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.text.chinese_words import WORD

BITS, PSEUDO, CONTINUATION = "bits_per_byte", "pseudo_bits_per_byte", "continuation_bits_per_byte"
METRICS = {measure.key: measure for measure in (
    MetricInfo(BITS, "bits of held-out text", "bits per byte", higher=False, margin=0.01,
            about="What every token of the held-out text costs, guessed from those before it, over the text's bytes."),
    MetricInfo(PSEUDO, "pseudo-likelihood of held-out text", "bits per byte", higher=False, margin=0.01,
            about="What every word of the held-out text costs, one in seven hidden at a time and guessed from the "
                  "rest, over the text's bytes. Not to be compared with bits of guessing from one side; a vocabulary "
                  "without capitals is asked for a simpler text than one that has them."),
    MetricInfo(CONTINUATION, "continuation of held-out text", "bits per byte", higher=False, margin=0.01,
            about=f"What the second half of every {CHUNK_WORDS} words of the held-out text costs, written from the first "
                  "half in the model's own way, over the bytes of those second halves. Not to be compared with bits of "
                  "whole texts: half of the text is given, and none of it is scored."))}
MASK_PASSES = 7  # one word in so many is hidden at once: 14%
# Pieces of a word that are guessed one by one; whatever is left is guessed together with the last of them, which costs
# it something: a bound, because every round reads again all rows that have so long a word.
MAX_ROUNDS = 4
BATCH_TOKENS = 4096  # read at one go; more gains nothing on a CPU
LOGIT_CHUNK = 128  # places; with more their logits leave the processor's cache before they are added up
BITS_PER_UNKNOWN_BYTE = 8.0  # bits

def held_out_scores(model: Model, documents: Sequence[str]) -> dict[str, Score]:
    """What can be asked of this model, by the keys of MEASURES. Nothing of one that judges tokens (ELECTRA). Of one
    that only ever writes from a source (T5, BART, MASS, a prefix LM), how a text goes on: a text by itself has no
    probability there."""
    if "vocabulary" not in model.network.heads:
        return {}
    texts = _Texts.encode(model, documents)
    found = {}
    if decoding_mode(model.recipe) in ("next", "permuted") and not is_seq2seq(model.recipe):
        found[BITS] = texts.score(_causal_bits(model, texts))
    if (task := _bidirectional_objective(model)) is not None:
        found[PSEUDO] = texts.score(_pseudo_likelihood_bits(model, task, texts))
    if not found and is_seq2seq(model.recipe):
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
    def encode(cls, model: Model, documents: Sequence[str]) -> _Texts:
        tokenizer = model.require_tokenizer()
        prepared = [tokenizer.pre_normalize(text) for text in documents]
        return cls(prepared, tokenizer.encode_batch(documents, special=False), [len(one.encode()) for one in documents])

    def ids(self) -> list[np.ndarray]:
        return [np.array(encoding.ids, np.int64) for encoding in self.encodings]

    def unknown_bits(self, document: int, tokens: np.ndarray) -> float:
        """The bits of the text behind these tokens of a document, for whoever cannot spell it."""
        offsets = self.encodings[document].offsets
        return BITS_PER_UNKNOWN_BYTE * sum(len(self.texts[document][slice(*offsets[token])].encode())
                                           for token in tokens.nonzero()[0])

    def score(self, bits: np.ndarray) -> Score:
        parts = tuple(zip(bits.tolist(), map(float, self.sizes), strict=True))
        return Score(float(bits.sum()) / max(1, sum(self.sizes)), parts)


def _causal_bits(model: Model, texts: _Texts) -> np.ndarray:
    """(documents,) bits of every token, guessed from those before it."""
    unknown = model.require_tokenizer().special_token_ids.get("unknown", -1)
    ids = texts.ids()
    found = []
    for number, values in enumerate(score_tokens(LMScorer(model), ids)):
        charged = np.isnan(values) | (ids[number] == unknown)
        found.append(-np.nansum(values, dtype=np.float64) / math.log(2) + texts.unknown_bits(number, charged))
    return np.array(found)


def _bidirectional_objective(model: Model) -> ObjectiveSettings | None:
    """The task by which the model learned to guess what is hidden from both sides; None: it did not."""
    if model.is_encoder_decoder:
        return None
    tasks = model.recipe.settings.objective.values()
    return next((task for task in tasks if task.predicts_bidirectionally), None)


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
class _MaskedRows:
    """Documents as rows of the model's own layout, filled up on the right. No word is in two rows if it fits one."""

    input_ids: np.ndarray  # (R, L), as the rest
    segment_ids: np.ndarray
    pass_index: np.ndarray  # the pass in which a place is hidden; -1 where no text stands
    subtoken_index: np.ndarray  # which piece of its word it is, from 0
    num_subtokens: np.ndarray  # how many there are
    lengths: np.ndarray  # (R,)
    document: np.ndarray  # (R,)

    @classmethod
    def build(cls, input_encoder: InputEncoder, texts: _Texts) -> _MaskedRows:
        cuts = [(number, words[part], ids[part]) for number, ids in enumerate(texts.ids())
                for words in [word_of_tokens(texts.texts[number], texts.encodings[number].offsets)]
                for part in _split_at_words(words, input_encoder.text_capacity(1))]
        length = max((len(ids) for *_, ids in cuts),
                     default=0) + input_encoder.max_length - input_encoder.text_capacity(1)
        nothing = np.zeros((len(cuts), length), np.int64)
        made = cls(nothing, nothing.copy(), nothing - 1, nothing.copy(), nothing.copy(), nothing[:, 0].copy(),
                   nothing[:, 0].copy())
        for row, (number, words, ids) in enumerate(cuts):
            laid = input_encoder.build_sequence([ids.tolist()])
            ((first, count),) = laid.text_spans
            made.lengths[row], made.document[row] = len(laid.input_ids), number
            made.input_ids[row, : len(laid.input_ids)], made.segment_ids[row,
                : len(laid.input_ids)] = laid.input_ids, laid.segment_ids
            begins = np.flatnonzero(np.diff(words, prepend=-1))
            pieces = np.diff(begins, append=count)
            made.pass_index[row, first:first + count] = words % MASK_PASSES
            made.subtoken_index[row, first:first + count] = np.arange(count) - np.repeat(begins, pieces)
            made.num_subtokens[row, first:first + count] = np.repeat(pieces, pieces)
        return made

    def masked_passes(self) -> np.ndarray:
        """(N, 3) row, pass and round: as many rounds as the longest of the words has pieces; long rows first."""
        asked = np.zeros((len(self.input_ids), MASK_PASSES), np.int64)
        row, place = np.nonzero(self.pass_index >= 0)
        np.maximum.at(asked, (row, self.pass_index[row, place]), self.num_subtokens[row, place])
        found = np.argwhere(np.arange(MAX_ROUNDS) < asked[..., None])
        return found[np.argsort(-self.lengths[found[:, 0]], kind="stable")]

    def mask_batch(self, passes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, L) ids of the rows that are asked, which of them are hidden, and which of those are to be guessed."""
        place = np.s_[passes[:, 0], : self.lengths[passes[:, 0]].max()]
        chosen, now = self.pass_index[place] == passes[:, 1:2], passes[:, 2:]
        piece, pieces = self.subtoken_index[place], self.num_subtokens[place]
        # a word that has been guessed is hidden again: a word of many pieces is to see no more of the others
        hidden = chosen & ((piece >= now) | (pieces <= now))
        return self.input_ids[place], hidden, chosen & ((piece == now) | ((now == MAX_ROUNDS - 1) & (piece > now)))


def _split_at_words(words: np.ndarray, max_tokens: int) -> Iterator[slice]:
    """Stretches of at most so many tokens, cut between words; a word that is longer is cut where it must be."""
    start = 0
    while start < len(words):
        stop = min(start + max_tokens, len(words))
        if stop < len(words) and words[stop] == words[stop - 1]:
            begin = int(np.searchsorted(words, words[stop]))
            stop = begin if begin > start else stop
        yield slice(start, stop)
        start = stop


def _pseudo_likelihood_bits(model: Model, objective: ObjectiveSettings, texts: _Texts) -> np.ndarray:
    """(documents,) bits of every word, guessed from the words around it."""
    tokenizer, corpus = model.require_tokenizer(), model.recipe.settings.corpus
    layout = InputEncoder(tokenizer, objective.single or corpus.single, objective.pair or corpus.pair,
                       max_input_tokens(model) or corpus.sequence_length)
    rows = _MaskedRows.build(layout, texts)
    unknown = tokenizer.special_token_ids.get("unknown", -1)
    bits = np.array([texts.unknown_bits(number, ids == unknown) for number, ids in enumerate(texts.ids())])
    model = model.in_eval_mode()
    with torch.inference_mode():
        for asked in _batches(rows):
            ids, hidden, scored = rows.mask_batch(asked)
            real = np.arange(ids.shape[1]) < rows.lengths[asked[:, :1]]
            segments = rows.segment_ids[asked[:, 0], : ids.shape[1]]
            states = _target_states(model, objective, *map(torch.from_numpy, (ids, segments, real, hidden, scored)))
            nats = _nats(model.lm_head(), states, torch.from_numpy(ids[scored]))
            owners = np.repeat(rows.document[asked[:, 0]], scored.sum(1))
            np.add.at(bits, owners, nats.double().numpy() / math.log(2))
    return bits


def _batches(rows: _MaskedRows) -> Iterator[np.ndarray]:
    questions, start = rows.masked_passes(), 0
    while start < len(questions):
        stop = start + max(1, BATCH_TOKENS // int(rows.lengths[questions[start, 0]]))
        yield questions[start:stop]
        start = stop


def _target_states(model: Model, objective: ObjectiveSettings, ids: Tensor, segments: Tensor, non_pad: Tensor,
                   masked: Tensor,
             targets: Tensor) -> Tensor:
    """(B, L) each -> (N, width) from which the scored places are guessed, row by row."""
    if objective.attention_mask_kind == "permuted":  # what is hidden is filling to everybody, and a query stands at
    #                                                  each place
        counts = targets.sum(1)
        asking = torch.arange(int(counts.max())) < counts[:, None]
        places = torch.zeros(asking.shape, dtype=torch.int64)
        places[asking] = targets.nonzero()[:, 1]
        stream = model.encoder_stream(ids, non_pad & ~masked, segments)
        return model.network({"encoder": replace(stream, query_positions=places.to(model.device))})[QUERY][asking]
    stream = model.encoder_stream(ids.masked_fill(masked, model.require_tokenizer().special_id("mask")), non_pad,
                                  segments)
    wanted = targets.flatten().nonzero()[:, 0].to(model.device)
    return model.network({"encoder": replace(stream, output_positions=wanted)})["encoder"].flatten(0, 1)[wanted]


def _nats(head: ScoringHead, states: Tensor, labels: Tensor) -> Tensor:
    """(N, width), (N,) -> (N,); some rows of logits at a time, while they are still at hand."""
    return torch.cat([functional.cross_entropy(head(some).float(), right.to(some.device), reduction="none").cpu()
                      for some, right in zip(torch.split(states, LOGIT_CHUNK), torch.split(labels, LOGIT_CHUNK),
                                          strict=True)])
