"""Checks of the float fields of a corpus."""

from __future__ import annotations

from typing import Any

BLOCK = 1 << 20  # rows per block


def field_lacks(corpus: Any, field: str, size: int, key: str | None) -> str | None:
    """What is missing if the corpus has no field with `size` numbers per token. `key`: the setting of the size; None:
    the size is fixed."""
    if field not in corpus.fields:
        return f'the corpus has no field "{field}"; add one: `stemma corpus annotate ' \
               f"{corpus.path} --token-field {field}=FILE.npy`"
    actual_size = corpus.fields[field].size
    if actual_size == size:
        return None
    remedy = f"it must have {size}" if key is None else f"set {key}={actual_size}"
    return f'the field "{field}" has {actual_size} numbers a token: {remedy}'


def field_range(corpus: Any, field: str) -> tuple[float, float]:
    """Minimum and maximum of a field."""
    blocks = [array[first:first + BLOCK] for array in corpus.fields[field].arrays
              for first in range(0, len(array), BLOCK)]
    return min(float(block.min()) for block in blocks), max(float(block.max()) for block in blocks)
