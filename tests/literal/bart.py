"""BART's noises on one row, token by token."""

from __future__ import annotations

from collections.abc import Sequence


def infilled(text: Sequence[int], span: Sequence[int], inserted: Sequence[int], mask: int) -> list[int]:
    """`span`: the number of the span that each token belongs to, -1 for none; `inserted`: how many masks stand before
    each token, and at last behind all. Every span becomes one mask."""
    made: list[int] = []
    seen: set[int] = set()
    for place, token in enumerate(text):
        made += [mask] * inserted[place]
        if span[place] < 0:
            made.append(token)
        elif span[place] not in seen:
            made.append(mask)
            seen.add(span[place])
    return made + [mask] * inserted[len(text)]


def is_part(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether `part` is `whole` with some tokens left out."""
    rest = iter(whole)
    return all(token in rest for token in part)


def is_rotation(turned: Sequence[int], whole: Sequence[int]) -> bool:
    return any(list(turned) == [*whole[start:], *whole[:start]] for start in range(len(whole)))
