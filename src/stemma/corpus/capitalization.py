"""Marks tokens that begin with a capital letter. Computed at build time: a lower-cased vocabulary loses this."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

MAX_CASED_CODEPOINT = 0x20000  # no code point from here on has case
CAPITAL, SPACE = 1, 2


def starts_with_capital(text: str, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """(tokens,) uint8: 1 if the token from character `starts` to `ends` begins with a capital. Some tokenizers count
    the space before a word as its first character; then the next character decides."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    last = len(characters) - 1  # an empty token may start after it

    def kind(offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
        codes: NDArray[np.uint32] = np.minimum(characters[np.minimum(offsets, last)], MAX_CASED_CODEPOINT)
        return _character_kinds()[codes]

    first: NDArray[np.int64] = starts + ((kind(starts) == SPACE) & (ends - starts > 1))
    capitalized: NDArray[np.bool_] = (kind(first) == CAPITAL) & (ends > starts)
    return capitalized.astype(np.uint8)


@cache
def _character_kinds() -> NDArray[np.uint8]:
    """(MAX_CASED_CODEPOINT + 1,) uint8: kind of each code point; the last entry is for all code points without case."""
    kinds = np.zeros(MAX_CASED_CODEPOINT + 1, np.uint8)
    for code in range(MAX_CASED_CODEPOINT):
        character = chr(code)
        kinds[code] = CAPITAL if character.isupper() or character.istitle() else SPACE * character.isspace()
    return kinds
