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


def is_part(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether `part` is `whole` with some tokens left out."""
    remaining = iter(whole)
    return all(token in remaining for token in part)


def is_rotation(turned: Sequence[int], whole: Sequence[int]) -> bool:
    return any(list(turned) == [*whole[start:], *whole[:start]] for start in range(len(whole)))
