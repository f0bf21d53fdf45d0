"""Writes a corpus block by block: append-only, with only counts in memory.

`corpus.py` describes the arrays and files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stemma.corpus.corpus import TEXT


@dataclass(frozen=True, slots=True)
class TokenizedBlock:
    """Tokenised passages, in order. A passage continues the document of the previous passage unless it starts one."""

    arrays: dict[str, np.ndarray]  # one value per token: tokens, word_starts, starts, lengths, capitals, annotations
    sentences: np.ndarray  # first token of each sentence, counted from the block's first token
    bounds: np.ndarray  # first token of each passage, and the end
    starts_document: np.ndarray  # bool per passage: it begins a document
    text: bytes  # of all passages, UTF-8
    text_bounds: np.ndarray  # first byte of each passage, and the end
    annotation: str | None = None  # annotation array of dialogues, or of queries with titles
    pair_set: tuple[str, str] | None = None  # for pairs: name and prefix of their set
    num_dropped: int = 0  # pairs dropped because one side has no token
    num_chinese_tokens: int = 0  # tokens in Chinese text
    held_out: bool = False

    @property
    def num_documents(self) -> int:
        """Number of documents with tokens, for blocks of whole documents."""
        edges = np.append(self.bounds[:-1][self.starts_document], self.bounds[-1])
        return int((np.diff(edges) > 0).sum())


def token_type(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


class ShardWriter:
    """Appends blocks of tokenised text to a corpus folder, in order."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int, annotations: Sequence[str] = ()):
        self.folder = folder
        self.shard_tokens = shard_tokens
        self.arrays = {"tokens": token_type(vocab_size), "word_starts": "|u1", "starts": "<u4", "lengths": "<u2",
                       "capitals": "|u1", **dict.fromkeys(annotations, "|u1")}
        self.counts = np.zeros(vocab_size, np.int64)
        self.tokens = self.text_bytes = self.documents = self.sentences = 0
        self.shards: list[dict[str, Any]] = []
        self._open = np.zeros((0, 2), np.int64)  # first token and text byte of the unfinished document
        self._indexes = {name: (folder / f"{name}.bin").open("wb") for name in ("documents", "sentences", "texts")}
        self._files: dict[str, Any] = {}

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (*self._indexes.values(), *self._files.values()):
            file.close()

    def append(self, block: TokenizedBlock) -> None:
        document_starts = np.stack([self.tokens + block.bounds[:-1], self.text_bytes + block.text_bounds[:-1]], axis=1)
        document_starts = document_starts[block.starts_document]  # first token and text byte of each new document
        self._write_index("sentences", self.tokens + block.sentences)
        self.sentences += len(block.sentences)
        self._close_documents(document_starts)
        self.counts += np.bincount(block.arrays["tokens"], minlength=len(self.counts))
        first_token, first_byte = self.tokens, self.text_bytes
        while (cut := self._next_shard_start(document_starts)) is not None:
            self._write(block, first_token, first_byte, *cut)
            self._close_shard()
        self._write(block, first_token, first_byte, first_token + len(block.arrays["tokens"]),
                    first_byte + len(block.text))

    def finish(self) -> dict[str, Any]:
        """Close the last document and shard; returns the manifest's entries about the arrays."""
        self._close_documents(np.array([[self.tokens, self.text_bytes]], np.int64))
        self._write_index("documents", np.array([self.tokens]))
        self._write_index("sentences", np.array([self.tokens]))
        self._close_shard()
        (self.folder / "counts.bin").write_bytes(self.counts.astype("<i8").tobytes())
        return {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens,
                "arrays": self.arrays, "shards": self.shards}

    def _close_documents(self, document_starts: np.ndarray) -> None:
        bounds = np.concatenate([self._open, document_starts])
        has_tokens = bounds[1:, 0] > bounds[:-1, 0]  # documents without tokens are dropped
        self._write_index("documents", bounds[:-1, 0][has_tokens])
        self._write_index("texts", np.stack([bounds[:-1, 1], bounds[1:, 1]], axis=1)[has_tokens])
        self.documents += int(has_tokens.sum())
        self._open = bounds[-1:]

    def _next_shard_start(self, document_starts: np.ndarray) -> tuple[int, int] | None:
        """The first document start at which the open shard is full."""
        written = self.shards[-1]["tokens"] if self._files else 0
        index = int(np.searchsorted(document_starts[:, 0], self.tokens - written + self.shard_tokens))
        if index == len(document_starts):
            return None
        token, byte = document_starts[index].tolist()
        return token, byte

    def _write(self, block: TokenizedBlock, first_token: int, first_byte: int, token: int, byte: int) -> None:
        """Write the rest of the block up to this token and this byte of the text."""
        if (token, byte) == (self.tokens, self.text_bytes):
            return  # no empty shards
        if not self._files:
            folder = self.folder / f"shard-{len(self.shards):05d}"
            folder.mkdir()
            self._files = {name: (folder / f"{name}.bin").open("wb") for name in (*self.arrays, TEXT)}
            self.shards.append({"folder": folder.name, "tokens": 0, "text_bytes": 0})
        for name, kind in self.arrays.items():
            values = block.arrays[name][self.tokens - first_token : token - first_token]
            self._files[name].write(np.ascontiguousarray(values, kind).data)
        self._files[TEXT].write(memoryview(block.text)[self.text_bytes - first_byte : byte - first_byte])
        self.shards[-1]["tokens"] += token - self.tokens
        self.shards[-1]["text_bytes"] += byte - self.text_bytes
        self.tokens, self.text_bytes = token, byte

    def _close_shard(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _write_index(self, name: str, values: np.ndarray) -> None:
        self._indexes[name].write(np.ascontiguousarray(values, "<i8").data)
