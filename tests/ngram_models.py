"""Small n-gram models, counted in memory, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stemma.counts.document_stream import DocumentStream
from stemma.counts.kneser_ney import Discounts, NgramTables, estimate
from stemma.counts.packed_ngrams import NgramPacker, sort_and_sum


def stream_of(documents: Sequence[Sequence[int]], end_id: int) -> DocumentStream:
    tokens = np.array([token for document in documents for token in document], np.int64)
    stops = np.cumsum([len(document) for document in documents])
    ranges = np.column_stack([np.concatenate([[0], stops[:-1]]), stops])
    return DocumentStream(ranges, lambda offsets: tokens[offsets], end_id)


def count(documents: Sequence[Sequence[int]], packer: NgramPacker, end_id: int):
    """The n-grams of all documents, sorted, and their counts."""
    stream = stream_of(documents, end_id)
    return sort_and_sum(stream.ngrams(0, stream.num_positions, packer)[0])


def ngram_tables(documents: Sequence[Sequence[int]], order: int, vocab_size: int,
                 end_id: int) -> tuple[NgramTables, list[Discounts]]:
    packer = NgramPacker(order, vocab_size)
    return estimate([count(documents, packer, end_id)], packer)


def random_documents(seed: int, number: int, vocab_size: int, longest: int, skewed: bool = True) -> list[list[int]]:
    """Documents of token ids from 1; 0 is left for the token that ends them. Empty ones occur."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocab_size) if skewed else np.ones(vocab_size - 1)
    return [rng.choice(np.arange(1, vocab_size), rng.integers(0, longest + 1), p=weights / weights.sum()).tolist()
            for _ in range(number)]
