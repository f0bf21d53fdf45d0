import numpy as np
import pytest
from literal.segment_pair import pairs_of_document
from small_corpora import PACKINGS, plain_layout

from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.errors import UserError


def documents(seed: int, count: int = 30, longest: int = 9) -> list[np.ndarray]:
    """Sentence bounds of consecutive documents; one has one token, and one has one sentence."""
    rng = np.random.default_rng(seed)
    bounds, start = [], 0
    for index in range(count):
        sentences = rng.integers(1, longest, size=1 if index in (3, 4) else rng.integers(1, 12))
        sentences = np.array([1]) if index == 3 else sentences
        bounds.append(start + np.concatenate([[0], np.cumsum(sentences)]))
        start = int(bounds[-1][-1])
    return bounds


def tokens_of(spans: RowSpans) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(spans.num_rows)]
    for row, start, length in zip(spans.row, spans.start, spans.length, strict=True):
        rows[row] += range(start, start + length)
    return rows


def pack(kind: str, docs: list[np.ndarray], length: int, short: float = 0.0, seed: int = 0) -> RowSpans:
    return Packer(kind, plain_layout(length), short).pack(docs, np.random.default_rng(seed))


def room_used(spans: RowSpans) -> np.ndarray:
    return np.bincount(spans.row, weights=spans.length + spans.separator_before,
                       minlength=spans.num_rows).astype(int)


@pytest.mark.parametrize("length", [4, 5, 12, 13, 64, 1000])
@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences", "stream"])
@pytest.mark.parametrize("seed", range(3))
def test_every_token_is_in_exactly_one_row(kind, length, seed):
    docs = documents(seed)
    spans = pack(kind, docs, length)
    assert sorted(token for row in tokens_of(spans) for token in row) == list(range(docs[-1][-1]))
    assert room_used(spans).max() <= length - 2
    assert room_used(spans).min() >= 1
    assert not spans.part.any()


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize("length", [10, 13, 40])
def test_sentences_are_not_split_if_they_fit_the_window(kind, length):
    docs = documents(1, longest=8)  # the longest has 7 tokens
    bounds = {int(bound) for document in docs for bound in document}
    spans = pack(kind, docs, length)
    assert {int(start) for start in spans.start} <= bounds
    assert {int(stop) for stop in spans.start + spans.length} <= bounds


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences"])
def test_only_sentences_longer_than_the_window_are_split(kind):
    docs = [np.array([0, 3, 28, 31]), np.array([31, 33])]
    spans = pack(kind, docs, 12)  # ten positions for text
    stops = {int(stop) for stop in spans.start + spans.length}
    assert stops - {3, 28, 31, 33} == {13, 23}  # the sentence of 25 tokens starts at 3
    assert sorted(token for row in tokens_of(spans) for token in row) == list(range(33))


def test_full_sentences_fill_rows_greedily():
    """A row ends only if the next sentence, with its separator, would not fit."""
    docs = documents(2)
    sentence = {int(a): int(b) for document in docs for a, b in zip(document[:-1], document[1:], strict=True)}
    begins = {int(document[0]) for document in docs}
    spans = pack("full_sentences", docs, 24)
    used, rows = room_used(spans), tokens_of(spans)
    for row in range(spans.num_rows - 1):
        following = rows[row + 1][0]
        assert used[row] + (following in begins) + sentence[following] - following > 22


def test_separators_are_exactly_between_documents_of_a_row():
    docs = documents(4)
    begins = {int(document[0]) for document in docs}
    for kind in ("full_sentences", "stream"):
        spans = pack(kind, docs, 24)
        first_in_row = np.concatenate([[True], np.diff(spans.row) > 0])
        expected = [int(start) in begins and not first
                    for start, first in zip(spans.start, first_in_row, strict=True)]
        assert spans.separator_before.tolist() == expected
        assert any(expected)


def test_doc_sentences_never_cross_a_document():
    docs = documents(5)
    ends = np.array([document[-1] for document in docs])
    for row in tokens_of(pack("doc_sentences", docs, 100)):
        assert np.searchsorted(ends, row[0], side="right") == np.searchsorted(ends, row[-1], side="right")
        assert row == list(range(row[0], row[-1] + 1))


def test_stream_fills_every_row_but_the_last():
    used = room_used(pack("stream", documents(6), 15))
    # a row may be one short, if only a separator would fit
    assert (used[:-1] >= 12).all() and (used[:-1] == 13).mean() > 0.8


@pytest.mark.parametrize("length", [11, 20, 37, 200])
@pytest.mark.parametrize("seed", range(3))
def test_segment_pairs_match_the_original_algorithm(length, seed):
    docs = documents(seed, longest=6)
    capacity = length - 3
    rng = np.random.default_rng(seed)
    expected = [pair for document in docs for pair in pairs_of_document(document.tolist(), capacity, rng)]
    spans = pack("segment_pair", docs, length, seed=seed)
    assert spans.num_rows == len(expected)
    for row, (a, b) in enumerate(expected):
        for part, tokens in ((0, a), (1, b)):
            indices = np.flatnonzero((spans.row == row) & (spans.part == part))
            assert len(indices) == bool(tokens)
            if tokens:
                result = list(range(spans.start[indices[0]], spans.start[indices[0]] + spans.length[indices[0]]))
                assert set(result) <= set(tokens)
                if len(a) + len(b) <= capacity:
                    assert result == tokens
    assert room_used(spans).max() <= capacity
    full = np.array([len(a) + len(b) >= capacity for a, b in expected])
    assert (room_used(spans)[full] == capacity).all()


def test_before_truncation_b_starts_where_a_ends():
    spans = pack("segment_pair", documents(7), 300)
    for row in range(spans.num_rows):
        indices = np.flatnonzero(spans.row == row)
        assert len(indices) <= 2
        if len(indices) == 2:
            a, b = indices
            assert spans.part[a] == 0 and spans.part[b] == 1
            assert spans.start[a] + spans.length[a] == spans.start[b]


def test_one_row_in_ten_has_a_shorter_target_length():
    docs = [np.arange(0, 40_001)]  # sentences of one token, so every row hits its target
    spans = pack("segment_pair", docs, 43, short=0.1)
    short = room_used(spans)[:-1] < 40
    assert abs(short.mean() - 0.1 * 38 / 39) < 4 * (0.09 / len(short)) ** 0.5  # one target in 39 is the full window
    assert room_used(spans).min() >= 2
    assert not (room_used(pack("segment_pair", docs, 43))[:-1] < 40).any()


def test_sentence_pairs_are_two_adjacent_sentences():
    docs = documents(8, longest=6)
    spans = pack("sentence_pair", docs, 100)
    expected = [[int(n) for n in document[at:at + 3]] for document in docs for at in range(0, len(document) - 1, 2)]
    for row, bounds in enumerate(expected):
        indices = spans.row == row
        starts = spans.start[indices].tolist()
        assert starts == bounds[:-1]
        assert (spans.start[indices] + spans.length[indices]).tolist() == bounds[1:]


@pytest.mark.parametrize("kind", PACKINGS)
def test_no_documents_make_no_rows(kind):
    assert pack(kind, [], 20).num_rows == 0


@pytest.mark.parametrize("kind", PACKINGS)
def test_a_document_of_one_token_makes_one_row(kind):
    spans = pack(kind, [np.array([5, 6])], 20)
    assert spans.num_rows == 1
    assert tokens_of(spans) == [[5]]


@pytest.mark.parametrize("kind", PACKINGS)
def test_a_very_long_sentence_is_split_or_truncated(kind):
    spans = pack(kind, [np.array([0, 1000])], 12)
    assert room_used(spans).max() <= 10
    tokens = [token for row in tokens_of(spans) for token in row]
    assert len(tokens) == len(set(tokens)) == (9 if kind.endswith("pair") else 1000)


@pytest.mark.parametrize(("kind", "length"), [("stream", 2), ("segment_pair", 4), ("full_sentences", 1)])
def test_a_window_without_room_for_text_is_refused(kind, length):
    with pytest.raises(UserError, match="sequence_length"):
        pack(kind, [np.array([0, 3])], length)


def test_the_capacity_of_pairs_also_fits_the_single_template():
    """A row without B uses the other template, which may have more special tokens."""
    layout = plain_layout(10, single="start start A separator separator", pair="A B:1")
    assert layout.capacity(pair=True) == 6
