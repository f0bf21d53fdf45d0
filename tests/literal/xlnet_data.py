"""Which words XLNet predicts and in which order, as its released data code (zihangdai/xlnet, data_utils.py) has it.

What the released code does, in words:

A row has two halves: the reused one, a run of text that the next row continues, and the new one, [A, SEP, B, SEP, CLS].
Each half gets its own spans and its own order.

Spans (`_sample_mask`). Until the wanted number of places is reached or the half is over: draw a length n from 1..5 with
probability ~ 1/n, cut to what is still wanted; take a window of n * 6 places (alpha = 6, beta = 1: n * alpha // beta)
and a random share of it, 0 .. window - 1, as context to the left, the rest to the right; skip the left context, move
on to the next word start, choose a span there, skip the right context. A span that would touch the end of the half is
dropped and the search ends. What is still missing then is filled with single random places, word starts or not.
The comments there speak of n whole words, but the loop that measures the span tests the piece at its *beginning*, which
is a word start by construction, instead of the piece reached: so a span is n *pieces*, and may end inside a word.
`whole_words=True` is what the comment says; a span may then have more places than wanted.
A word start is a piece that begins with the word mark, or with "<" (special tokens), or is one ASCII punctuation sign.
Rows read backwards hold their text reversed; their half is turned round for the search and the answer turned back.

Order (`_local_perm`). A random permutation of the half (of runs of `perm_size` places, the same one in each run; as
published it is the whole half). Places that were not chosen and are not SEP or CLS leave the order: their number is -1,
everyone sees them, and they see only each other. SEP and CLS always keep their random turn, chosen or not, but are
never targets, so fewer places may be predicted than were wanted. A target sees what comes before it in the order; as
content it sees itself too. The reused half never sees the new one; the new half sees all of the reused one, targets
included.
"""

from __future__ import annotations

import string

import numpy as np

MARK = "\u2581"
Grid = list[list[bool]]
SIGNS = set(string.punctuation) - set("'<=>")  # the signs the released code lists


def begins_word(piece: str) -> bool:
    return piece.startswith((MARK, "<")) or piece in SIGNS


def spans(starts: list[bool], wanted: int | None, rng: np.random.Generator, backward: bool = False, longest: int = 5,
          alpha: int = 6, beta: int = 1, whole_words: bool = False) -> list[bool]:
    """Which places of one half are chosen; `starts` tells the places where a word begins.

    Drawn from `rng`, in this order: for each span its length, `choice(longest, p)` + 1, and its left context,
    `integers(window)`; then places to fill up, `integers(places)` each.
    """
    if backward:
        return spans(starts[::-1], wanted, rng, False, longest, alpha, beta, whole_words)[::-1]
    chosen = [False] * len(starts)
    shares = [1 / n for n in range(1, longest + 1)]
    shares = [share / sum(shares) for share in shares]
    place = 0
    while place < len(starts) and (wanted is None or sum(chosen) < wanted):
        n = int(rng.choice(longest, p=shares)) + 1
        if wanted is not None:
            n = min(n, wanted - sum(chosen))
        window = n * alpha // beta
        left = int(rng.integers(window))
        begin = place + left
        while begin < len(starts) and not starts[begin]:
            begin += 1
        if whole_words:
            end, words = begin + 1, 1
            while end < len(starts):
                words += starts[end]
                if words > n:
                    break
                end += 1
        else:
            end = begin + n
        if end >= len(starts):
            break
        for each in range(begin, end):
            chosen[each] = True
        place = end + window - left
    while wanted is not None and sum(chosen) < wanted:
        chosen[int(rng.integers(len(starts)))] = True
    return chosen


def half_order(chosen: list[bool], functional: list[bool], rng: np.random.Generator,
               perm_size: int | None = None) -> tuple[list[int], list[bool]]:
    """For each place of one half its turn (-1: none), and whether it is a target. Drawn: `permutation(perm_size)`."""
    size = perm_size or len(chosen)
    permutation = rng.permutation(size)
    order, targets = [], []
    for place in range(len(chosen)):
        turn = place // size * size + int(permutation[place % size])
        order.append(turn if chosen[place] or functional[place] else -1)
        targets.append(chosen[place] and not functional[place])
    return order, targets


def half_blocked(order: list[int], targets: list[bool]) -> Grid:
    """`perm_mask` of one half: may i *not* see j? In the content stream a place sees itself besides."""
    grid = []
    for i in range(len(order)):
        own = order[i] if targets[i] else order[i] + 1  # a target does not see itself; anything else does
        grid.append([own <= order[j] for j in range(len(order))])
    return grid


def row_blocked(reused: tuple[list[int], list[bool]], new: tuple[list[int], list[bool]]) -> Grid:
    """The grid of a whole row from what `half_order` gave for its halves."""
    first, second = half_blocked(*reused), half_blocked(*new)
    return [row + [True] * len(second) for row in first] + [[False] * len(first) + row for row in second]


def row_order(reused: list[int], new: list[int]) -> list[int]:
    """The same grid as one number a place: j is content for i if order[j] <= order[i], for a query if order[j] < it."""
    return reused + [len(reused) + 1 + turn for turn in new]
