"""Examples as rows of ids: texts cut to fit the window and laid out by the model's templates, as in pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stemma.errors import UserError
from stemma.schema.corpus import Slot, parse_template
from stemma.text.tokenizer import Tokenizer

LEAST = 8  # tokens of text that a row must hold


@dataclass(frozen=True, slots=True)
class Row:
    ids: np.ndarray  # (L,) int64
    segments: np.ndarray  # (L,) int64
    parts: tuple[tuple[int, int], ...]  # first place and number of tokens of each text


class RowLayout:
    """`single` and `pair` name the places of one text and of two: "start A separator B:1 separator:1"."""

    def __init__(self, tokenizer: Tokenizer, single: str, pair: str, longest: int):
        self.tokenizer, self.longest = tokenizer, longest
        self._slots = {1: parse_template(single), 2: parse_template(pair)}
        self.cut = 0  # rows so far that lost some of their text
        if self.room(2) < LEAST:
            raise UserError(f"rows of {longest} tokens leave no room for text beside the special tokens; set "
                            f"corpus.sequence_length to {longest - self.room(2) + LEAST} or more.")

    def room(self, texts: int) -> int:
        """How many tokens of so many texts fit a row."""
        return self.longest - sum(slot.name not in "AB" for slot in self._slots[texts])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The bare tokens of each text."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def placed(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The bare tokens of each text, (n,), and the characters where each begins and ends, (n, 2)."""
        return [(np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2))
                for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def rows(self, examples: Sequence[tuple[str, ...]]) -> list[Row]:
        """A row for each example of one text or two."""
        encoded = iter(self.encode([text for texts in examples for text in texts]))
        return [self.row([next(encoded) for _ in texts]) for texts in examples]

    def row(self, parts: Sequence[Sequence[int]]) -> Row:
        """The texts' tokens between special ones; what is too long is cut from its end, the longer text first."""
        parts = self.fit(parts)
        ids: list[int] = []
        segments: list[int] = []
        where = []
        for slot in self._slots[len(parts)]:
            tokens = self._tokens(slot, parts)
            if slot.name in ("A", "B"):
                where.append((len(ids), len(tokens)))
            ids += tokens
            segments += [slot.segment] * len(tokens)
        return Row(np.array(ids, np.int64), np.array(segments, np.int64), tuple(where))

    def fit(self, parts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        room = self.room(len(parts))
        excess = sum(map(len, parts)) - room
        if excess <= 0:
            return list(parts)
        self.cut += 1
        if len(parts) == 1:
            return [parts[0][:room]]
        first, second = map(len, parts)
        level = min(excess, abs(first - second))  # cut from the longer one alone, until they are level
        rest = excess - level
        for_first = first - (level if first > second else 0) - rest // 2
        return [parts[0][:for_first], parts[1][:room - for_first]]

    def _tokens(self, slot: Slot, parts: Sequence[Sequence[int]]) -> list[int]:
        if slot.name == "A":
            return list(parts[0])
        return list(parts[1]) if slot.name == "B" else [self.tokenizer.role(slot.name)]
