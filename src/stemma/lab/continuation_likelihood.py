"""Continuation in bits per byte: held-out likelihood for encoder-decoders and prefix language models.

A whole text has no probability under these models, but the second half of a chunk has one given the first half. The
model gets the first half of a chunk of words in its own input format, and the second half is scored with teacher
forcing. Chunks are split at words of the raw text, so all tokenizers are scored on the same text. BART's source is the
first half and a mask, and its target both halves, of which the second is scored; T5's source ends with a sentinel, and
its target is the sentinel and the second half: this is what they are trained on.

It is not comparable with the bits per byte of a causal model, which scores the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stemma.generation.decoding_mode import DecodingSpec, decoding_spec, infilling_gap, needs_equal_lengths
from stemma.generation.decoding_state import start_decoding
from stemma.model import Model
from stemma.text.chinese_words import WORD

CHUNK_WORDS = 32  # the first half is given, the second is scored
BATCH_ROWS = 64
BITS_PER_UNKNOWN_BYTE = 8.0  # cost of a byte behind an unknown token, or beyond the maximum length


@dataclass(frozen=True)
class ContinuationChunk:
    document: int
    source: list[int]  # input ids
    decoder_prefix: list[int]  # decoder tokens before the second half
    target: list[int]  # the second half, truncated to the maximum length
    unknown_bits: float  # cost of unknown tokens and of truncated text
    num_bytes: int  # of the second half


def continuation_bits(model: Model, documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(documents,) bits of the second halves of each document's chunks, and (documents,) their bytes."""
    bits, sizes = np.zeros(len(documents)), np.zeros(len(documents))
    chunks = list(_chunks(model, documents))
    for chunk in chunks:
        bits[chunk.document] += chunk.unknown_bits
        sizes[chunk.document] += chunk.num_bytes
    for batch in _batches(model, [chunk for chunk in chunks if chunk.target]):
        for chunk, nats in zip(batch, _continuation_nats(model, batch), strict=True):
            bits[chunk.document] += nats / math.log(2)
    return bits, sizes


def split_halves(text: str) -> Iterator[tuple[str, str]]:
    """The chunks of a text, each as two halves; a single word at the end has no second half and is not scored."""
    ends = [match.end() for match in WORD.finditer(text)]
    start = 0
    for first in range(0, len(ends), CHUNK_WORDS):
        chunk_ends = ends[first:first + CHUNK_WORDS]
        if len(chunk_ends) > 1:
            middle = chunk_ends[len(chunk_ends) // 2 - 1]
            yield text[start:middle], text[middle:chunk_ends[-1]]
        start = chunk_ends[-1]


def _chunks(model: Model, documents: Sequence[str]) -> Iterator[ContinuationChunk]:
    tokenizer, spec, gap = model.require_tokenizer(), decoding_spec(model), infilling_gap(model.recipe)
    assert spec is not None
    chunks = [(document, *halves) for document, text in enumerate(documents) for halves in split_halves(text)]
    encodings = tokenizer.encode_batch([first + second for _, first, second in chunks], special=False)
    unknown = tokenizer.special_token_ids.get("unknown", -1)
    gap_ids, repeats = ([], False) if gap is None else ([tokenizer.special_id(gap.special_token)], gap.repeats_text)
    for (document, first, second), encoding in zip(chunks, encodings, strict=True):
        normalized = tokenizer.pre_normalize(first + second)
        middle = len(tokenizer.pre_normalize(first))
        split = next((index for index, (_, end) in enumerate(encoding.offsets) if end > middle), len(encoding.ids))
        prompt, target = encoding.ids[:split], encoding.ids[split:]
        prompt = prompt[-_max_source_tokens(spec, len(gap_ids), len(target), repeats):]
        prefix = prompt if repeats else gap_ids
        limit = spec.max_new_tokens(len(spec.format_prompt(prompt)))
        num_scored = len(target) if limit is None else max(0, min(len(target), limit - len(prefix)))
        unscored = [index for index, token in enumerate(target) if index >= num_scored or token == unknown]
        unknown_bytes = sum(len(normalized[slice(*encoding.offsets[split + index])].encode()) for index in unscored)
        yield ContinuationChunk(document, spec.format_prompt([*prompt, *gap_ids]), list(prefix), target[:num_scored],
                                BITS_PER_UNKNOWN_BYTE * unknown_bytes, len(second.encode()))


def _max_source_tokens(spec: DecodingSpec, prompt_tokens: int, target: int, repeats: bool) -> int:
    """How many tokens of the first half fit; it is truncated on the left."""
    if spec.max_prompt_tokens is None or spec.max_length is None:
        return 2**31
    if spec.mode != "decoder":  # one row holds both halves
        return max(1, spec.max_prompt_tokens - target)
    capacity = spec.max_length - len(spec.decoder_prefix) - target if repeats else spec.max_prompt_tokens
    return max(1, min(capacity, spec.max_prompt_tokens - prompt_tokens))


def _batches(model: Model, chunks: Sequence[ContinuationChunk]) -> Iterator[list[ContinuationChunk]]:
    """Batches of similar source length; of equal length if rows cannot be padded."""
    ordered = sorted(chunks, key=lambda chunk: (len(chunk.source), len(chunk.decoder_prefix), len(chunk.target)))
    equal, batch = needs_equal_lengths(model), list[ContinuationChunk]()
    for chunk in ordered:
        if batch and (len(batch) == BATCH_ROWS or len(chunk.decoder_prefix) != len(batch[0].decoder_prefix)
                      or (equal and len(chunk.source) != len(batch[0].source))):
            yield batch
            batch = []
        batch.append(chunk)
    if batch:
        yield batch


def _continuation_nats(model: Model, batch: Sequence[ContinuationChunk]) -> np.ndarray:
    """(chunks,) nats of each second half, decoded with teacher forcing."""
    model = model.in_eval_mode()
    nats = torch.zeros(len(batch), dtype=torch.float64)
    with torch.inference_mode():
        state = start_decoding(model, [chunk.source for chunk in batch])
        for step in range(len(batch[0].decoder_prefix)):
            state.append(torch.tensor([chunk.decoder_prefix[step] for chunk in batch], device=state.device))
        max_target = max(len(chunk.target) for chunk in batch)
        for step in range(max_target):
            tokens = torch.tensor([chunk.target[min(step, len(chunk.target) - 1)] for chunk in batch],
                                  device=state.device)
            log_probabilities = state.next_logits().float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            is_target = torch.tensor([step < len(chunk.target) for chunk in batch])
            nats -= log_probabilities.cpu().double() * is_target
            state.append(tokens)
    return nats.numpy()
