"""Extracts the prose of docstrings as plain sentences.

A docstring mixes prose with doctests, literal blocks, tables, parameter lists and reStructuredText markup. Its layout
(indentation, prompts, rules, columns) separates most of these; the remaining sentences are filtered by their fraction
of plain words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import pairwise

from stemma.text.sentences import sentence_starts

_RULE = re.compile(r"(?:([-=*~^_#+.:\"'`])\1{2,}|[-=+|*\s]{3,})")          # a line of rule characters only
_TABLE_ROW = re.compile(r"^[|+]|[^\s.!?:] {3,}\S")                           # a cell border, or a gap between columns
_FIELD = re.compile(r":[A-Za-z][^:`]*:(?:\s|$)|@\w+\s")                     # :param x:, @param
_ARGUMENT = re.compile(r"\*{0,2}\w+(?:,\s*\w+)*\s+--?\s")                  # x, y -- what they mean
_DIRECTIVE = re.compile(r"\.\.(?:\s+([\w-]+)::|\s|$)\s*")
_BULLET = re.compile(r"(?:[*+o\u2022-]|\d{1,2}[.)]|\(?[a-z\d]\))\s+")
_PROSE_DIRECTIVES = {"note", "warning", "tip", "important", "caution", "seealso"}  # directives whose content is prose

_MARKUP = [
    (re.compile(r":[\w+.:-]+:`~[\w.]*?(\w+)`"), r"\1"),                     # :class:`~package.X`
    (re.compile(r":[\w+.:-]+:`([^`<]*?)\s*(?:<[^`>]*>)?`"), r"\1"),         # :class:`X`, :ref:`words <target>`
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`'\s]+)'(?!\w)"), r"\1"),                             # `X', as typewriters quoted
    (re.compile(r"`([^`<]+?)\s*(?:<[^`>]*>)?`_{0,2}"), r"\1"),              # `X`, `words <address>`_
    (re.compile(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*]*[^\s*])\1(?![\w*])"), r"\2"),   # *emphasis*, **strong**
    (re.compile(r"\s?\[(?:\d+|#\w*)\]_?"), ""),                             # footnote marks
]
_TYPOGRAPHY = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "-",
                             "\u2026": "...", "\u00a0": " "})

_PLAIN_WORD = re.compile(r"[\"'(\[]*[A-Za-z]+(?:['/-][A-Za-z]+)*[)\]\"'.,;:!?]*")
_NOT_PROSE = re.compile(r"\w+://|www\.|\w@\w+\.\w|(?i:copyright|all rights reserved)"        # addresses and notices
                        r"|^(?:from \S+ )?import \S|^(?:def|class|for|if|elif|while|with|except) .*:$|^return \w+$"
                        r"|^[^\w\"'(\[]")
_FUNCTION_WORD = re.compile(
    r"\b(?:a|an|the|this|that|these|those|it|its|is|are|was|were|be|been|has|have|can|may|must|will|would|should|not|no"
    r"|of|to|in|for|on|at|by|with|from|as|into|and|or|but|if|when|where|which|who|what|how|than|then|you|we|they|all|any)"
    r"\b", re.IGNORECASE)
MIN_WORDS = 4  # of a paragraph; shorter ones are headings and single names


def paragraphs(document: str, quoted_code: bool = False) -> Iterator[list[str]]:
    """The prose of one docstring, a list of sentences per paragraph.

    `quoted_code`: straight quotes are markup around code, as in the pydoc topics.
    """
    for block in _blocks(document):
        text = _strip_markup(block, quoted_code)
        sentences = [sentence for sentence in _sentences(text) if is_prose(sentence)]
        if sum(len(sentence.split()) for sentence in sentences) >= MIN_WORDS:
            yield sentences


def _blocks(document: str) -> Iterator[str]:
    """Paragraphs, without doctests, literal blocks, tables, fields, directives and rules."""
    current: list[str] = []
    margin = 0                       # indentation of the current block
    skipped: int | None = None       # lines with a deeper indentation are dropped
    doctest = False                  # a prompt drops all lines up to the next empty one
    for line in [*inspect.cleandoc(document).splitlines(), ""]:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and skipped is not None:
            if indent > skipped:
                continue
            skipped = None
        if text.startswith((">>>", "... ")):
            doctest = True
        if not text or doctest or _RULE.fullmatch(text):
            if text and not doctest and len(current) == 1:
                current = []         # a rule turns the line above it into a heading
            if current:
                yield " ".join(current)
            current, doctest = [], doctest and bool(text)
            continue
        directive = _DIRECTIVE.match(text)
        bullet = _BULLET.match(text)
        not_prose = (_FIELD.match(text) or (not bullet and _TABLE_ROW.search(text))
                     or (not current and _ARGUMENT.match(text)))      # inside a paragraph it is a dash
        if current and (directive or bullet or not_prose or indent != margin):
            yield " ".join(current)
            current = []
        if directive and directive.group(1) in _PROSE_DIRECTIVES:
            text = text[directive.end():]
        elif directive or not_prose:
            skipped = indent
            continue
        elif bullet:
            indent += bullet.end()
            text = text[bullet.end():]
        margin = indent
        if text.endswith("::"):
            skipped = len(line) - len(line.lstrip())
            text = text[:-1]
        current.append(text)


def _strip_markup(text: str, quoted_code: bool) -> str:
    text = text.translate(_TYPOGRAPHY)
    if quoted_code:
        text = re.sub(r'"([^"]+)"', r"\1", text)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return " ".join(text.replace("\\", " ").split())


def _sentences(text: str) -> Iterator[str]:
    starts = [*sentence_starts(text, lines="split").tolist(), len(text)]
    for start, end in pairwise(starts):
        yield text[start:end].rstrip()


def is_prose(sentence: str) -> bool:
    """Mostly plain words, and either a complete sentence or at least one function word (the, of, is)."""
    if _NOT_PROSE.search(sentence):
        return False
    words = sentence.split()
    plain = sum(bool(_PLAIN_WORD.fullmatch(word)) for word in words)
    if plain < 0.7 * len(words):
        return False
    is_complete = sentence[0].isupper() and sentence[-1] in ".!?:"
    return is_complete or bool(_FUNCTION_WORD.search(sentence))
