"""Validation split of raw text, before a tokenizer is trained: a vocabulary learned from the validation text would make
it look easier than new text.

Holds out whole documents in random order; if all documents are long, the last sentences of the longest. Sizes are in
characters. The text is streamed, as often as needed, and never kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stemma.text.parallel import TextPair
from stemma.text.readers import Passage
from stemma.text.sentences import sentence_starts

LARGE_DOCUMENT_DIVISOR = 10  # a document larger than 1/10 of the text (and than the target) is not held out as a whole
SEED = 20_261_117


@dataclass(frozen=True)
class HeldOutSplit:
    """Indices of the held-out documents, or the point at which one long document is split."""

    documents: frozenset[int]
    cut: tuple[int, int] | None = None  # (document index, minimum number of its characters in the training split)

    @classmethod
    def of_passages(cls, passages: Iterable[Passage], fraction: float) -> HeldOutSplit:
        sizes: list[int] = []
        for passage in passages:
            if passage.starts_document:
                sizes.append(0)
            sizes[-1] += len(passage.text)
        target_size = max(1, round(fraction * sum(sizes)))
        held_out = hold_out(sizes, target_size, SEED)
        if held_out or not sizes:
            return cls(frozenset(held_out))
        longest = int(np.argmax(sizes))
        return cls(frozenset(), (longest, max(sizes[longest] - target_size, sizes[longest] // 2)))

    @classmethod
    def of_pairs(cls, pairs: Iterable[TextPair], fraction: float) -> HeldOutSplit:
        sizes = [len(pair.source) + len(pair.target) for pair in pairs]
        return cls(frozenset(hold_out(sizes, max(1, round(fraction * sum(sizes))), SEED)))

    def passages(self, passages: Iterable[Passage], held_out: bool) -> Iterator[Passage]:
        """The held-out passages, or the training passages."""
        index, offset, after_cut = -1, 0, False
        for passage in passages:
            if passage.starts_document:
                index, offset, after_cut = index + 1, 0, False
            if self.cut is None or index != self.cut[0]:
                if (index in self.documents) is held_out:
                    yield passage
                continue
            middle = 0 if after_cut else _sentence_from(passage.text, self.cut[1] - offset)
            train, validation = passage.text[:middle], passage.text[middle:]
            if train and not held_out:
                yield replace(passage, text=train)
            if validation and held_out:
                yield replace(passage, text=validation, starts_document=not after_cut)
            offset, after_cut = offset + len(passage.text), after_cut or bool(validation)

    def pairs(self, pairs: Iterable[TextPair], held_out: bool) -> Iterator[TextPair]:
        return (pair for index, pair in enumerate(pairs) if (index in self.documents) is held_out)


def hold_out(sizes: Sequence[int], target_size: int, seed: int) -> set[int]:
    """Indices of whole documents in random order up to the target size, none of them a large part of the text; the
    empty set if that is not possible."""
    limit = max(target_size, sum(sizes) // LARGE_DOCUMENT_DIVISOR)
    held_out: set[int] = set()
    total = 0
    for index in np.random.default_rng(seed).permutation(len(sizes)).tolist():
        if total >= target_size:
            break
        if 0 < sizes[index] <= limit - total:
            held_out.add(index)
            total += sizes[index]
    return held_out if total >= target_size / 2 and len(held_out) < len(sizes) else set()


def _sentence_from(text: str, min_offset: int) -> int:
    """Offset of the first sentence that starts at or after `min_offset`; the text's length if there is none."""
    if min_offset >= len(text):
        return len(text)
    starts = sentence_starts(text)
    starts = starts[starts >= max(min_offset, 1)]
    return int(starts[0]) if len(starts) else len(text)
