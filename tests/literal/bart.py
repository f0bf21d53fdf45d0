"""BART's noise functions on one row, token by token."""

from __future__ import annotations

from collections.abc import Sequence


def infilled(text: Sequence[int], span: Sequence[int], inserted: Sequence[int], mask: int) -> list[int]:
    """Text infilling: every span becomes one mask. `span`: the span index of each token, -1 for none; `inserted`: the
    number of masks before each token, and after the last."""
    result: list[int] = []
    replaced: set[int] = set()
    for position, token in enumerate(text):
        result += [mask] * inserted[position]
        if span[position] < 0:
            result.append(token)
        elif span[position] not in replaced:
            result.append(mask)
            replaced.add(span[position])
    return result + [mask] * inserted[len(text)]


def is_part(subsequence: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether `subsequence` is `tokens` with some left out."""
    remaining = iter(tokens)
    return all(token in remaining for token in subsequence)


def is_rotation(rotated: Sequence[int], tokens: Sequence[int]) -> bool:
    return any(list(rotated) == [*tokens[start:], *tokens[:start]] for start in range(len(tokens)))
