"""Encode texts as input ids: truncate them to the maximal length and add special tokens by the model's templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stemma.errors import UserError
from stemma.schema.corpus import TEXTS, TemplateSlot, parse_template
from stemma.text.tokenizer import Tokenizer

MIN_TEXT_TOKENS = 8  # a sequence must have room for this many text tokens


@dataclass(frozen=True, slots=True)
class EncodedSequence:
    input_ids: np.ndarray  # (L,) int64
    segment_ids: np.ndarray  # (L,) int64
    text_spans: tuple[tuple[int, int], ...]  # (first position, number of tokens) of each text
    unknown_words: Mapping[int, str] = field(default_factory=dict)  # position -> word outside of the vocabulary, if
    #                                                                 the encoder keeps them


class InputEncoder:
    """`single` and `pair` are the templates of one and two texts, such as "start A separator B:1 separator:1"; `more`
    are those of three, four and more texts. With `keep_unknown` sequences have the words outside of the vocabulary,
    for inputs that read the text; `encode_texts` then numbers them -1, -2, ..., so that they can be cut and joined like
    other tokens."""

    def __init__(self, tokenizer: Tokenizer, single: str, pair: str, max_length: int, more: Sequence[str] = (),
                 keep_unknown: bool = False):
        self.tokenizer, self.max_length = tokenizer, max_length
        unknown_id = tokenizer.special_token_ids.get("unknown")
        self._unknown_id = unknown_id if keep_unknown else None
        self._numbers: dict[str, int] = {}  # of unknown words, -1, -2, ...
        self._words: dict[int, str] = {}  # the same the other way round
        self._slots = {texts: parse_template(template) for texts, template in enumerate((single, pair, *more), 1)}
        self.num_truncated = 0  # sequences truncated so far
        smallest = min(map(self.text_capacity, self._slots))
        if self.text_capacity(2) < MIN_TEXT_TOKENS or smallest < MIN_TEXT_TOKENS:
            raise UserError(f"sequences of {max_length} tokens leave no room for text beside the special tokens; set "
                            f"corpus.sequence_length to {max_length - smallest + MIN_TEXT_TOKENS} or more.")

    def text_capacity(self, texts: int) -> int:
        """The number of text tokens that fit into a sequence of `texts` texts."""
        return self.max_length - sum(not slot.is_text for slot in self._slots[texts])

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, without special tokens."""
        return [ids.tolist() for ids, _ in self.encode_with_offsets(texts)] if self._unknown_id is not None else \
            [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), special=False)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The token ids of each text without special tokens, (n,), and their character offsets, (n, 2)."""
        encodings = self.tokenizer.encode_batch(list(texts), special=False)
        return [(self._number_unknown(np.array(encoding.ids, np.int64), encoding.offsets, text),
                 np.array(encoding.offsets, np.int64).reshape(-1, 2))
                for encoding, text in zip(encodings, texts, strict=True)]

    def _number_unknown(self, ids: np.ndarray, offsets: Sequence[tuple[int, int]], text: str) -> np.ndarray:
        """Token ids with a negative number for each word outside of the vocabulary, if they are kept."""
        if self._unknown_id is None:
            return ids
        text = self.tokenizer.pre_normalize(text)
        for position in np.flatnonzero(ids == self._unknown_id).tolist():
            word = text[slice(*offsets[position])]
            ids[position] = number = self._numbers.setdefault(word, -1 - len(self._numbers))
            self._words[number] = word
        return ids

    def encode_examples(self, examples: Sequence[tuple[str, ...]]) -> list[EncodedSequence]:
        """A sequence for each example of one or more texts."""
        encoded = iter(self.encode_texts([text for texts in examples for text in texts]))
        return [self.build_sequence([next(encoded) for _ in texts]) for texts in examples]

    def build_sequence(self, texts: Sequence[Sequence[int]]) -> EncodedSequence:
        """Truncate the texts, longest first, and add special tokens and segment ids."""
        texts = self.truncate(texts)
        ids: list[int] = []
        segments: list[int] = []
        spans = []
        for slot in self._slots[len(texts)]:
            tokens = self._slot_tokens(slot, texts)
            if slot.is_text:
                spans.append((len(ids), len(tokens)))
            ids += tokens
            segments += [slot.segment] * len(tokens)
        array, words = np.array(ids, np.int64), {}
        if self._unknown_id is not None:
            words = {position: self._words[ids[position]] for position in np.flatnonzero(array < 0).tolist()}
            array[array < 0] = self._unknown_id
        return EncodedSequence(array, np.array(segments, np.int64), tuple(spans), words)

    def truncate(self, texts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Remove tokens one at a time from the end of the longest text, of equally long ones from the last.

        Equivalently, texts longer than some level are cut to it, and the first of them keep one token more while there
        is room."""
        capacity, lengths = self.text_capacity(len(texts)), [len(text) for text in texts]
        if sum(lengths) <= capacity:
            return list(texts)
        self.num_truncated += 1
        level, used = 0, 0
        for index, length in enumerate(sorted(lengths)):  # shorter texts are not truncated
            level = (capacity - used) // (len(lengths) - index)
            if length > level:
                break
            used += length
        left = capacity - sum(min(length, level) for length in lengths)
        truncated = []
        for text in texts:
            extra = 1 if left > 0 and len(text) > level else 0
            left -= extra
            truncated.append(text[:level + extra])
        return truncated

    def _slot_tokens(self, slot: TemplateSlot, texts: Sequence[Sequence[int]]) -> list[int]:
        return list(texts[TEXTS.index(slot.name)]) if slot.is_text else [self.tokenizer.special_id(slot.name)]
