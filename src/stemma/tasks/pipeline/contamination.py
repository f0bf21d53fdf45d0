"""How much of a task's dev and test sets the stages before it may have read: runs of n words that both have.

As `stemma overlap` does (GPT-2's study, Radford et al. 2019, section 4): a Bloom filter of the text's n-grams, in which
every n-gram of the examples is looked up. An example counts as read where half of its n-grams are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stemma.tasks.data.examples import Example
from stemma.tasks.pipeline.texts import Numbered, texts_in
from stemma.text.bloom import Bloom
from stemma.text.grams import gram_batches

RATE = 1e-8  # of n-grams that are found though the text does not have them
LIMIT = 0.5  # share of an example's n-grams from which on it counts as read
SHOWN = 3
HEAD = 100  # characters of an example that are shown


def filter_of(texts: Callable[[], Numbered], n: int) -> Bloom | None:
    """The n-grams of a text, which is read twice: to size the filter, and to fill it. None: it has none."""
    count = sum(len(hashes) for hashes, _ in gram_batches(texts(), n))
    if not count:
        return None
    bloom = Bloom(count, RATE)
    for hashes, _ in gram_batches(texts(), n):
        bloom.add(hashes)
    return bloom


def overlap(bloom: Bloom | None, examples: Sequence[Example], n: int) -> dict[str, Any]:
    """What of these examples stands in the text of a filter."""
    grams, hits = np.zeros((2, len(examples)), np.int64)
    parts = ((number, text) for number, example in enumerate(examples) for text in texts_in(example))
    for hashes, owners in gram_batches(parts, n):
        grams += np.bincount(owners, minlength=len(examples))
        if bloom is not None:
            hits += np.bincount(owners, weights=bloom.has(hashes), minlength=len(examples)).astype(np.int64)
    shares = hits / np.maximum(1, grams)
    read = np.flatnonzero((shares >= LIMIT) & (grams > 0))
    worst = [{"where": examples[at].where, "share": float(shares[at]), "text": " ".join(texts_in(examples[at]))[:HEAD]}
             for at in np.lexsort((-hits, -shares))[:SHOWN] if hits[at]]
    return {"examples": len(examples), "too_short": int((grams == 0).sum()), "read": len(read),
            "share": float(hits.sum() / max(1, grams.sum())), "worst": worst}


def contamination(texts: Mapping[str, Callable[[], Numbered]], sets: Mapping[str, Sequence[Example]],
                  n: int) -> list[dict[str, Any]]:
    """One row for each text and each set of examples."""
    found = []
    for source, read in texts.items():
        bloom = filter_of(read, n)
        found += [{"text": source, "set": part, **overlap(bloom, examples, n)} for part, examples in sets.items()
                  if examples]
    return found
