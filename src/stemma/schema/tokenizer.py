"""Tokenizer settings."""

from __future__ import annotations

from typing import Literal

from stemma.schema.base import Count, Settings

TokenizerKind = Literal["wordpiece", "bpe", "byte_bpe", "unigram", "word", "character"]


class TokenizerSettings(Settings):
    kind: TokenizerKind
    vocab_size: Count
    lowercase: bool = False
    cjk_spacing: bool = True  # spaces around CJK characters, so that each is a word
    simplify: bool = False  # convert traditional Chinese to simplified first (OpenCC)
