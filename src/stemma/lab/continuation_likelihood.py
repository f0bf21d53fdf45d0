"""Bits per byte of how held-out text goes on, for models that write one text from another.

A whole text has no probability under an encoder-decoder or a prefix language model, but the second half of a stretch
has one, given the first: so many words are given, and as many are written, by the model's own way of writing and with
the right tokens put in its mouth (teacher forcing). Stretches are cut at words of the raw text, so all tokenizers are
asked the same. BART reads the first half with a mask behind it and writes both halves, of which the second is scored;
T5 reads it with a sentinel and says what the sentinel stands for: that is what they have learned.

This is not the bits per byte of a causal model, which is asked for all of a text and gives away no half of it.
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

CHUNK_WORDS = 32  # of a stretch: the first half is given, the second is to be written
BATCH_ROWS = 64  # written side by side
BITS_PER_UNKNOWN_BYTE = 8.0  # bits: what is charged for a byte that cannot be spelt, or that the window has no room for


@dataclass(frozen=True)
class ContinuationChunk:
    document: int
    source: list[int]  # what the model reads
    decoder_prefix: list[int]  # what it has written before the second half begins
    target: list[int]  # the second half, as far as there is room for it
    unknown_bits: float  # bits of what it cannot spell, and of what there is no room for
    num_bytes: int  # bytes of the second half


def continuation_bits(model: Model, documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(documents,) bits of the second halves of each document's stretches, and (documents,) their bytes."""
    bits, sizes = np.zeros(len(documents)), np.zeros(len(documents))
    stretches = list(_chunks(model, documents))
    for one in stretches:
        bits[one.document] += one.unknown_bits
        sizes[one.document] += one.num_bytes
    for batch in _batches(model, [one for one in stretches if one.target]):
        for one, nats in zip(batch, _continuation_nats(model, batch), strict=True):
            bits[one.document] += nats / math.log(2)
    return bits, sizes


def split_halves(text: str) -> Iterator[tuple[str, str]]:
    """The stretches of a text, each in two; a single word at the end has no second half and is not asked."""
    ends = [found.end() for found in WORD.finditer(text)]
    start = 0
    for first in range(0, len(ends), CHUNK_WORDS):
        chosen = ends[first:first + CHUNK_WORDS]
        if len(chosen) > 1:
            middle = chosen[len(chosen) // 2 - 1]
            yield text[start:middle], text[middle:chosen[-1]]
        start = chosen[-1]


def _chunks(model: Model, documents: Sequence[str]) -> Iterator[ContinuationChunk]:
    tokenizer, scheme, gap = model.require_tokenizer(), decoding_spec(model), infilling_gap(model.recipe)
    assert scheme is not None
    parts = [(number, *two) for number, text in enumerate(documents) for two in split_halves(text)]
    encodings = tokenizer.encode_batch([first + second for _, first, second in parts], special=False)
    unknown = tokenizer.special_token_ids.get("unknown", -1)
    asking, repeats = ([], False) if gap is None else ([tokenizer.special_id(gap.special_token)], gap.repeats_text)
    for (number, first, second), encoding in zip(parts, encodings, strict=True):
        whole = tokenizer.pre_normalize(first + second)
        middle = len(tokenizer.pre_normalize(first))
        cut = next((place for place, (_, end) in enumerate(encoding.offsets) if end > middle), len(encoding.ids))
        given, target = encoding.ids[:cut], encoding.ids[cut:]
        given = given[-_max_source_tokens(scheme, len(asking), len(target), repeats):]
        before = given if repeats else asking
        limit = scheme.max_new_tokens(len(scheme.format_prompt(given)))
        kept = len(target) if limit is None else max(0, min(len(target), limit - len(before)))
        lost = [place for place, token in enumerate(target) if place >= kept or token == unknown]
        charged = sum(len(whole[slice(*encoding.offsets[cut + place])].encode()) for place in lost)
        yield ContinuationChunk(number, scheme.format_prompt([*given, *asking]), list(before), target[:kept],
                                BITS_PER_UNKNOWN_BYTE * charged,
                      len(second.encode()))


def _max_source_tokens(spec: DecodingSpec, prompt_tokens: int, target: int, repeats: bool) -> int:
    """How many tokens of the first half there is room for; the last ones are kept."""
    if spec.max_prompt_tokens is None or spec.max_length is None:
        return 2**31
    if spec.mode != "decoder":  # one row holds both
        return max(1, spec.max_prompt_tokens - target)
    room = spec.max_length - len(spec.decoder_prefix) - target if repeats else spec.max_prompt_tokens
    return max(1, min(room, spec.max_prompt_tokens - prompt_tokens))


def _batches(model: Model, chunks: Sequence[ContinuationChunk]) -> Iterator[list[ContinuationChunk]]:
    """Of similar length; of the same one where rows cannot be padded."""
    ordered = sorted(chunks, key=lambda one: (len(one.source), len(one.decoder_prefix), len(one.target)))
    equal, batch = needs_equal_lengths(model), list[ContinuationChunk]()
    for one in ordered:
        if batch and (len(batch) == BATCH_ROWS or len(one.decoder_prefix) != len(batch[0].decoder_prefix)
                      or (equal and len(one.source) != len(batch[0].source))):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _continuation_nats(model: Model, batch: Sequence[ContinuationChunk]) -> np.ndarray:
    """(stretches,) nats of each second half, token by token."""
    model = model.in_eval_mode()
    nats = torch.zeros(len(batch), dtype=torch.float64)
    with torch.inference_mode():
        reader = start_decoding(model, [one.source for one in batch])
        for place in range(len(batch[0].decoder_prefix)):
            reader.append(torch.tensor([one.decoder_prefix[place] for one in batch], device=reader.device))
        longest = max(len(one.target) for one in batch)
        for place in range(longest):
            tokens = torch.tensor([one.target[min(place, len(one.target) - 1)] for one in batch], device=reader.device)
            chances = reader.next_logits().float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            asked = torch.tensor([place < len(one.target) for one in batch])
            nats -= chances.cpu().double() * asked
            reader.append(tokens)
    return nats.numpy()
