"""Converts traditional to simplified Chinese before tokenisation (OpenCC, https://github.com/BYVoid/OpenCC).

No step of tokenizer.json can do this, since the conversion depends on context (發 or 髮). The tokenizer's configuration
enables it, and the conversion runs before the pipeline. OpenCC is optional (extra `zh`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from stemma.errors import UserError

SIMPLIFY_NOTICE = ("Stemma converts traditional Chinese to simplified before the tokenizer; tokenizer.json cannot have "
                   "that step, so another tool must do it first (OpenCC, t2s).")


def to_simplified(text: str) -> str:
    return text if text.isascii() else _converter().convert(text)


@cache
def _converter() -> Any:
    try:
        from opencc import OpenCC
    except ImportError as error:
        raise UserError('tokenizer.simplify makes traditional Chinese simplified with OpenCC, which is missing: '
                        'pip install "stemma-lm[zh]".') from error
    return OpenCC("t2s")
