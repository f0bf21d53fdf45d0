"""Guesses the encoding of a text, for error messages: one in which it decodes *and* looks like text.

Decoding alone is not enough: most Latin-1 bytes also decode as GB 18030, into rare Chinese characters. So each
candidate has a set of usual characters.
"""

from __future__ import annotations

import codecs
import re
from functools import cache

SAMPLE = 4096
FEW = 12  # up to this many characters are taken for Chinese, though they could be Korean
DAMAGED = 0.02  # maximum fraction of bad characters in a damaged text
_FULL_WIDTH = "\u3000-\u303f\uff01-\uff5e"
_CYRILLIC = "\u0451\u0430-\u044f"  # lower case; the wrong one of two encodings turns most letters into capitals
_LATIN_MARKS = "«»°§©®¿¡·½²³ºª€£–—‘’“”„…"
_LATIN_LETTER = "[À-ÖØ-öø-ÿŒœŠšŽžŸ]"


@cache
def _candidates() -> tuple[tuple[str, re.Pattern[str], float], ...]:
    """(encoding, usual characters, minimum fraction of usual among non-ASCII characters), the strictest first."""
    chinese = "".join(bytes((row, cell)).decode("gb2312", "ignore") for row in range(0xB0, 0xD8)
                      for cell in range(0xA1, 0xFF))  # the 3,755 most frequent characters
    traditional = "".join(bytes((row, cell)).decode("big5", "ignore") for row in range(0xA4, 0xC7)
                          for cell in (*range(0x40, 0x7F), *range(0xA1, 0xFF)))
    japanese = f"[\u3040-\u30ff一-鿿{_FULL_WIDTH}]"
    return (("euc-kr", re.compile(f"[\uac00-\ud7a3{_FULL_WIDTH}]"), 0.9),
            ("gb18030", re.compile(f"[{chinese}{_FULL_WIDTH}“”‘’—…·]"), 0.8),
            ("shift_jis", re.compile(japanese), 0.9),
            ("euc-jp", re.compile(japanese), 0.9),
            ("big5", re.compile(f"[{traditional}{_FULL_WIDTH}]"), 0.8),
            ("cp1251", re.compile(f"[{_CYRILLIC}]"), 0.7),
            ("koi8-r", re.compile(f"[{_CYRILLIC}]"), 0.7))


def likely_encoding(data: bytes, start: int, tried: str) -> str | None:
    """The likely encoding; None if none fits. `start` is the first byte that the encoding `tried` cannot decode."""
    if tried != "utf-8" and _decodes(data[:SAMPLE], "utf-8"):
        return "utf-8"
    if western := _western(data[max(0, start - FEW):start + SAMPLE], tried):
        return western
    sample = data[start:start + SAMPLE]
    for encoding, usual, min_fraction in _candidates():
        text = codecs.getincrementaldecoder(encoding)("replace").decode(sample)
        foreign = re.sub(r"[\x00-\x7f]", "", text)
        if codecs.lookup(encoding).name != tried and len(foreign) > (FEW if encoding == "euc-kr" else 0) and \
                foreign.count("\ufffd") <= DAMAGED * len(foreign) and \
                len(usual.findall(foreign)) >= min_fraction * len(foreign):
            return encoding
    return None


def _western(sample: bytes, tried: str) -> str | None:
    """Latin-1 or Windows-1252, if most accented letters are next to plain letters."""
    encoding = "cp1252" if re.search(rb"[\x80-\x9f]", sample) else "latin-1"
    text = sample.decode(encoding, "replace")
    foreign = re.findall(r"[^\x00-\x7f]", text)
    marks = [character for character in foreign if character in _LATIN_MARKS]
    near_letters = re.findall(f"(?<=[A-Za-z]){_LATIN_LETTER}|{_LATIN_LETTER}(?=[A-Za-z])", text)
    alone = re.fullmatch(_LATIN_LETTER, text)  # at the end of a file there may be nothing else
    fits = alone or len(marks) + 1.5 * len(near_letters) >= len(foreign)
    return encoding if fits and codecs.lookup(encoding).name != tried else None


def _decodes(sample: bytes, encoding: str) -> bool:
    """Whether the sample decodes; its last character may be cut."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return False
    return True
