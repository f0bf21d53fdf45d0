"""Which units of one row are masked, unit by unit, from given random numbers."""

from __future__ import annotations

from collections.abc import Sequence


def chosen_places(units: Sequence[int], rate: float, keys: Sequence[float], coin: float) -> list[bool]:
    """The masked positions. `units`: the unit of each position, -1 for positions that are never masked. Units are
    sorted by the key of their last position, and masked while they fit the masking rate; one that fits in part is
    masked if the coin is below that fraction. A row with text has at least one masked unit."""
    positions: dict[int, list[int]] = {}
    for position, unit in enumerate(units):
        if unit >= 0:
            positions.setdefault(unit, []).append(position)
    order = sorted(positions, key=lambda unit: keys[positions[unit][-1]])
    token_count = sum(map(len, positions.values()))
    budget = max(token_count * rate, min(1, token_count))
    selected = []
    for unit in order:
        size = len(positions[unit])
        if size <= budget or coin < budget / size:
            selected.append(unit)
        budget -= size
        if budget <= 0:
            break
    selected = selected or order[:1]
    return [unit in selected for unit in units]
