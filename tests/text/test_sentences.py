"""Sentence splitting: English and Chinese, wrapped text or one sentence per line, and speed."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stemma.errors import UserError
from stemma.text.sentences import sentence_starts


def split(text, lines="auto"):
    starts = [*sentence_starts(text, lines).tolist(), len(text)]
    return [text[a:b].rstrip() for a, b in zip(starts, starts[1:], strict=False)]


@pytest.mark.parametrize("sentences", [
    ["Mr. Smith paid $3.14 to Dr. Jones.", "He left."],
    ["The U.S. Senate met at 5 p.m. on Monday.", "It voted."],
    ["He moved to the U.S.", "The work was hard."],
    ["J. K. Rowling wrote it.", "We read it."],
    ["See e.g. Fig. 3 or No. 5.", "He said no.", "Then he left."],
    ["He asked (twice!).", '"Why?" she said.', '"Because."', "“Fine.”", "Good (really)."],
    ["Wait... what?", "Yes!", "3 men came."],
    ["Is it on example.com or v2.0.1?", "No."],
    ["他说：“你好。”", "然后走了！", "真的吗？？", "是的；", "今天3.5元。"],
    ["「行くよ。」", "彼は言った。"],
    ["他走了……", "天黑了。"],
])  # fmt: skip
def test_sentences_are_split(sentences):
    glue = "" if ord(sentences[0][0]) > 0x2fff else " "
    assert split(glue.join(sentences)) == sentences
    assert split("  \n" + glue.join(sentences) + " \n", "split") == sentences


def test_mixed_scripts_and_numbered_lists_are_split():
    assert split("Hello there. 再见!我走了。Bye. ") == ["Hello there.", "再见!", "我走了。", "Bye."]
    assert split("1. Introduction is long. What follows?") == ["1. Introduction is long.", "What follows?"]


def test_text_without_capitals_is_still_split():
    assert split("a fine film . it works . ") == ["a fine film .", "it works ."]
    assert split("A fine film. it works.") == ["A fine film. it works."]


def test_line_modes_split_at_lines_sentences_or_both():
    one_per_line = "It rains.\nNot a stop\nHe left. She too.\n"
    wrapped = "A sentence that\ngoes on. And\nends.\n\nTitle\n"
    assert split(one_per_line) == ["It rains.", "Not a stop", "He left.", "She too."]
    assert split(wrapped) == ["A sentence that\ngoes on.", "And\nends.", "Title"]
    assert split(one_per_line, "line") == ["It rains.", "Not a stop", "He left. She too."]
    assert split(wrapped, "split") == ["A sentence that\ngoes on.", "And\nends.", "Title"]
    assert split("No stop\n\nhere. Yes", "split") == ["No stop\n\nhere.", "Yes"]
    with pytest.raises(UserError, match="choose line, split or auto"):
        sentence_starts("x", "lines")


@pytest.mark.parametrize("lines", ["auto", "split", "line"])
def test_starts_increase_and_are_never_white_space(lines):
    text = " \n a. B? “C!” \n\n。。 d... \u3000E"
    starts = sentence_starts(text, lines)
    assert starts.dtype == np.int64 and (np.diff(starts) > 0).all() and starts[0] == 3
    assert all(not text[start].isspace() for start in starts)
    assert sentence_starts("", lines).size == sentence_starts(" \n\t", lines).size == 0


def test_splitting_is_faster_than_5_mb_per_second():
    text = "The quick brown fox jumps over the lazy dog near the river, and Mr. Brown sees it all from there. " * 20_000
    best = min(_seconds(text) for _ in range(3))
    assert len(text) / best > 5e6  # measured at 23 MB/s; the slack is for busy machines


def _seconds(text):
    started = time.perf_counter()
    assert sentence_starts(text).size == 20_000
    return time.perf_counter() - started
