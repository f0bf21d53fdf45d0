"""Traditional Chinese to simplified, before any tokenizer sees the text (OpenCC, https://github.com/BYVoid/OpenCC).

No step of tokenizer.json can do it: which character is meant (發 or 髮) hangs on the words around it. So a tokenizer
that wants it says so in its configuration, and whoever tokenises does it first. OpenCC is optional (extra `zh`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from stemma.errors import UserError

SIMPLIFY_NOTICE = ("traditional Chinese is made simplified before the tokenizer, by Stemma itself; tokenizer.json cannot hold "
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
