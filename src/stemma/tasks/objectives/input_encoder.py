"""Examples as rows of ids: texts cut to fit the window and laid out by the model's templates, as in pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stemma.errors import UserError
from stemma.schema.corpus import TEXTS, TemplateSlot, parse_template
from stemma.text.tokenizer import Tokenizer

MIN_TEXT_TOKENS = 8  # tokens of text that a row must hold


@dataclass(frozen=True, slots=True)
class EncodedSequence:
    input_ids: np.ndarray  # (L,) int64
    segment_ids: np.ndarray  # (L,) int64
    text_spans: tuple[tuple[int, int], ...]  # first place and number of tokens of each text


class InputEncoder:
    """`single` and `pair` name the positions of one text and of two: "start A separator B:1 separator:1"; `more` those
    of three texts, of four and so on."""

    def __init__(self, tokenizer: Tokenizer, single: str, pair: str, max_length: int, more: Sequence[str] = ()):
        self.tokenizer, self.max_length = tokenizer, max_length
        self._slots = {texts: parse_template(template) for texts, template in enumerate((single, pair, *more), 1)}
        self.num_truncated = 0  # rows so far that lost some of their text
        least = min(map(self.text_capacity, self._slots))
        if self.text_capacity(2) < MIN_TEXT_TOKENS or least < MIN_TEXT_TOKENS:
            raise UserError(f"rows of {max_length} tokens leave no room for text beside the special tokens; set "
                            f"corpus.sequence_length to {max_length - least + MIN_TEXT_TOKENS} or more.")

    def text_capacity(self, texts: int) -> int:
        """How many tokens of so many texts fit a row."""
        return self.max_length - sum(not slot.is_text for slot in self._slots[texts])

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The bare tokens of each text."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The bare tokens of each text, (n,), and the characters where each begins and ends, (n, 2)."""
        return [(np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2))
                for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def encode_examples(self, examples: Sequence[tuple[str, ...]]) -> list[EncodedSequence]:
        """A row for each example of one text or more."""
        encoded = iter(self.encode_texts([text for texts in examples for text in texts]))
        return [self.build_sequence([next(encoded) for _ in texts]) for texts in examples]

    def build_sequence(self, texts: Sequence[Sequence[int]]) -> EncodedSequence:
        """The texts' tokens between special ones; what is too long is cut from its end, the longest text first."""
        texts = self.truncate(texts)
        ids: list[int] = []
        segments: list[int] = []
        where = []
        for slot in self._slots[len(texts)]:
            tokens = self._slot_tokens(slot, texts)
            if slot.is_text:
                where.append((len(ids), len(tokens)))
            ids += tokens
            segments += [slot.segment] * len(tokens)
        return EncodedSequence(np.array(ids, np.int64), np.array(segments, np.int64), tuple(where))

    def truncate(self, texts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """A token at a time is cut from the end of the longest text, of equally long ones from the last. So all that
        are longer than some length are cut to it, and the first of them keep one token more while there is room."""
        capacity, lengths = self.text_capacity(len(texts)), [len(part) for part in texts]
        if sum(lengths) <= capacity:
            return list(texts)
        self.num_truncated += 1
        level, used = 0, 0
        for number, length in enumerate(sorted(lengths)):  # the shorter ones stay whole
            level = (capacity - used) // (len(lengths) - number)
            if length > level:
                break
            used += length
        left = capacity - sum(min(length, level) for length in lengths)
        truncated = []
        for part in texts:
            more = 1 if left > 0 and len(part) > level else 0
            left -= more
            truncated.append(part[:level + more])
        return truncated

    def _slot_tokens(self, slot: TemplateSlot, texts: Sequence[Sequence[int]]) -> list[int]:
        return list(texts[TEXTS.index(slot.name)]) if slot.is_text else [self.tokenizer.special_id(slot.name)]
