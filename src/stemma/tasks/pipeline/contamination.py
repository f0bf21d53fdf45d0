"""How much of a task's dev and test sets the stages before it may have read: runs of n words that both have.

As `stemma overlap` does (GPT-2's study, Radford et al. 2019, section 4): a Bloom filter of the text's n-grams, in which
every n-gram of the examples is looked up. An example counts as read where half of its n-grams are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stemma.tasks.data.examples import Example
from stemma.tasks.pipeline.stage_texts import NumberedTexts, example_texts
from stemma.text.bloom_filter import BloomFilter
from stemma.text.ngrams import ngram_batches

FALSE_POSITIVE_RATE = 1e-8  # of n-grams that are found though the text does not have them
OVERLAP_THRESHOLD = 0.5  # share of an example's n-grams from which on it counts as read
MAX_SHOWN = 3
PREVIEW_CHARS = 100  # characters of an example that are shown


def ngram_filter(texts: Callable[[], NumberedTexts], n: int) -> BloomFilter | None:
    """The n-grams of a text, which is read twice: to size the filter, and to fill it. None: it has none."""
    count = sum(len(hashes) for hashes, _ in ngram_batches(texts(), n))
    if not count:
        return None
    bloom = BloomFilter(count, FALSE_POSITIVE_RATE)
    for hashes, _ in ngram_batches(texts(), n):
        bloom.add(hashes)
    return bloom


def example_overlap(bloom: BloomFilter | None, examples: Sequence[Example], n: int) -> dict[str, Any]:
    """What of these examples stands in the text of a filter."""
    grams, hits = np.zeros((2, len(examples)), np.int64)
    parts = ((number, text) for number, example in enumerate(examples) for text in example_texts(example))
    for hashes, owners in ngram_batches(parts, n):
        grams += np.bincount(owners, minlength=len(examples))
        if bloom is not None:
            hits += np.bincount(owners, weights=bloom.contains(hashes), minlength=len(examples)).astype(np.int64)
    shares = hits / np.maximum(1, grams)
    read = np.flatnonzero((shares >= OVERLAP_THRESHOLD) & (grams > 0))
    worst = [{"where": examples[at].where, "share": float(shares[at]),
              "text": " ".join(example_texts(examples[at]))[:PREVIEW_CHARS]}
             for at in np.lexsort((-hits, -shares))[:MAX_SHOWN] if hits[at]]
    return {"examples": len(examples), "too_short": int((grams == 0).sum()), "read": len(read),
            "share": float(hits.sum() / max(1, grams.sum())), "worst": worst}


def contamination(texts: Mapping[str, Callable[[], NumberedTexts]], sets: Mapping[str, Sequence[Example]],
                  n: int) -> list[dict[str, Any]]:
    """One row for each text and each set of examples."""
    found = []
    for source, read in texts.items():
        bloom = ngram_filter(read, n)
        found += [{"text": source, "set": part, **example_overlap(bloom, examples, n)} for part,
                  examples in sets.items()
                  if examples]
    return found
