"""Tokenizer settings."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from stemma.schema.base import Count, Settings

TokenizerKind = Literal["wordpiece", "bpe", "byte_bpe", "unigram", "word", "character"]


class TokenizerSettings(Settings):
    size_keys = ("vocab_size",)  # a small corpus has few frequent words
    laptop_keys = ("fit_to_text",)

    kind: TokenizerKind
    vocab_size: Count
    # The vocabulary size follows from the amount of text (text/vocabulary_size.py); vocab_size is the largest one.
    fit_to_text: bool | None = None
    lowercase: bool = False
    cjk_spacing: bool = True  # spaces around CJK characters, so that each is a word
    simplify: bool = False  # convert traditional Chinese to simplified first (OpenCC)

    @field_validator("fit_to_text")
    @classmethod
    def _omit_default(cls, value: bool | None) -> bool | None:
        """Omit false, so that recipes older than this key stay unchanged."""
        return value or None
