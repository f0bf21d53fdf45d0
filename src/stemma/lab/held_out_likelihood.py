"""Likelihood and pseudo-likelihood of held-out text in bits per byte, which is comparable across tokenizers.

A causal model assigns a probability to a text, token by token; its bits add up over the whole text.

A masked language model has a pseudo-likelihood: each word is predicted from the words around it (Salazar et al. 2020,
arXiv:1910.14659). Subtokens of a word reveal each other, so the whole word is masked and predicted from left to right:
each subtoken with the ones before it visible and the ones after it masked (Kauf and Ivanova 2023, arXiv:2305.10588).
Words are those of the raw text: separated by white space, and each Chinese character alone. Word w of a document is
masked in pass w mod 7. So all tokenizers mask the same words together, about as many as in training. XLNet predicts
through its query stream, and the masked tokens are excluded from attention.

Text that a model cannot represent costs eight bits per byte: the text behind an unknown token (in addition to the
token), and a first token without context. So a poor vocabulary has no advantage, and every byte of every document
counts. One bias remains: a lowercasing tokenizer does not have to predict capitals.
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
               about="Negative log-likelihood of the held-out text under a causal model, divided by its bytes."),
    MetricInfo(PSEUDO, "pseudo-likelihood of held-out text", "bits per byte", higher=False, margin=0.01,
               about="Negative log-likelihood of every word of the held-out text given the other words, with one word "
                     "in seven masked at a time, divided by its bytes. Not comparable with the bits of a causal model. "
                     "A lowercasing tokenizer does not have to predict capitals."),
    MetricInfo(CONTINUATION, "continuation of held-out text", "bits per byte", higher=False, margin=0.01,
               about=f"Negative log-likelihood of the second half of every {CHUNK_WORDS} words of the held-out text "
                     "given the first half, divided by the bytes of the second halves. Not comparable with the bits of "
                     "whole texts."))}
MASK_PASSES = 7  # one word in seven is masked at once: 14%
# Subtokens of a word that are predicted one by one; the remaining ones are predicted together with the last of them.
# The bound limits the cost: each round runs all rows again that have such a long word.
MAX_ROUNDS = 4
BATCH_TOKENS = 4096  # larger batches are not faster on a CPU
LOGIT_CHUNK = 128  # positions whose logits fit the processor's cache
BITS_PER_UNKNOWN_BYTE = 8.0


def held_out_scores(model: Model, documents: Sequence[str]) -> dict[str, Score]:
    """All metrics of METRICS that this model has. A discriminator (ELECTRA) has none. A model that generates from a
    source (T5, BART, MASS, a prefix LM) has only the continuation: it assigns no probability to a whole text."""
    if "vocabulary" not in model.network.heads:
        return {}
    texts = _Texts.encode(model, documents)
    scores = {}
    if decoding_mode(model.recipe) in ("next", "permuted") and not is_seq2seq(model.recipe):
        scores[BITS] = texts.score(_causal_bits(model, texts))
    if (task := _bidirectional_objective(model)) is not None:
        scores[PSEUDO] = texts.score(_pseudo_likelihood_bits(model, task, texts))
    if not scores and is_seq2seq(model.recipe):
        bits, sizes = continuation_bits(model, documents)
        terms = [(float(bit), float(size)) for bit, size in zip(bits, sizes, strict=True)]
        if sizes.sum():
            scores[CONTINUATION] = Score(float(bits.sum() / sizes.sum()), tuple(terms))
    return scores


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
        return cls(prepared, tokenizer.encode_batch(documents, special=False),
                   [len(document.encode()) for document in documents])

    def ids(self) -> list[np.ndarray]:
        return [np.array(encoding.ids, np.int64) for encoding in self.encodings]

    def unknown_bits(self, document: int, tokens: np.ndarray) -> float:
        """The cost of the text behind these tokens of a document, at BITS_PER_UNKNOWN_BYTE."""
        offsets = self.encodings[document].offsets
        return BITS_PER_UNKNOWN_BYTE * sum(len(self.texts[document][slice(*offsets[token])].encode())
                                           for token in tokens.nonzero()[0])

    def score(self, bits: np.ndarray) -> Score:
        parts = tuple(zip(bits.tolist(), map(float, self.sizes), strict=True))
        return Score(float(bits.sum()) / max(1, sum(self.sizes)), parts)


def _causal_bits(model: Model, texts: _Texts) -> np.ndarray:
    """(documents,) bits under a causal model."""
    unknown = model.require_tokenizer().special_token_ids.get("unknown", -1)
    ids = texts.ids()
    bits = []
    for document, values in enumerate(score_tokens(LMScorer(model), ids)):
        is_unknown = np.isnan(values) | (ids[document] == unknown)
        bits.append(-np.nansum(values, dtype=np.float64) / math.log(2) + texts.unknown_bits(document, is_unknown))
    return np.array(bits)


def _bidirectional_objective(model: Model) -> ObjectiveSettings | None:
    """The objective that trained the model to predict masked tokens bidirectionally, if there is one."""
    if model.is_encoder_decoder:
        return None
    tasks = model.recipe.settings.objective.values()
    return next((task for task in tasks if task.predicts_bidirectionally), None)


def word_of_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """(tokens,) the index of the raw-text word of each token. White space belongs to the following word. Words that
    share a token count as one, with the index of the first."""
    ends = np.array([match.end() for match in WORD.finditer(text)] or [len(text)])
    spans = np.array(offsets, np.int64).reshape(-1, 2)
    starts = np.maximum.accumulate(spans[:, 0])  # subtokens of one character may be reported out of order
    last = np.maximum(spans[:, 1] - 1, starts)
    first, last = (np.searchsorted(ends, offset, side="right").clip(max=len(ends) - 1) for offset in (starts, last))
    reached = np.zeros(len(ends) + 1, np.int64)
    np.add.at(reached, first + 1, 1)
    np.add.at(reached, last + 1, -1)
    shared = np.cumsum(reached[:-1]) > 0  # a token reaches into this word from the one before
    word: np.ndarray = np.maximum.accumulate(np.where(shared, 0, np.arange(len(ends))))[first]
    return word


@dataclass(frozen=True)
class _MaskedRows:
    """Documents as rows in the model's input format, padded on the right. A word is split only if it exceeds a row."""

    input_ids: np.ndarray  # (R, L), as the following
    segment_ids: np.ndarray
    pass_index: np.ndarray  # the pass in which a position is masked; -1 for special tokens and padding
    subtoken_index: np.ndarray  # index of a token within its word
    num_subtokens: np.ndarray  # of its word
    lengths: np.ndarray  # (R,)
    document: np.ndarray  # (R,)

    @classmethod
    def build(cls, input_encoder: InputEncoder, texts: _Texts) -> _MaskedRows:
        parts = [(document, words[part], ids[part]) for document, ids in enumerate(texts.ids())
                 for words in [word_of_tokens(texts.texts[document], texts.encodings[document].offsets)]
                 for part in _split_at_words(words, input_encoder.text_capacity(1))]
        special_tokens = input_encoder.max_length - input_encoder.text_capacity(1)
        length = max((len(ids) for *_, ids in parts), default=0) + special_tokens
        zeros = np.zeros((len(parts), length), np.int64)
        rows = cls(zeros, zeros.copy(), zeros - 1, zeros.copy(), zeros.copy(), zeros[:, 0].copy(), zeros[:, 0].copy())
        for row, (document, words, ids) in enumerate(parts):
            sequence = input_encoder.build_sequence([ids.tolist()])
            ((first, count),) = sequence.text_spans
            size = len(sequence.input_ids)
            rows.lengths[row], rows.document[row] = size, document
            rows.input_ids[row, :size], rows.segment_ids[row, :size] = sequence.input_ids, sequence.segment_ids
            word_starts = np.flatnonzero(np.diff(words, prepend=-1))
            subtokens = np.diff(word_starts, append=count)
            rows.pass_index[row, first:first + count] = words % MASK_PASSES
            rows.subtoken_index[row, first:first + count] = np.arange(count) - np.repeat(word_starts, subtokens)
            rows.num_subtokens[row, first:first + count] = np.repeat(subtokens, subtokens)
        return rows

    def masked_passes(self) -> np.ndarray:
        """(N, 3) row, pass and round, long rows first; there are as many rounds as the longest word has subtokens."""
        rounds = np.zeros((len(self.input_ids), MASK_PASSES), np.int64)
        row, column = np.nonzero(self.pass_index >= 0)
        np.maximum.at(rounds, (row, self.pass_index[row, column]), self.num_subtokens[row, column])
        passes = np.argwhere(np.arange(MAX_ROUNDS) < rounds[..., None])
        return passes[np.argsort(-self.lengths[passes[:, 0]], kind="stable")]

    def mask_batch(self, passes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, L) input ids, which of them are masked, and which of those are targets."""
        batch = np.s_[passes[:, 0], : self.lengths[passes[:, 0]].max()]
        in_pass, round_index = self.pass_index[batch] == passes[:, 1:2], passes[:, 2:]
        subtoken, subtokens = self.subtoken_index[batch], self.num_subtokens[batch]
        # a word with all subtokens predicted is masked again, so that longer words get no additional context
        masked = in_pass & ((subtoken >= round_index) | (subtokens <= round_index))
        is_last = round_index == MAX_ROUNDS - 1
        return self.input_ids[batch], masked, in_pass & ((subtoken == round_index)
                                                         | (is_last & (subtoken > round_index)))


def _split_at_words(words: np.ndarray, max_tokens: int) -> Iterator[slice]:
    """Slices of at most `max_tokens` tokens, split between words; only a longer word is split itself."""
    start = 0
    while start < len(words):
        stop = min(start + max_tokens, len(words))
        if stop < len(words) and words[stop] == words[stop - 1]:
            begin = int(np.searchsorted(words, words[stop]))
            stop = begin if begin > start else stop
        yield slice(start, stop)
        start = stop


def _pseudo_likelihood_bits(model: Model, objective: ObjectiveSettings, texts: _Texts) -> np.ndarray:
    """(documents,) bits of every word given the words around it."""
    tokenizer, corpus = model.require_tokenizer(), model.recipe.settings.corpus
    input_encoder = InputEncoder(tokenizer, objective.single or corpus.single, objective.pair or corpus.pair,
                                 max_input_tokens(model) or corpus.sequence_length)
    rows = _MaskedRows.build(input_encoder, texts)
    unknown = tokenizer.special_token_ids.get("unknown", -1)
    bits = np.array([texts.unknown_bits(document, ids == unknown) for document, ids in enumerate(texts.ids())])
    model = model.in_eval_mode()
    with torch.inference_mode():
        for passes in _batches(rows):
            ids, masked, targets = rows.mask_batch(passes)
            non_pad = np.arange(ids.shape[1]) < rows.lengths[passes[:, :1]]
            segments = rows.segment_ids[passes[:, 0], : ids.shape[1]]
            states = _target_states(model, objective, *map(torch.from_numpy, (ids, segments, non_pad, masked, targets)))
            nats = _nats(model.lm_head(), states, torch.from_numpy(ids[targets]))
            document_of_target = np.repeat(rows.document[passes[:, 0]], targets.sum(1))
            np.add.at(bits, document_of_target, nats.double().numpy() / math.log(2))
    return bits


def _batches(rows: _MaskedRows) -> Iterator[np.ndarray]:
    passes, start = rows.masked_passes(), 0
    while start < len(passes):
        stop = start + max(1, BATCH_TOKENS // int(rows.lengths[passes[start, 0]]))
        yield passes[start:stop]
        start = stop


def _target_states(model: Model, objective: ObjectiveSettings, ids: Tensor, segments: Tensor, non_pad: Tensor,
                   masked: Tensor, targets: Tensor) -> Tensor:
    """(B, L) each -> (N, width) hidden states at the targets, row by row."""
    if objective.attention_mask_kind == "permuted":  # masked tokens are excluded like padding; queries predict them
        counts = targets.sum(1)
        is_query = torch.arange(int(counts.max())) < counts[:, None]
        positions = torch.zeros(is_query.shape, dtype=torch.int64)
        positions[is_query] = targets.nonzero()[:, 1]
        stream = model.encoder_stream(ids, non_pad & ~masked, segments)
        return model.network({"encoder": replace(stream, query_positions=positions.to(model.device))})[QUERY][is_query]
    stream = model.encoder_stream(ids.masked_fill(masked, model.require_tokenizer().special_id("mask")), non_pad,
                                  segments)
    index = targets.flatten().nonzero()[:, 0].to(model.device) - objective.target_shift
    return model.network({"encoder": replace(stream, output_positions=index)})["encoder"].flatten(0, 1)[index]


def _nats(head: ScoringHead, states: Tensor, labels: Tensor) -> Tensor:
    """(N, width), (N,) -> (N,), in chunks, so that the logits stay in the processor's cache."""
    return torch.cat([functional.cross_entropy(head(chunk).float(), gold.to(chunk.device), reduction="none").cpu()
                      for chunk, gold in zip(torch.split(states, LOGIT_CHUNK), torch.split(labels, LOGIT_CHUNK),
                                             strict=True)])
