"""How text becomes pieces."""

from __future__ import annotations

from typing import Literal

from stemma.schema.base import Count, Settings

TokenizerKind = Literal["wordpiece", "bpe", "byte_bpe", "unigram", "word", "character"]


class TokenizerSettings(Settings):
    kind: TokenizerKind
    vocab_size: Count
    lowercase: bool = False
    cjk_spacing: bool = True  # spaces around CJK characters, so that each becomes a word of its own
    simplify: bool = False  # traditional Chinese to simplified (OpenCC), before anything else
