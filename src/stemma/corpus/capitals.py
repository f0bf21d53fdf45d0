"""Which tokens begin with a capital: noted once, since a vocabulary without capitals no longer shows it."""

from __future__ import annotations

from functools import cache

import numpy as np

CASED = 0x20000  # no script with capitals has a character from here on
CAPITAL, SPACE = 1, 2


def capitals(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(tokens,) uint8: 1 where a token, given by its first character and the one behind its last, begins with a
    capital. Some tokenizers count the space before a word as its first character; the one after it is meant."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    last = len(characters) - 1  # a token of no width may stand behind it

    def kind(place: np.ndarray) -> np.ndarray:
        return _kinds()[np.minimum(characters[np.minimum(place, last)], CASED)]

    first = starts + ((kind(starts) == SPACE) & (ends - starts > 1))
    return ((kind(first) == CAPITAL) & (ends > starts)).astype(np.uint8)


@cache
def _kinds() -> np.ndarray:
    """(CASED + 1,) uint8: what each character is; the last entry answers for all that have no case."""
    kinds = np.zeros(CASED + 1, np.uint8)
    for code in range(CASED):
        character = chr(code)
        kinds[code] = CAPITAL if character.isupper() or character.istitle() else SPACE * character.isspace()
    return kinds
