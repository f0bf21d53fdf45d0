"""Rule-based sentence splitting for English and Chinese: a stop, closing quotes, and a possible sentence start.

Regular expressions find the candidates, about one per sentence; Python code checks only these. A full stop may belong
to an abbreviation, an initial or a numbered list; a full-width stop always ends a sentence.
"""

from __future__ import annotations

import re

import numpy as np

from stemma.errors import UserError

CLOSING = "\"'”’)]}»」』）】》〉"
OPENING = "\"'“‘([{«「『（【《〈"
FULL_WIDTH_STOPS = "。！？；｡"
STOPS = ".!?…" + FULL_WIDTH_STOPS
WIDE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CLOSING, _OPENING = f"[{re.escape(CLOSING)}]*", f"[{re.escape(OPENING)}]*"
# Stops and closing marks. A full-width stop needs nothing more; the others need white space or a Chinese or Japanese
# character. (Two expressions, since `re` is fast at expressions that start with one set of characters.)
FULL_WIDTH = re.compile(rf"[{FULL_WIDTH_STOPS}][{STOPS}]*{_CLOSING}\s*")
CANDIDATE = re.compile(rf"[.!?…]+{_CLOSING}(?:\s+|(?={_OPENING}[{WIDE}]))")
LOWER_CASE_NEXT = re.compile(rf"{_OPENING}[a-zà-öø-ÿ]")
FIRST_WORD = re.compile(rf"{_OPENING}(\w*)")
LINE_START = re.compile(r"^\s*(?=\S)", re.MULTILINE)
PARAGRAPH = re.compile(r"\n(?:[^\S\n]*\n)+\s*")
NEW_LINE = re.compile(r"\n\s*")
INITIALS = re.compile(r"(?:\w\.)+\w")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations that never end a sentence.
NEVER_LAST = _words(
    "mr mrs ms dr prof rev hon gen col maj capt lt sgt cmdr gov sen rep pres supt messrs mme mlle st mt ft "
    "e.g i.e eg ie cf vs viz approx ca fig figs eq eqs vol vols pp eds"
)
# Abbreviations that do not end a sentence if a number follows.
BEFORE_NUMBERS = _words("no nos art sec ch p jan feb mar apr jun jul aug sep sept oct nov dec")
# Abbreviations that end a sentence only if the next word is a typical first word.
SELDOM_LAST = _words("etc inc ltd co corp jr sr dept univ assn bros a.m p.m u.s u.k u.n d.c ph.d b.c a.d est")
STARTERS = _words(
    "a an the this that these those he she it we they you i there here his her its our their my your "
    "in on at as by for from if when while after before since although though however but and so then thus "
    "what who why how where which one some many most all no not"
)


def sentence_starts(text: str, lines: str = "auto") -> np.ndarray:
    """Character offsets (int64, ascending) of sentence starts; the first is the first character that is not a space.

    lines: "line" (a line is a sentence), "split" (a line end is white space), or "auto": if most lines end in a stop, a
    line end also ends a sentence; otherwise the text is wrapped, and only an empty line does.
    """
    if lines not in ("line", "split", "auto"):
        raise UserError(f'lines is "{lines}"; choose line, split or auto.')
    if lines == "line":
        starts = {match.end() for match in LINE_START.finditer(text)}
    else:
        starts = {len(text) - len(text.lstrip())}
        if lines == "auto":
            breaks = NEW_LINE if _lines_end_sentences(text) else PARAGRAPH
            starts.update(match.end() for match in breaks.finditer(text))
        starts.update(_after_stops(text))
    starts.discard(len(text))
    return np.array(sorted(starts), dtype=np.int64)


def _lines_end_sentences(text: str) -> bool:
    """Whether most non-empty lines end in a stop."""
    lines = [line for line in map(str.rstrip, text.split("\n")) if line]
    stopped = sum(line[-1] in STOPS or (line[-1] in CLOSING and line.rstrip(CLOSING)[-1:] in STOPS) for line in lines)
    return len(lines) > 1 and 2 * stopped > len(lines)


def _after_stops(text: str) -> list[int]:
    caseless = text == text.lower()  # in a text without capitals, a lower-case letter may begin a sentence
    starts = [match.end() for match in FULL_WIDTH.finditer(text)]
    for match in CANDIDATE.finditer(text):
        stop, start = match.span()
        if not caseless and LOWER_CASE_NEXT.match(text, start):
            continue
        if text[stop] == "." and text[stop + 1] != "." and _is_abbreviation(text, stop, start):
            continue
        starts.append(start)
    return starts


def _is_abbreviation(text: str, stop: int, start: int) -> bool:
    """Whether the full stop at `stop` belongs to the word before it."""
    context = text[max(0, stop - 20) : stop]
    words = context.split()
    word = words[-1].lstrip(OPENING) if words else ""
    if word.isdecimal():  # "1. Introduction": a number alone at the start of its line
        return context[: -len(word)][-1:] in ("", "\n")
    lowered = word.lower()
    if lowered in NEVER_LAST:
        return True
    if lowered in BEFORE_NUMBERS:
        return text[start : start + 1].isdigit()
    if lowered in SELDOM_LAST or (len(word) == 1 and word.isupper()) or (len(word) < 8 and INITIALS.fullmatch(word)):
        following = FIRST_WORD.match(text, start)
        return following is None or following.group(1).lower() not in STARTERS
    return False
