"""Chinese word segmentation with jieba, for whole-word masking: Chinese has no spaces.

jieba is optional (extra `zh`) and loaded on first use; without it every Chinese character is a word.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

from stemma.errors import UserError

CJK_RUN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_CHINESE = CJK_RUN.pattern.removesuffix("+")
WORD = re.compile(rf"{_CHINESE}|(?:(?!{_CHINESE})\S)+")  # of raw text; each Chinese character is a word

MIN_CHINESE_FRACTION = 0.1  # fraction of Chinese tokens from which a missing segmenter is reported


def segmenter_name() -> str:
    """Name of the word segmenter. Every corpus records it, since another segmenter gives other masks."""
    return "jieba" if importlib.util.find_spec("jieba") else "none"


def missing_segmenter_notice() -> str:
    """Warning for Chinese text that was not segmented."""
    return ('without jieba every Chinese character counts as a word, so whole words cannot be masked; to segment them: '
            'pip install "stemma-lm[zh]", then build the corpus again.')


def cjk_word_starts(text: str) -> np.ndarray | None:
    """(characters,) bool: word starts within runs of CJK characters; None if the text has no such run."""
    runs = list(CJK_RUN.finditer(text))
    if not runs:
        return None
    jieba = _jieba()
    starts = np.zeros(len(text), dtype=bool)
    for run in runs:
        if jieba is None:
            starts[run.start() : run.end()] = True
        else:
            lengths = [len(word) for word in jieba.cut(run.group())]
            starts[run.start() + np.cumsum([0, *lengths[:-1]])] = True
    return starts


def load_user_dictionary(path: str | Path) -> None:
    """Add a user dictionary for this process (jieba's format: a word per line, optionally with frequency and tag)."""
    jieba = _jieba()
    if jieba is None:
        raise UserError(f'the word list {path} needs jieba: pip install "stemma-lm[zh]".')
    try:
        with Path(path).open("rb") as file:
            jieba.load_userdict(file)
    except OSError as error:
        raise UserError(f"cannot read the word list {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is no word list ({error}); write a word a line, then its frequency.") from error


@cache
def _jieba() -> ModuleType | None:
    if segmenter_name() == "none":
        return None
    with warnings.catch_warnings():  # jieba's own regular expressions warn on import
        warnings.simplefilter("ignore")
        library: ModuleType = importlib.import_module("jieba")
    library.setLogLevel(logging.CRITICAL)
    return library
