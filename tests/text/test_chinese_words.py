"""Chinese word starts: jieba's words in Chinese text, and none in other text."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.text import chinese_words
from stemma.text.chinese_words import cjk_word_starts, load_user_dictionary, segmenter_name

TEXT = "我来到北京清华大学, hello 中国"


def test_word_starts_are_those_of_jieba():
    pytest.importorskip("jieba")
    starts = cjk_word_starts(TEXT)
    assert segmenter_name() == "jieba" and starts.dtype == bool and len(starts) == len(TEXT)
    assert np.flatnonzero(starts).tolist() == [0, 1, 3, 5, 17]  # 我 来到 北京 清华大学 中国
    assert cjk_word_starts("no Chinese, カナ") is None


def test_without_jieba_every_character_is_a_word(monkeypatch):
    monkeypatch.setattr(chinese_words, "_jieba", lambda: None)
    assert np.flatnonzero(cjk_word_starts("a中国 人")).tolist() == [1, 2, 4]
    with pytest.raises(UserError, match=r"stemma-lm\[zh\]"):
        load_user_dictionary("words.txt")


def test_a_user_dictionary_is_loaded_lazily_and_silently(tmp_path):
    pytest.importorskip("jieba")
    (tmp_path / "words.txt").write_text("石墨烯电池 99999\n", encoding="utf-8")
    program = (
        "import sys; from stemma.text.chinese_words import *; assert 'jieba' not in sys.modules;"
        "text = '新的石墨烯电池';"
        "before = cjk_word_starts(text).tolist(); load_user_dictionary(sys.argv[1]); after = cjk_word_starts(text);"
        "print(before[2:], after.tolist()[2:])")  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path / "words.txt")], capture_output=True, text=True)
    before, after = ran.stdout.strip().split("] [")
    assert before != "[" + after and after == "True, False, False, False, False]" and ran.stderr == ""
    with pytest.raises(UserError, match="cannot read the word list"):
        load_user_dictionary(tmp_path / "none.txt")
