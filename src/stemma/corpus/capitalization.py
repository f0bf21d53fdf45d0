"""Which tokens begin with a capital: noted once, since a vocabulary without capitals no longer shows it."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

MAX_CASED_CODEPOINT = 0x20000  # no script with capitals has a character from here on
CAPITAL, SPACE = 1, 2


def starts_with_capital(text: str, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """(tokens,) uint8: 1 where a token, given by its first character and the one behind its last, begins with a
    capital. Some tokenizers count the space before a word as its first character; the one after it is meant."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    last = len(characters) - 1  # a token of no width may stand behind it

    def kind(place: NDArray[np.int64]) -> NDArray[np.uint8]:
        codes: NDArray[np.uint32] = np.minimum(characters[np.minimum(place, last)], MAX_CASED_CODEPOINT)
        return _character_kinds()[codes]

    first: NDArray[np.int64] = starts + ((kind(starts) == SPACE) & (ends - starts > 1))
    found: NDArray[np.bool_] = (kind(first) == CAPITAL) & (ends > starts)
    return found.astype(np.uint8)


@cache
def _character_kinds() -> NDArray[np.uint8]:
    """(CASED + 1,) uint8: what each character is; the last entry answers for all that have no case."""
    kinds = np.zeros(MAX_CASED_CODEPOINT + 1, np.uint8)
    for code in range(MAX_CASED_CODEPOINT):
        character = chr(code)
        kinds[code] = CAPITAL if character.isupper() or character.istitle() else SPACE * character.isspace()
    return kinds
