"""Occurrences of a word in sentences, and the tokens of each: the sentences of a file, a line each, with or without the
sense that the word has there (`sentence<TAB>sense`)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stemma.errors import UserError, did_you_mean
from stemma.text.readers import read_lines
from stemma.text.text_io import display_name

CONTEXT_CHARACTERS = 32  # on either side of the word, in tables and pictures
MAX_SUGGESTIONS = 10_000  # words of the file that a typo is compared with


@dataclass(frozen=True)
class Occurrence:
    """A word in its sentence: characters `start` to `end`."""

    line: int  # of the file, from 1
    sentence: str
    start: int
    end: int
    sense: str | None = None

    @property
    def context(self) -> str:
        """The word in brackets with some characters around it."""
        left, right = self.sentence[:self.start].lstrip(), self.sentence[self.end:].rstrip()
        cut_left, cut_right = len(left) > CONTEXT_CHARACTERS, len(right) > CONTEXT_CHARACTERS
        left = "…" + left[-CONTEXT_CHARACTERS:] if cut_left else left
        right = right[:CONTEXT_CHARACTERS] + "…" if cut_right else right
        return f"{left}[{self.sentence[self.start:self.end]}]{right}"


def find_occurrences(word: str, path: str | Path, match_case: bool = False, encoding: str = "utf-8",
                     errors: str = "strict") -> list[Occurrence]:
    """All occurrences of the word in the sentences of the file, in order. A word of letters is matched whole, not
    inside another one; a Chinese word is matched wherever its characters are."""
    file, pattern = Path(path), _pattern(word, match_case)
    occurrences, sentences, words = [], 0, set[str]()
    for number, line in read_lines(file, encoding, errors):
        sentence, _, sense = line.partition("\t")
        if not sentence.strip():
            continue
        sentences += 1
        words.update(re.findall(r"\w+", sentence) if len(words) < MAX_SUGGESTIONS else ())
        occurrences += [Occurrence(number, sentence, match.start(), match.end(), sense.strip() or None)
                        for match in pattern.finditer(sentence)]
    name = display_name(file)
    if not sentences:
        raise UserError(f"{name} has no sentences; write one on each line, and after a tab its sense if you know it.")
    if not occurrences:
        case = " (with --match-case)" if match_case else ""
        raise UserError(f'"{word}" does not occur in the {sentences:,} sentences of {name}{case}; words are matched '
                        f"whole.{did_you_mean(word, words)}")
    if len({occurrence.sentence for occurrence in occurrences}) == 1:
        raise UserError(f'"{word}" occurs in one sentence of {name}; at least two different ones are needed to compare '
                        "its contexts.")
    return occurrences


def aligned_tokens(occurrence: Occurrence, offsets: Sequence[tuple[int, int]], text: str) -> list[int] | None:
    """Indices of the tokens that spell the word; None if a token has characters outside it, or no token has it (a
    sentence that was truncated). `offsets`: (start, end) of each token in `text`; a token may begin with a space."""
    if len(text) != len(occurrence.sentence):  # characters were converted, so the offsets are those of another text
        return None
    indices = []
    for index, (start, end) in enumerate(offsets):
        while start < end and text[start].isspace():
            start += 1
        if start < occurrence.end and end > occurrence.start:
            if start < occurrence.start or end > occurrence.end:
                return None
            indices.append(index)
    covered = indices and offsets[indices[-1]][1] == occurrence.end
    return indices if covered else None


def _pattern(word: str, match_case: bool) -> re.Pattern[str]:
    if not word.strip():
        raise UserError("the word is empty; give a word that occurs in the file.")
    before = r"(?<!\w)" if _is_letter_of_words(word[0]) else ""
    after = r"(?!\w)" if _is_letter_of_words(word[-1]) else ""
    return re.compile(before + re.escape(word) + after, 0 if match_case else re.IGNORECASE)


def _is_letter_of_words(character: str) -> bool:
    """Whether words with this character are separated by spaces: letters and digits, but not Chinese, Japanese or Thai
    characters (Unicode's "other letters" in a script without spaces)."""
    if not (character.isalnum() or character == "_"):
        return False
    name = unicodedata.name(character, "")
    return not name.startswith(("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR "))
