"""Encoded sequences equal those of the tokenizer's template, and truncation equals `transformers` (longest first)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from small_corpora import PAIR, SINGLE

from stemma.errors import UserError
from stemma.schema.corpus import extend_template
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


def cut_literally(first: int, second: int, room: int) -> tuple[int, int]:
    """Remove one token at a time from the end of the longer text, and of the second if both are equally long."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def cut_many_literally(lengths: list[int], room: int) -> list[int]:
    """Remove one token at a time from the end of the longest text, and of the last of equally long ones."""
    while sum(lengths) > room:
        lengths[max(range(len(lengths)), key=lambda index: (lengths[index], index))] -= 1
    return lengths


@pytest.mark.parametrize(("pair", "segments", "expected"), [
    (PAIR, None, "start A separator B:1 separator:1 C:2 separator:2 D:3 separator:3"),
    (PAIR, 2, "start A separator B:1 separator:1 C:1 separator:1 D:1 separator:1"),
    ("A separator B:1 separator:1 start:2", None,
     "A separator B:1 separator:1 C:2 separator:2 D:3 separator:3 start:4"),
    ("start A separator separator B separator", None,
     "start A separator separator B separator separator C separator separator D separator"),
    ("begin A separator B start", 0, "begin A separator B separator C separator D start")])
def test_templates_of_more_texts_extend_the_pair_template(pair, segments, expected):
    assert extend_template(pair, 4, segments) == expected
    assert extend_template(pair, 2, None) == pair


def test_any_number_of_texts_is_encoded_and_truncated(tokenizer):
    rng = random.Random(1)
    more = [extend_template(PAIR, texts) for texts in (3, 4)]
    for _ in range(300):
        layout = InputEncoder(tokenizer, SINGLE, PAIR, rng.randint(13, 40), more)
        lengths = [rng.randint(0, 30) for _ in range(rng.randint(1, 4))]
        truncated = layout.truncate([range(length) for length in lengths])
        assert list(map(len, truncated)) == cut_many_literally(list(lengths), layout.text_capacity(len(lengths)))
    texts = ("the old clerk", "", "seven pages", "a leaf")
    layout = InputEncoder(tokenizer, SINGLE, PAIR, 40, more)
    row = layout.encode_examples([texts])[0]
    assert len(row.text_spans) == 4 and row.segment_ids.max() == 3
    for index, ((first, count), text) in enumerate(zip(row.text_spans, texts, strict=True)):
        assert row.input_ids[first:first + count].tolist() == tokenizer.encode(text, special=False).ids
        assert set(row.segment_ids[first:first + count].tolist()) <= {index}


def test_truncation_removes_one_token_at_a_time_from_the_longest(tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        layout = InputEncoder(tokenizer, SINGLE, PAIR, rng.randint(11, 40))
        lengths = rng.randint(0, 50), rng.randint(0, 50)
        truncated = layout.truncate([range(length) for length in lengths])
        assert tuple(map(len, truncated)) == cut_literally(*lengths, layout.text_capacity(2))
        assert all(list(part) == list(range(len(part))) for part in truncated)  # the beginnings stay
        assert layout.num_truncated == int(sum(lengths) > layout.text_capacity(2))
        assert len(layout.build_sequence([range(lengths[0])]).input_ids) == min(lengths[0], layout.text_capacity(1)) + 2


@pytest.mark.parametrize(("single", "pair"), [
    (SINGLE, PAIR), ("A separator start:2", "A separator B:1 separator:1 start:2"),
    ("start A separator", "start A separator separator B separator")])
def test_sequences_equal_those_of_the_tokenizers_template(tokenizer, single, pair):
    layout, templated = InputEncoder(tokenizer, single, pair, 64), tokenizer.with_template(single, pair)
    texts = [("the old clerk",), ("a young reader reads.", "the family tree"), ("", "one leaf"), ("seven pages", "")]
    for row, example_texts in zip(layout.encode_examples(texts), texts, strict=True):
        expected = templated.encode(*example_texts)
        assert row.input_ids.tolist() == expected.ids and row.segment_ids.tolist() == expected.type_ids
        for (first, count), text in zip(row.text_spans, example_texts, strict=True):
            assert row.input_ids[first:first + count].tolist() == tokenizer.encode(text, special=False).ids


def test_tokens_have_character_offsets(tokenizer):
    layout, text = InputEncoder(tokenizer, SINGLE, PAIR, 64), "The  Librarian reads."
    ((ids, offsets),) = layout.encode_with_offsets([text])
    assert len(ids) == len(offsets) and ids.dtype == np.int64
    assert "".join(text[a:b] for a, b in offsets) == text.replace(" ", "")
    assert layout.encode_with_offsets([""])[0][1].shape == (0, 2)


def test_a_sequence_without_room_for_text_is_rejected(tokenizer):
    InputEncoder(tokenizer, SINGLE, PAIR, 11)
    with pytest.raises(UserError, match="set corpus.sequence_length to 11 or more"):
        InputEncoder(tokenizer, SINGLE, PAIR, 10)
