"""Rows of dialogue turns: grouping, truncation, and segment ids of speakers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from mixed_corpora import dialogues, mixed_corpus
from small_corpora import draft_of, plain_layout

from stemma.corpus.packers import Packer, fit_turns
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError


def pack_dialogues(counts: list[int], length: int = 60, seed: int = 0) -> RowSpans:
    """Rows from dialogues with these numbers of turns, of four tokens each."""
    first = np.cumsum([0, *counts]) * 4
    documents = [start + 4 * np.arange(count + 1) for start, count in zip(first, counts, strict=False)]
    return Packer("dialogue", plain_layout(length)).pack(documents, np.random.default_rng(seed))


def test_every_turn_is_in_one_row_in_order_and_single_turns_are_rare():
    counts = [1, 2, 3, 4, 5, 6, 7, 8, 20] * 10
    spans = pack_dialogues(counts)
    assert spans.start.tolist() == (4 * np.arange(sum(counts))).tolist()
    turns = np.bincount(spans.row)
    assert set(turns.tolist()) == {1, 2, 3} and (turns == 1).sum() == 10
    owner = np.repeat(np.arange(len(counts)), counts)
    for row in range(spans.num_rows):
        inside = spans.row == row
        assert len(set(owner[inside])) == 1  # never across dialogues
        assert spans.separator_before[inside].tolist() == [False] + [True] * (turns[row] - 1)


def test_another_epoch_groups_the_turns_differently():
    assert len({tuple(pack_dialogues([20], seed=seed).row) for seed in range(20)}) > 5


def literal_fit(lengths: list[int], room: int) -> list[int]:
    """Remove a token from the longest turn until all fit."""
    lengths = list(lengths)
    while sum(lengths) > room:
        lengths[lengths.index(max(lengths))] -= 1
    return lengths


@settings(max_examples=60, deadline=None)
@given(rows=strategies.lists(strategies.lists(strategies.integers(1, 30), min_size=1, max_size=3), min_size=1,
                             max_size=6), length=strategies.integers(9, 40))
def test_the_longest_turns_are_cut_to_one_length(rows, length):
    table = [(row, 100, size, 0, index > 0) for row, sizes in enumerate(rows) for index, size in enumerate(sizes)]
    spans = RowSpans.from_tuples(len(rows), table)
    fit_turns(spans, plain_layout(length))
    for row, sizes in enumerate(rows):
        result = spans.length[spans.row == row].tolist()
        room = length - 2 - (len(sizes) - 1)
        cut = [size for size, before in zip(result, sizes, strict=True) if size < before]
        assert sum(result) <= room and all(a <= b for a, b in zip(result, sizes, strict=True))
        assert sum(result) > min(room, sum(sizes)) - 3 and len(set(cut)) <= 1  # no more is cut than necessary
        assert max(result) - max(literal_fit(sizes, room)) in (0, -1)


def test_a_window_without_room_for_three_turns_is_refused():
    with pytest.raises(UserError, match="no room for 3 turns"):
        pack_dialogues([3], length=6)


@pytest.mark.parametrize("length", [12, 24, 64])
def test_segment_ids_are_speakers_including_the_separator_after_a_turn(tmp_path, tokenizer_folder, length):
    corpus = mixed_corpus(tmp_path, tokenizer_folder, talks=dialogues(speakers=3), rows=[])
    draft = draft_of(CorpusSubset.all_documents(corpus).documents_for("dialogue"), "dialogue", length, rows=80)
    separator = corpus.tokenizer.special_id("separator")
    speakers = set()
    for row in range(80):
        used = int(draft.lengths[row])
        speaker = 0  # of the start token, before the first turn
        for position in range(used):
            if draft.corpus_offsets[row, position] >= 0:
                speaker = int(corpus.values_at("roles", draft.corpus_offsets[row, position])) - 1
            assert draft.segment_ids[row, position] == (speaker if position else 0)
            speakers.add(speaker)
        assert draft.input_ids[row, used - 1] == separator and (draft.segment_ids[row, used:] == 0).all()
    assert speakers == {0, 1, 2}


def test_running_text_in_a_dialogue_corpus_keeps_the_segments_of_its_template(tmp_path, tokenizer_folder):
    corpus = mixed_corpus(tmp_path, tokenizer_folder)
    draft = draft_of(CorpusSubset.all_documents(corpus).documents_for("segment_pair"), "segment_pair", 40, rows=40)
    assert (draft.segment_ids == draft.packed_rows.segment_ids).all() and draft.segment_ids.any()
