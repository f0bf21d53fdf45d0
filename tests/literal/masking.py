"""Which units of one row are hidden, unit by unit, from given random numbers."""

from __future__ import annotations

from collections.abc import Sequence


def chosen_places(units: Sequence[int], rate: float, keys: Sequence[float], coin: float) -> list[bool]:
    """`units`: a number for each place, -1 where nothing may be hidden. Units come in the order of the key of their
    last place; they are taken while they fit the share, and the one that does not fit is taken if the coin is below the
    part of it that fits. A row with text hides at least one."""
    places: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        if unit >= 0:
            places.setdefault(unit, []).append(place)
    order = sorted(places, key=lambda unit: keys[places[unit][-1]])
    text = sum(map(len, places.values()))
    left = max(text * rate, min(1, text))
    taken = []
    for unit in order:
        size = len(places[unit])
        if size <= left or coin < left / size:
            taken.append(unit)
        left -= size
        if left <= 0:
            break
    taken = taken or order[:1]
    return [unit in taken for unit in units]
