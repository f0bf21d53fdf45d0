"""Which tokens XLNet predicts and in which order, as in its released data code (zihangdai/xlnet, data_utils.py).

A row has two halves: the reused one, whose text the next row continues, and the new one, [A, SEP, B, SEP, CLS]. Each
half gets its own spans and its own order.

Spans (`_sample_mask`). Until the requested number of tokens is masked or the half ends: draw a length n from 1..5 with
probability ~ 1/n, limited to the tokens still missing; take a window of n * 6 positions (alpha = 6, beta = 1:
n * alpha // beta) and a random part of it, 0 .. window - 1, as left context, the rest as right context; skip the left
context, go to the next word start, mask a span there, skip the right context. A span that would touch the end of the
half is dropped and the search ends. Missing tokens are then drawn as single random positions, word starts or not.
The comments of the code mention n whole words. But the loop that measures the span tests the token at its *beginning*,
which is always a word start, and not the token reached: so a span has n *tokens*, and may end inside a word.
`whole_words=True` follows the comment; then more tokens than requested may be masked.
A word start is a token that begins with the word mark, or with "<" (special tokens), or is one ASCII punctuation mark.
Rows that are read backwards have reversed text; their half is reversed for the search, and the result reversed back.

Order (`_local_perm`). A random permutation of the half (of blocks of `perm_size` positions, the same in each block; as
published, of the whole half). Positions that are neither masked nor SEP or CLS have the rank -1: all positions attend
to them, and they attend only to each other. SEP and CLS keep their random rank, masked or not, but are never targets,
so there may be fewer targets than requested. A target attends to positions of lower rank; in the content stream also
to itself. The reused half never attends to the new one; the new half attends to all of the reused one, targets
included.
"""

from __future__ import annotations

import string

import numpy as np

MARK = "\u2581"
Mask = list[list[bool]]
PUNCTUATION = set(string.punctuation) - set("'<=>")  # as listed in the released code


def begins_word(piece: str) -> bool:
    return piece.startswith((MARK, "<")) or piece in PUNCTUATION


def spans(starts: list[bool], requested: int | None, rng: np.random.Generator, backward: bool = False, longest: int = 5,
          alpha: int = 6, beta: int = 1, whole_words: bool = False) -> list[bool]:
    """Which tokens of one half are masked; `starts`: where a word begins; `requested`: the number of tokens.

    Draws from `rng`, in this order: for each span its length, `choice(longest, p)` + 1, and its left context,
    `integers(window)`; then `integers(len(starts))` for each missing token.
    """
    if backward:
        return spans(starts[::-1], requested, rng, False, longest, alpha, beta, whole_words)[::-1]
    masked = [False] * len(starts)
    probabilities = [1 / n for n in range(1, longest + 1)]
    probabilities = [probability / sum(probabilities) for probability in probabilities]
    position = 0
    while position < len(starts) and (requested is None or sum(masked) < requested):
        n = int(rng.choice(longest, p=probabilities)) + 1
        if requested is not None:
            n = min(n, requested - sum(masked))
        window = n * alpha // beta
        left = int(rng.integers(window))
        begin = position + left
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
        for index in range(begin, end):
            masked[index] = True
        position = end + window - left
    while requested is not None and sum(masked) < requested:
        masked[int(rng.integers(len(starts)))] = True
    return masked


def half_order(masked: list[bool], functional: list[bool], rng: np.random.Generator,
               perm_size: int | None = None) -> tuple[list[int], list[bool]]:
    """The rank of each position of one half, and whether it is a target. Draws `permutation(perm_size)`."""
    size = perm_size or len(masked)
    permutation = rng.permutation(size)
    order, targets = [], []
    for position in range(len(masked)):
        rank = position // size * size + int(permutation[position % size])
        order.append(rank if masked[position] or functional[position] else -1)
        targets.append(masked[position] and not functional[position])
    return order, targets


def half_blocked(order: list[int], targets: list[bool]) -> Mask:
    """`perm_mask` of one half: True if i does *not* attend to j. The content stream also attends to itself."""
    mask = []
    for i in range(len(order)):
        rank = order[i] if targets[i] else order[i] + 1  # only targets do not attend to themselves
        mask.append([rank <= order[j] for j in range(len(order))])
    return mask


def row_blocked(reused: tuple[list[int], list[bool]], new: tuple[list[int], list[bool]]) -> Mask:
    """`perm_mask` of a row, from `half_order` of its halves."""
    first, second = half_blocked(*reused), half_blocked(*new)
    return [row + [True] * len(second) for row in first] + [[False] * len(first) + row for row in second]


def row_order(reused: list[int], new: list[int]) -> list[int]:
    """The same as ranks: content i attends to j if order[j] <= order[i], query i if order[j] < order[i]."""
    return reused + [len(reused) + 1 + rank for rank in new]
