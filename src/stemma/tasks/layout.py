"""Examples as rows of ids: texts cut to fit the window and laid out by the model's templates, as in pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stemma.errors import UserError
from stemma.schema.corpus import TEXTS, Slot, parse_template
from stemma.text.tokenizer import Tokenizer

LEAST = 8  # tokens of text that a row must hold


@dataclass(frozen=True, slots=True)
class Row:
    ids: np.ndarray  # (L,) int64
    segments: np.ndarray  # (L,) int64
    parts: tuple[tuple[int, int], ...]  # first place and number of tokens of each text


class RowLayout:
    """`single` and `pair` name the positions of one text and of two: "start A separator B:1 separator:1"; `more` those
    of three texts, of four and so on."""

    def __init__(self, tokenizer: Tokenizer, single: str, pair: str, longest: int, more: Sequence[str] = ()):
        self.tokenizer, self.longest = tokenizer, longest
        self._slots = {texts: parse_template(template) for texts, template in enumerate((single, pair, *more), 1)}
        self.cut = 0  # rows so far that lost some of their text
        least = min(map(self.room, self._slots))
        if self.room(2) < LEAST or least < LEAST:
            raise UserError(f"rows of {longest} tokens leave no room for text beside the special tokens; set "
                            f"corpus.sequence_length to {longest - least + LEAST} or more.")

    def room(self, texts: int) -> int:
        """How many tokens of so many texts fit a row."""
        return self.longest - sum(not slot.is_text for slot in self._slots[texts])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The bare tokens of each text."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def placed(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The bare tokens of each text, (n,), and the characters where each begins and ends, (n, 2)."""
        return [(np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2))
                for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def rows(self, examples: Sequence[tuple[str, ...]]) -> list[Row]:
        """A row for each example of one text or more."""
        encoded = iter(self.encode([text for texts in examples for text in texts]))
        return [self.row([next(encoded) for _ in texts]) for texts in examples]

    def row(self, parts: Sequence[Sequence[int]]) -> Row:
        """The texts' tokens between special ones; what is too long is cut from its end, the longest text first."""
        parts = self.fit(parts)
        ids: list[int] = []
        segments: list[int] = []
        where = []
        for slot in self._slots[len(parts)]:
            tokens = self._tokens(slot, parts)
            if slot.is_text:
                where.append((len(ids), len(tokens)))
            ids += tokens
            segments += [slot.segment] * len(tokens)
        return Row(np.array(ids, np.int64), np.array(segments, np.int64), tuple(where))

    def fit(self, parts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """A token at a time is cut from the end of the longest text, of equally long ones from the last. So all that
        are longer than some length are cut to it, and the first of them keep one token more while there is room."""
        room, lengths = self.room(len(parts)), [len(part) for part in parts]
        if sum(lengths) <= room:
            return list(parts)
        self.cut += 1
        level, kept = 0, 0
        for number, length in enumerate(sorted(lengths)):  # the shorter ones stay whole
            level = (room - kept) // (len(lengths) - number)
            if length > level:
                break
            kept += length
        left = room - sum(min(length, level) for length in lengths)
        made = []
        for part in parts:
            more = 1 if left > 0 and len(part) > level else 0
            left -= more
            made.append(part[:level + more])
        return made

    def _tokens(self, slot: Slot, parts: Sequence[Sequence[int]]) -> list[int]:
        return list(parts[TEXTS.index(slot.name)]) if slot.is_text else [self.tokenizer.role(slot.name)]
