"""Tokenises text with a cache of chunks, since words repeat.

Most tokenizers treat the text between two runs of whitespace independently of its context (BERT's tokenizer even the
text between two punctuation marks). For these the text is cut into chunks, every distinct chunk is tokenised once, and
the tokens of a batch are gathered from the cache with vector operations: the same tokens, several times faster. For all
other tokenizers a chunk is a whole passage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from tokenizers.pre_tokenizers import ByteLevel

from stemma.text.backend_errors import catch_panics, has_foreign_regex

# If whitespace only separates, any subset of it is a valid boundary. Vertical tab, form feed and the like are not in
# it: BERT's normaliser deletes them, which joins their neighbours.
_SPACE = r" \t\n\r"
_SEPARATED = re.compile(f"[{_SPACE}]*[^{_SPACE}]+|[{_SPACE}]+")
_PUNCTUATION = r"!-/:-@\[-`{-~"  # ASCII punctuation; BERT splits it into single-character words
# A byte-level tokenizer keeps whitespace and attaches the last space to the next word, so a boundary must be exactly
# the whitespace of the tokenizer's own expression: Unicode's White_Space, a subset of Python's \s.
_WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BYTE_LEVEL = re.compile(f"[{_WHITE}]*[^{_WHITE}]+|[{_WHITE}]+")

_SEPARATING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_LOCAL_NORMALIZERS = {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}


def chunk_pattern(backend: Backend) -> re.Pattern[str] | None:
    """Pattern of the chunks that this tokenizer treats independently; None if only whole passages are safe."""
    setup = json.loads(backend.to_str())
    if any(token["rstrip"] or re.search(r"\s", token["content"]) for token in setup["added_tokens"]):
        return None  # such a token can cross a boundary
    splitter = setup["pre_tokenizer"] or {}
    normalizers = _flat(setup["normalizer"], "normalizers")
    if splitter.get("type") == "BertPreTokenizer" and set(normalizers) <= {"BertNormalizer"}:
        return _between_punctuation(setup["added_tokens"])
    if splitter.get("type") in _SEPARATING and set(normalizers) <= _LOCAL_NORMALIZERS:
        return _SEPARATED
    if (splitter.get("type") == "ByteLevel" and splitter["use_regex"] and not splitter["add_prefix_space"]
            and set(normalizers) <= {"NFC", "Lowercase"}):
        return _BYTE_LEVEL
    return None


def _between_punctuation(added: list[dict[str, Any]]) -> re.Pattern[str]:
    """Chunks of words without punctuation or line ends: far fewer are distinct. Tokens such as [MASK] are one chunk."""
    if any(token["normalized"] or token["lstrip"] or token["single_word"]
           or not re.match(f"[{_PUNCTUATION}]", token["content"]) for token in added):
        return _SEPARATED  # the match of such a token depends on its context
    reserved = [re.escape(content) for content in sorted((token["content"] for token in added), key=len, reverse=True)]
    chunk = "|".join([*reserved, f"[{_PUNCTUATION}]", f"[^{_SPACE}{_PUNCTUATION}]+"])
    return re.compile(f" ?(?:{chunk})|[{_SPACE}]+")


def _flat(part: dict[str, Any] | None, children: str) -> list[str]:
    if part is None:
        return []
    return [name for child in part[children] for name in _flat(child, children)] if children in part else [part["type"]]


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Tokens of several concatenated texts, with character offsets into the concatenation."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int64: first character, never decreasing
    ends: np.ndarray  # int64: end (exclusive), never decreasing
    word_starts: np.ndarray  # bool: the token starts a word of the pre-tokenizer
    bounds: np.ndarray  # int64: first token of each text, and the end


class CachedEncoder:
    """Tokenises batches of texts. The cache changes the speed, never the result."""

    def __init__(self, backend: Backend, max_cached_characters: int = 2_000_000):
        self.backend = Backend.from_str(backend.to_str())  # a copy without truncation and padding
        self.backend.no_truncation()
        self.backend.no_padding()
        if isinstance(splitter := self.backend.pre_tokenizer, ByteLevel):  # offsets of a word exclude its space
            trim = processors.ByteLevel(trim_offsets=True, add_prefix_space=splitter.add_prefix_space)
            self.backend.post_processor = trim
        self.pattern = chunk_pattern(backend)
        self.foreign = has_foreign_regex(backend)
        self.max_cached_characters = max_cached_characters  # bounds the memory of the cache
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._rows: dict[str, int] = {}  # chunk -> row; row r has the tokens bounds[r] to bounds[r + 1]
        self._characters = 0
        self._bounds = np.zeros(1, np.int64)
        self._tokens = np.zeros((4, 0), np.int32)  # id, start and end within the chunk, starts a word

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        if self.pattern is None:
            chunks, chunks_per_text = list(texts), np.ones(len(texts), np.int64)
        else:
            text_chunks = [self.pattern.findall(text) for text in texts]
            chunks = list(chain.from_iterable(text_chunks))
            chunks_per_text = np.fromiter(map(len, text_chunks), np.int64, len(text_chunks))
        self._add_to_cache(chunks)
        rows = np.fromiter(map(self._rows.__getitem__, chunks), np.int64, len(chunks))
        lengths = np.fromiter(map(len, chunks), np.int64, len(chunks))
        first, counts = self._bounds[rows], self._bounds[rows + 1] - self._bounds[rows]
        token_ends = np.cumsum(counts)  # number of tokens up to the end of each chunk
        index = np.repeat(first - (token_ends - counts), counts) + np.arange(counts.sum())
        ids, starts, ends, word_starts = self._tokens[:, index]
        offset = np.repeat(np.cumsum(lengths) - lengths, counts)
        # One character may give several tokens, and some tokenizers report their offsets out of order.
        return TokenizedTexts(ids=ids, starts=np.maximum.accumulate(starts + offset),
                              ends=np.maximum.accumulate(ends + offset), word_starts=word_starts.astype(bool),
                              bounds=_prepend_zero(token_ends)[_prepend_zero(np.cumsum(chunks_per_text))])

    def _add_to_cache(self, chunks: list[str]) -> None:
        new_chunks = list(set(chunks) - self._rows.keys())
        if self._characters > self.max_cached_characters:
            self._clear_cache()
            new_chunks = list(set(chunks))
        if not new_chunks:
            return
        with catch_panics(self.foreign):
            encodings = self.backend.encode_batch(new_chunks, add_special_tokens=False)
        counts = np.fromiter(map(len, encodings), np.int64, len(encodings))
        total = int(counts.sum())
        tokens = np.empty((4, total), np.int32)
        tokens[0] = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32, total)
        flat = chain.from_iterable(chain.from_iterable(e.offsets for e in encodings))
        tokens[1:3] = np.fromiter(flat, np.int32, 2 * total).reshape(total, 2).T
        words = np.array(list(chain.from_iterable(e.word_ids for e in encodings)), np.float64)  # None becomes NaN
        tokens[3, 1:] = words[1:] != words[:-1]
        token_ends = np.cumsum(counts)
        tokens[3, (token_ends - counts)[counts > 0]] = 1
        self._rows.update(zip(new_chunks, range(len(self._rows), len(self._rows) + len(new_chunks)), strict=True))
        self._characters += sum(map(len, new_chunks))
        self._tokens = np.concatenate([self._tokens, tokens], axis=1)
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + token_ends])


def _prepend_zero(ends: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), ends])
