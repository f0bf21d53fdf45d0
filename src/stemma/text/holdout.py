"""What is held out of raw text, decided by characters before a tokenizer is trained: a vocabulary that has seen the
held-out text would make it look easier than new text is.

Whole documents in random order; where there are only long ones, the last sentences of the longest. Text is read as
often as needed and never held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stemma.text.parallel import TextPair
from stemma.text.readers import Passage
from stemma.text.sentences import sentence_starts

MAX_DOCUMENT_SHARE = 10  # a document of more than a tenth of the text (and of the share) is not held out as a whole
SEED = 20_261_117


@dataclass(frozen=True)
class HeldOutSplit:
    documents: frozenset[int]  # numbers of those that are held out
    cut: tuple[int, int] | None = None  # a document, and how many characters of it are trained on at least

    @classmethod
    def of_passages(cls, passages: Iterable[Passage], share: float) -> HeldOutSplit:
        sizes: list[int] = []
        for passage in passages:
            if passage.starts_document:
                sizes.append(0)
            sizes[-1] += len(passage.text)
        held = hold_out(sizes, wanted := max(1, round(share * sum(sizes))), SEED)
        if held or not sizes:
            return cls(frozenset(held))
        longest = int(np.argmax(sizes))
        return cls(frozenset(), (longest, max(sizes[longest] - wanted, sizes[longest] // 2)))

    @classmethod
    def of_pairs(cls, pairs: Iterable[TextPair], share: float) -> HeldOutSplit:
        sizes = [len(pair.source) + len(pair.target) for pair in pairs]
        return cls(frozenset(hold_out(sizes, max(1, round(share * sum(sizes))), SEED)))

    def passages(self, passages: Iterable[Passage], held_out: bool) -> Iterator[Passage]:
        """Those that are held out, or those to train on."""
        number, before, over = -1, 0, False  # over: what follows of the document that is cut is held out
        for passage in passages:
            if passage.starts_document:
                number, before, over = number + 1, 0, False
            if self.cut is None or number != self.cut[0]:
                if (number in self.documents) is held_out:
                    yield passage
                continue
            middle = 0 if over else _sentence_from(passage.text, self.cut[1] - before)
            train, rest = passage.text[:middle], passage.text[middle:]
            if train and not held_out:
                yield replace(passage, text=train)
            if rest and held_out:
                yield replace(passage, text=rest, starts_document=not over)
            before, over = before + len(passage.text), over or bool(rest)

    def pairs(self, pairs: Iterable[TextPair], held_out: bool) -> Iterator[TextPair]:
        return (pair for number, pair in enumerate(pairs) if (number in self.documents) is held_out)


def hold_out(sizes: Sequence[int], target_size: int, seed: int) -> set[int]:
    """Whole documents in random order until there is enough, none of them a large part of the text; none at all where
    that cannot be done."""
    most = max(target_size, sum(sizes) // MAX_DOCUMENT_SHARE)
    held: set[int] = set()
    so_far = 0
    for number in np.random.default_rng(seed).permutation(len(sizes)).tolist():
        if so_far >= target_size:
            break
        if 0 < sizes[number] <= most - so_far:
            held.add(number)
            so_far += sizes[number]
    return held if so_far >= target_size / 2 and len(held) < len(sizes) else set()


def _sentence_from(text: str, least: int) -> int:
    """Where the first sentence begins that does not begin before so many characters; behind the text if none does."""
    if least >= len(text):
        return len(text)
    starts = sentence_starts(text)
    starts = starts[starts >= max(least, 1)]
    return int(starts[0]) if len(starts) else len(text)
