"""Rows of turns: which stand together, how they are cut, and whose each place is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from making import draft_of, plain_layout
from talking import dialogues, mixed_corpus

from stemma.corpus.packers import Packer, fit_turns
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError


def packed(counts: list[int], length: int = 60, seed: int = 0) -> RowSpans:
    """Dialogues of so many turns of four tokens each."""
    first = np.cumsum([0, *counts]) * 4
    documents = [start + 4 * np.arange(count + 1) for start, count in zip(first, counts, strict=False)]
    return Packer("dialogue", plain_layout(length)).pack(documents, np.random.default_rng(seed))


def test_every_turn_is_in_one_row_in_order_and_single_turns_are_rare():
    counts = [1, 2, 3, 4, 5, 6, 7, 8, 20] * 10
    pieces = packed(counts)
    assert pieces.start.tolist() == (4 * np.arange(sum(counts))).tolist()
    turns = np.bincount(pieces.row)
    assert set(turns.tolist()) == {1, 2, 3} and (turns == 1).sum() == 10
    owner = np.repeat(np.arange(len(counts)), counts)
    for row in range(pieces.num_rows):
        inside = pieces.row == row
        assert len(set(owner[inside])) == 1  # never across dialogues
        assert pieces.separator_before[inside].tolist() == [False] + [True] * (turns[row] - 1)


def test_another_epoch_cuts_elsewhere():
    assert len({tuple(packed([20], seed=seed).row) for seed in range(20)}) > 5


def literal_fit(lengths: list[int], room: int) -> list[int]:
    """Take a token from the longest until all fit."""
    lengths = list(lengths)
    while sum(lengths) > room:
        lengths[lengths.index(max(lengths))] -= 1
    return lengths


@settings(max_examples=60, deadline=None)
@given(rows=some.lists(some.lists(some.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=6),
       length=some.integers(9, 40))
def test_the_longest_turns_are_cut_to_one_length(rows, length):
    table = [(row, 100, size, 0, place > 0) for row, sizes in enumerate(rows) for place, size in enumerate(sizes)]
    pieces = RowSpans.from_tuples(len(rows), table)
    fit_turns(pieces, plain_layout(length))
    for row, sizes in enumerate(rows):
        found = pieces.length[pieces.row == row].tolist()
        room = length - 2 - (len(sizes) - 1)
        cut = [size for size, before in zip(found, sizes, strict=True) if size < before]
        assert sum(found) <= room and all(a <= b for a, b in zip(found, sizes, strict=True))
        assert sum(found) > min(room, sum(sizes)) - 3 and len(set(cut)) <= 1  # no more is lost than must be
        assert max(found) - max(literal_fit(sizes, room)) in (0, -1)


def test_a_window_without_room_for_three_turns_is_refused():
    with pytest.raises(UserError, match="no room for 3 turns"):
        packed([3], length=6)


@pytest.mark.parametrize("length", [12, 24, 64])
def test_segment_ids_are_speakers_including_the_separator_after_a_turn(tmp_path, tokenizer_folder, length):
    corpus = mixed_corpus(tmp_path, tokenizer_folder, talks=dialogues(speakers=3), rows=[])
    draft = draft_of(CorpusSubset.all_documents(corpus).documents_for("dialogue"), "dialogue", length, rows=80)
    separator = corpus.tokenizer.special_id("separator")
    met = set()
    for row in range(80):
        used = int(draft.lengths[row])
        speaker = 0  # of the start, before anybody has spoken
        for place in range(used):
            if draft.corpus_offsets[row, place] >= 0:
                speaker = int(corpus.values_at("roles", draft.corpus_offsets[row, place])) - 1
            assert draft.segment_ids[row, place] == (speaker if place else 0)
            met.add(speaker)
        assert draft.input_ids[row, used - 1] == separator and (draft.segment_ids[row, used:] == 0).all()
    assert met == {0, 1, 2}


def test_running_text_beside_dialogues_keeps_the_segments_of_its_template(tmp_path, tokenizer_folder):
    corpus = mixed_corpus(tmp_path, tokenizer_folder)
    draft = draft_of(CorpusSubset.all_documents(corpus).documents_for("segment_pair"), "segment_pair", 40, rows=40)
    assert (draft.segment_ids == draft.packed_rows.segment_ids).all() and draft.segment_ids.any()
