"""Rows of ids: the same as the tokenizer's own template makes, and cut as `transformers` cuts (longest first)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from making import PAIR, SINGLE

from stemma.errors import UserError
from stemma.tasks.layout import RowLayout
from stemma.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


def cut_literally(first: int, second: int, room: int) -> tuple[int, int]:
    """A token at a time from the end of the longer text; of equally long ones, of the second."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_texts_are_cut_a_token_at_a_time(tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        layout = RowLayout(tokenizer, SINGLE, PAIR, rng.randint(11, 40))
        lengths = rng.randint(0, 50), rng.randint(0, 50)
        kept = layout.fit([range(length) for length in lengths])
        assert tuple(map(len, kept)) == cut_literally(*lengths, layout.room(2))
        assert all(list(part) == list(range(len(part))) for part in kept)  # the beginnings stay
        assert layout.cut == int(sum(lengths) > layout.room(2))
        assert len(layout.row([range(lengths[0])]).ids) == min(lengths[0], layout.room(1)) + 2


@pytest.mark.parametrize(("single", "pair"), [
    (SINGLE, PAIR), ("A separator start:2", "A separator B:1 separator:1 start:2"),
    ("start A separator", "start A separator separator B separator")])
def test_rows_are_those_of_the_tokenizers_template(tokenizer, single, pair):
    layout, laid = RowLayout(tokenizer, single, pair, 64), tokenizer.template(single, pair)
    texts = [("the old clerk",), ("a young reader reads.", "the family tree"), ("", "one leaf"), ("seven pages", "")]
    for row, given in zip(layout.rows(texts), texts, strict=True):
        expected = laid.encode(*given)
        assert row.ids.tolist() == expected.ids and row.segments.tolist() == expected.type_ids
        for (first, count), text in zip(row.parts, given, strict=True):
            assert row.ids[first:first + count].tolist() == tokenizer.encode(text, special=False).ids


def test_tokens_know_their_characters(tokenizer):
    layout, text = RowLayout(tokenizer, SINGLE, PAIR, 64), "The  Librarian reads."
    ((ids, offsets),) = layout.placed([text])
    assert len(ids) == len(offsets) and ids.dtype == np.int64
    assert "".join(text[a:b] for a, b in offsets) == text.replace(" ", "")
    assert layout.placed([""])[0][1].shape == (0, 2)


def test_a_row_without_room_for_text_is_refused(tokenizer):
    RowLayout(tokenizer, SINGLE, PAIR, 11)
    with pytest.raises(UserError, match="set corpus.sequence_length to 11 or more"):
        RowLayout(tokenizer, SINGLE, PAIR, 10)
