"""Reads ARPA files (`counts/arpa.py`) over a given vocabulary, from other programs too.

A pruned model may have an n-gram without its beginning, which the tables need. The missing n-grams are added with the
probability that the model gives them anyway, by backing off, and a back-off weight of 1. No probability changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stemma.counts.arpa import BEGIN, END, LN10, UNKNOWN, ZERO, Logs, escape
from stemma.counts.kneser_ney import MAX_ORDER, NgramTables
from stemma.errors import UserError, pluralize
from stemma.progress import progress_stage

SECTION = re.compile(r"\\(\d+)-grams:$")
HEADER = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)$")
ABSENT = -1  # a word that is not in the vocabulary, or an n-gram that is in no table
Ngrams = NDArray[np.int64]  # (n-grams, length) token ids, the oldest first


@dataclass(frozen=True)
class ArpaVocabulary:
    """The ids of the words of a file."""

    ids: Mapping[str, int]  # by their spelling in the file
    size: int
    end_id: int
    unknown_id: int | None
    special_ids: Collection[int] = ()  # of tokens that no text has, such as padding

    @classmethod
    def of_tokens(cls, tokens: Mapping[str, int], size: int, end_id: int, unknown_id: int | None,
                  special_ids: Collection[int] = ()) -> ArpaVocabulary:
        ids = {escape(token): token_id for token, token_id in tokens.items() if token_id not in (end_id, unknown_id)}
        unknown = size + 1 if unknown_id is None else unknown_id
        return cls({**ids, BEGIN: size, END: end_id, UNKNOWN: unknown, UNKNOWN.upper(): unknown}, size, end_id,
                   unknown_id, special_ids)

    @property
    def begin_code(self) -> int:
        """The number of <s> while a file is read; in the tables it is the end token."""
        return self.size

    @property
    def unknown_code(self) -> int:
        """The number of <unk>, which may have no token."""
        return self.size + 1 if self.unknown_id is None else self.unknown_id


@dataclass(frozen=True)
class ArpaModel:
    """The contents of a file."""

    tables: NgramTables
    num_missing: int  # tokens of text that the file does not have: they share the probability of <unk>
    has_unknown: bool  # whether the file has <unk>; otherwise those tokens have probability 0
    num_unknown: int  # n-grams with <unk> that are left out, because the vocabulary has no unknown token
    num_added: int  # n-grams that a pruned model lacks


@dataclass
class _Section:
    """The n-grams of one length, with natural logarithms."""

    ngrams: Ngrams
    log_probs: Logs  # nan: not in the file
    backoffs: Logs


def read_arpa(path: Path, lines: Iterable[str], vocabulary: ArpaVocabulary) -> ArpaModel:
    sections = _Parser(path, lines, vocabulary).parse()
    log_probs, backoffs, num_missing = _unigrams(path, sections[0], vocabulary)
    has_unknown = bool((sections[0].ngrams == vocabulary.unknown_code).any())
    num_unknown = num_added = 0
    for section in sections[1:]:
        section.ngrams[section.ngrams == vocabulary.begin_code] = vocabulary.end_id  # </s> is never first
        known = (section.ngrams < vocabulary.size).all(1)
        num_unknown += int((~known).sum())
        section.ngrams, section.log_probs, section.backoffs = (
            section.ngrams[known], section.log_probs[known], section.backoffs[known])
    tables = _build(path, vocabulary.size, log_probs, backoffs, sections)
    if tables is None:
        num_added = _add_missing_prefixes(sections)
        tables = _build(path, vocabulary.size, log_probs, backoffs, sections)
        assert tables is not None
    return ArpaModel(tables, num_missing, has_unknown, num_unknown, num_added)


class _Parser:
    """Lines to numbers."""

    def __init__(self, path: Path, lines: Iterable[str], vocabulary: ArpaVocabulary):
        self.path, self.lines, self.number, self.line = path, iter(lines), 0, ""
        self.vocabulary = vocabulary

    def fail(self, problem: str) -> NoReturn:
        raise UserError(f"{self.path}, line {self.number:,}: {problem}")

    def advance(self) -> bool:
        """Go to the next line that is not empty; False at the end of the file."""
        for line in self.lines:
            self.number += 1
            if line := line.strip():
                self.line = line
                return True
        self.line = ""
        return False

    def parse(self) -> list[_Section]:
        sizes = self.header()
        sections = []
        with progress_stage("reading n-grams", sum(sizes), "n-grams") as stage:
            for length, size in enumerate(sizes, 1):
                self.expect(f"\\{length}-grams:")
                sections.append(self.section(length, size))
                stage.advance(size)
        self.expect("\\end\\")
        return sections

    def header(self) -> list[int]:
        while self.advance() and self.line != "\\data\\":
            pass  # notes may come before
        if not self.line:
            raise UserError(f'{self.path} is no ARPA file: it has no line "\\data\\".')
        sizes: list[int] = []
        while self.advance() and not self.line.startswith("\\"):
            match = HEADER.match(self.line)
            if match is None or int(match[1]) != len(sizes) + 1:
                self.fail(f'"{self.line[:40]}" stands where "ngram {len(sizes) + 1}=NUMBER" should.')
            sizes.append(int(match[2]))
            if sizes == [0]:
                self.fail("the model has no 1-grams, so it has no words.")
        if not sizes:
            self.fail('no line "ngram 1=NUMBER" follows "\\data\\".')
        if len(sizes) > MAX_ORDER:
            self.fail(f"the model has {len(sizes)}-grams, and n-grams of up to {MAX_ORDER} tokens are supported; make "
                      "it again with a lower order.")
        return sizes

    def expect(self, wanted: str) -> None:
        if not self.line:
            self.fail(f'the file ends here, before "{wanted}"; copy it again.')
        if self.line != wanted:
            self.fail(f'"{self.line[:40]}" stands where "{wanted}" should.')

    def section(self, length: int, size: int) -> _Section:
        ids = self.vocabulary.ids
        codes: list[int] = []
        logs: list[float] = []
        weights: list[float] = []
        unknown_words: dict[str, int] = {}
        while self.advance():
            fields = self.line.split()
            if len(fields) == 1 and fields[0].startswith("\\"):
                break
            if not length < len(fields) <= length + 2:
                self.fail(f"{pluralize(len(fields), 'field')} instead of a logarithm, {pluralize(length, 'word')} and "
                          "perhaps a back-off weight.")
            try:
                logs.append(float(fields[0]))
                weights.append(float(fields[-1]) if len(fields) == length + 2 else 0.0)
            except ValueError:
                self.fail(f'"{fields[0] if len(logs) == len(weights) else fields[-1]}" is no number.')
            if not logs[-1] <= 0.0 or not abs(weights[-1]) < -ZERO + 1:  # nan fails both
                self.fail(f'"{fields[0]}" is no log10 of a probability, which is 0 at most.' if not logs[-1] <= 0.0 else
                          f'"{fields[-1]}" is no log10 of a back-off weight.')
            words = fields[1:length + 1]
            codes += (found := [ids.get(word, ABSENT) for word in words])
            if ABSENT in found:
                unknown_words |= {word: self.number for word in words if word not in ids and word not in unknown_words}
            if length > 1 and (BEGIN in words[1:] or END in words[:-1]):
                self.fail(f'"{" ".join(words)}": {BEGIN} can only come first and {END} last.')
        if unknown_words:
            examples = ", ".join(f'"{word}" (line {line:,})' for word, line in list(unknown_words.items())[:3])
            raise UserError(f"{self.path} has {pluralize(len(unknown_words), 'word')} that this tokenizer does not "
                            f"have: {examples}; give the tokenizer that its text was split with.")
        if len(logs) != size:
            self.fail(f"the header says {pluralize(size, f'{length}-gram')}, and the file has {len(logs):,}; it is "
                      "incomplete, or was edited.")
        return _Section(np.array(codes, np.int64).reshape(-1, length), np.array(logs) * LN10, np.array(weights) * LN10)


def _unigrams(path: Path, section: _Section,
              vocabulary: ArpaVocabulary) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
    """log-probabilities and back-off weights of all tokens, and the number of tokens of text that the file does not
    have. A special token is no word: it takes no part in the probability of <unk>."""
    size, end_id = vocabulary.size, vocabulary.end_id
    log_probs, backoffs = np.full(size + 2, np.nan), np.zeros(size + 2)
    tokens = section.ngrams[:, 0]
    counts = np.bincount(tokens, minlength=size + 2)
    if twice := int((counts > 1).sum()):
        same = f" {UNKNOWN} and {UNKNOWN.upper()} are one word." if counts[vocabulary.unknown_code] > 1 else ""
        raise UserError(f"{path} has {pluralize(twice, '1-gram')} twice; keep one line of each.{same}")
    log_probs[tokens], backoffs[tokens] = section.log_probs, section.backoffs
    unknown_mass = log_probs[vocabulary.unknown_code]
    absent = np.isnan(log_probs[:size])
    missing = absent.copy()
    missing[list(vocabulary.special_ids)] = False
    sharing = missing.copy()
    if vocabulary.unknown_id is not None:
        sharing[vocabulary.unknown_id] = True
    share = ZERO * LN10 if np.isnan(unknown_mass) else max(ZERO * LN10, unknown_mass - np.log(max(1, sharing.sum())))
    log_probs[:size][absent] = ZERO * LN10
    log_probs[:size][sharing] = share
    backoffs[end_id] = backoffs[vocabulary.begin_code]  # <s> is the context, </s> the prediction
    return (np.maximum(log_probs[:size], ZERO * LN10).astype(np.float32), backoffs[:size].astype(np.float32),
            int(missing.sum()))


def _build(path: Path, size: int, log_probs: NDArray[np.float32], backoffs: NDArray[np.float32],
           sections: list[_Section]) -> NgramTables | None:
    """The tables; None if the beginning of an n-gram is missing."""
    tables = NgramTables(size, [], [log_probs], [backoffs] if len(sections) > 1 else [])
    for length, section in enumerate(sections[1:], 2):
        rows = _find(tables, section.ngrams[:, :-1])
        if (rows == ABSENT).any():
            return None
        keys = rows * size + section.ngrams[:, -1]
        order = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(np.diff(keys[order]) == 0)
        if len(twice):
            raise UserError(f"{path} has {pluralize(len(twice), f'{length}-gram')} twice; keep one line of each.")
        new = np.isnan(section.log_probs)
        section.log_probs[new] = _score(tables, section.ngrams[new])
        tables.keys.append(keys[order])
        tables.log_probs.append(np.maximum(section.log_probs, ZERO * LN10)[order].astype(np.float32))
        if length < len(sections):
            tables.backoffs.append(section.backoffs[order].astype(np.float32))
    return tables


def _find(tables: NgramTables, ngrams: Ngrams) -> NDArray[np.int64]:
    """The row of each n-gram in the table of its length; ABSENT where there is none."""
    rows = ngrams[:, 0]
    for length in range(2, ngrams.shape[1] + 1):
        keys = tables.keys[length - 2] if length - 2 < len(tables.keys) else np.zeros(0, np.int64)
        if not len(keys):
            return np.full(len(ngrams), ABSENT)
        wanted = rows * tables.vocab_size + ngrams[:, length - 1]
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        rows = np.where((rows != ABSENT) & (keys[found] == wanted), found, ABSENT)
    return rows


def _score(tables: NgramTables, ngrams: Ngrams) -> Logs:
    """The log-probability of the last token of each n-gram, as far as the tables go."""
    rows, length = _find(tables, ngrams), ngrams.shape[1]
    scores = np.zeros(len(ngrams))
    known = rows != ABSENT
    scores[known] = tables.log_probs[length - 1][rows[known]] if known.any() else 0.0
    if not known.all():
        context = _find(tables, ngrams[~known, :-1])
        weights = np.where(context == ABSENT, 0.0, tables.backoffs[length - 2][np.maximum(context, 0)])
        scores[~known] = weights + _score(tables, ngrams[~known, 1:])
    return scores


def _add_missing_prefixes(sections: list[_Section]) -> int:
    """Add the beginning of every n-gram to the section below; returns how many are missing in the file."""
    added = 0
    for length in range(len(sections) - 1, 1, -1):
        below, prefixes = sections[length - 1], np.unique(sections[length].ngrams[:, :-1], axis=0)
        both = np.concatenate([below.ngrams, prefixes])
        _, first = np.unique(both, axis=0, return_index=True)
        new = prefixes[np.sort(first[first >= len(below.ngrams)]) - len(below.ngrams)]
        if len(new):
            added += len(new)
            sections[length - 1] = _Section(np.concatenate([below.ngrams, new]),
                                            np.concatenate([below.log_probs, np.full(len(new), np.nan)]),
                                            np.concatenate([below.backoffs, np.zeros(len(new))]))
    return added
