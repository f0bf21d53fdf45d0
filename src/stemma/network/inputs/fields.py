"""What inputs ask of the float fields of a corpus."""

from __future__ import annotations

from typing import Any

BLOCK = 1 << 20  # rows looked at in one piece


def field_lacks(corpus: Any, field: str, size: int, key: str | None) -> str | None:
    """What a corpus does not have of a field with so many numbers a token; `key` is the setting that says how many, or
    None: there is no choice."""
    if field not in corpus.fields:
        return f'the corpus has no field "{field}"; lay one beside its tokens: `stemma corpus annotate ' \
               f"{corpus.path} --token-field {field}=FILE.npy`"
    found = corpus.fields[field].size
    if found == size:
        return None
    return f'the field "{field}" has {found} numbers a token: ' + (f"it must have {size}" if key is None else
                                                                   f"set {key}={found}")


def field_range(corpus: Any, field: str) -> tuple[float, float]:
    """The least and the greatest number of a field."""
    blocks = [array[first:first + BLOCK] for array in corpus.fields[field].arrays
              for first in range(0, len(array), BLOCK)]
    return min(float(block.min()) for block in blocks), max(float(block.max()) for block in blocks)
