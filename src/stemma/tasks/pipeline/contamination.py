"""Contamination: how much of a task's dev and test sets occurs in the text of the earlier stages, by n-gram overlap.

Like `stemma overlap` (GPT-2, Radford et al. 2019, section 4), it puts the n-grams of the text into a Bloom filter and
looks up those of the examples. An example is contaminated if at least half of its n-grams are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stemma.tasks.data.examples import Example
from stemma.tasks.pipeline.stage_texts import NumberedTexts, example_texts
from stemma.text.bloom_filter import BloomFilter
from stemma.text.ngrams import ngram_batches

FALSE_POSITIVE_RATE = 1e-8  # of the Bloom filter
OVERLAP_THRESHOLD = 0.5  # fraction of its n-grams from which an example counts as contaminated
MAX_SHOWN = 3
PREVIEW_CHARS = 100  # characters of an example in the report


def ngram_filter(texts: Callable[[], NumberedTexts], n: int) -> BloomFilter | None:
    """A Bloom filter of the n-grams of a text, which is read twice: to size it and to fill it. None: no n-grams."""
    count = sum(len(hashes) for hashes, _ in ngram_batches(texts(), n))
    if not count:
        return None
    bloom = BloomFilter(count, FALSE_POSITIVE_RATE)
    for hashes, _ in ngram_batches(texts(), n):
        bloom.add(hashes)
    return bloom


def example_overlap(bloom: BloomFilter | None, examples: Sequence[Example], n: int) -> dict[str, Any]:
    """The overlap of examples with the text of a filter."""
    grams, hits = np.zeros((2, len(examples)), np.int64)
    parts = ((index, text) for index, example in enumerate(examples) for text in example_texts(example))
    for hashes, owners in ngram_batches(parts, n):
        grams += np.bincount(owners, minlength=len(examples))
        if bloom is not None:
            hits += np.bincount(owners, weights=bloom.contains(hashes), minlength=len(examples)).astype(np.int64)
    fractions = hits / np.maximum(1, grams)
    contaminated = np.flatnonzero((fractions >= OVERLAP_THRESHOLD) & (grams > 0))
    worst = [{"where": examples[index].where, "share": float(fractions[index]),
              "text": " ".join(example_texts(examples[index]))[:PREVIEW_CHARS]}
             for index in np.lexsort((-hits, -fractions))[:MAX_SHOWN] if hits[index]]
    return {"examples": len(examples), "too_short": int((grams == 0).sum()), "read": len(contaminated),
            "share": float(hits.sum() / max(1, grams.sum())), "worst": worst}


def contamination(texts: Mapping[str, Callable[[], NumberedTexts]], sets: Mapping[str, Sequence[Example]],
                  n: int) -> list[dict[str, Any]]:
    """One row for each text and each split."""
    rows = []
    for source, read in texts.items():
        bloom = ngram_filter(read, n)
        rows += [{"text": source, "set": split, **example_overlap(bloom, examples, n)}
                 for split, examples in sets.items() if examples]
    return rows
