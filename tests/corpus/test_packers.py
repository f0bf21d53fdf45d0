import numpy as np
import pytest
from literal.segment_pair import pairs_of_document
from making import PACKINGS, plain_layout

from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.errors import UserError


def documents(seed: int, count: int = 30, longest: int = 9) -> list[np.ndarray]:
    """Sentence bounds of documents one behind the other, one of one token and one of one sentence among them."""
    rng = np.random.default_rng(seed)
    made, start = [], 0
    for number in range(count):
        sentences = rng.integers(1, longest, size=1 if number in (3, 4) else rng.integers(1, 12))
        sentences = np.array([1]) if number == 3 else sentences
        made.append(start + np.concatenate([[0], np.cumsum(sentences)]))
        start = int(made[-1][-1])
    return made


def tokens_of(pieces: RowSpans) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(pieces.num_rows)]
    for row, start, length in zip(pieces.row, pieces.start, pieces.length, strict=True):
        rows[row] += range(start, start + length)
    return rows


def pack(kind: str, docs: list[np.ndarray], length: int, short: float = 0.0, seed: int = 0) -> RowSpans:
    return Packer(kind, plain_layout(length), short).pack(docs, np.random.default_rng(seed))


def room_used(pieces: RowSpans) -> np.ndarray:
    return np.bincount(pieces.row, weights=pieces.length + pieces.separator_before,
                       minlength=pieces.num_rows).astype(int)


@pytest.mark.parametrize("length", [4, 5, 12, 13, 64, 1000])
@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences", "stream"])
@pytest.mark.parametrize("seed", range(3))
def test_every_token_is_in_exactly_one_row(kind, length, seed):
    docs = documents(seed)
    pieces = pack(kind, docs, length)
    assert sorted(token for row in tokens_of(pieces) for token in row) == list(range(docs[-1][-1]))
    assert room_used(pieces).max() <= length - 2
    assert room_used(pieces).min() >= 1
    assert not pieces.part.any()


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize("length", [10, 13, 40])
def test_sentences_stay_whole_unless_longer_than_the_window(kind, length):
    docs = documents(1, longest=8)  # the longest has 7 tokens
    bounds = {int(bound) for document in docs for bound in document}
    pieces = pack(kind, docs, length)
    assert {int(start) for start in pieces.start} <= bounds
    assert {int(stop) for stop in pieces.start + pieces.length} <= bounds


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences"])
def test_a_sentence_longer_than_the_window_is_cut_and_nothing_else_is(kind):
    docs = [np.array([0, 3, 28, 31]), np.array([31, 33])]
    pieces = pack(kind, docs, 12)  # ten places for text
    stops = {int(stop) for stop in pieces.start + pieces.length}
    assert stops - {3, 28, 31, 33} == {13, 23}  # the sentence of 25 tokens begins at 3
    assert sorted(token for row in tokens_of(pieces) for token in row) == list(range(33))


def test_full_sentences_are_greedy():
    """A row ends only where the next sentence (and the separator before it) would not fit."""
    docs = documents(2)
    sentence = {int(a): int(b) for document in docs for a, b in zip(document[:-1], document[1:], strict=True)}
    begins = {int(document[0]) for document in docs}
    pieces = pack("full_sentences", docs, 24)
    used, rows = room_used(pieces), tokens_of(pieces)
    for row in range(pieces.num_rows - 1):
        following = rows[row + 1][0]
        assert used[row] + (following in begins) + sentence[following] - following > 22


def test_full_sentences_put_a_separator_where_documents_meet_and_nowhere_else():
    docs = documents(4)
    begins = {int(document[0]) for document in docs}
    for kind in ("full_sentences", "stream"):
        pieces = pack(kind, docs, 24)
        first_in_row = np.concatenate([[True], np.diff(pieces.row) > 0])
        expected = [int(start) in begins and not first
                    for start, first in zip(pieces.start, first_in_row, strict=True)]
        assert pieces.separator_before.tolist() == expected
        assert any(expected)


def test_doc_sentences_never_cross_a_document():
    docs = documents(5)
    ends = np.array([document[-1] for document in docs])
    for row in tokens_of(pack("doc_sentences", docs, 100)):
        assert np.searchsorted(ends, row[0], side="right") == np.searchsorted(ends, row[-1], side="right")
        assert row == list(range(row[0], row[-1] + 1))


def test_stream_fills_every_row_but_the_last():
    used = room_used(pack("stream", documents(6), 15))
    # a row may lack the place that only a separator would have taken
    assert (used[:-1] >= 12).all() and (used[:-1] == 13).mean() > 0.8


@pytest.mark.parametrize("length", [11, 20, 37, 200])
@pytest.mark.parametrize("seed", range(3))
def test_segment_pairs_are_those_of_the_paper(length, seed):
    docs = documents(seed, longest=6)
    capacity = length - 3
    rng = np.random.default_rng(seed)
    expected = [pair for document in docs for pair in pairs_of_document(document.tolist(), capacity, rng)]
    pieces = pack("segment_pair", docs, length, seed=seed)
    assert pieces.num_rows == len(expected)
    for row, (a, b) in enumerate(expected):
        for part, tokens in ((0, a), (1, b)):
            mine = np.flatnonzero((pieces.row == row) & (pieces.part == part))
            assert len(mine) == bool(tokens)
            if tokens:
                found = list(range(pieces.start[mine[0]], pieces.start[mine[0]] + pieces.length[mine[0]]))
                assert set(found) <= set(tokens)
                if len(a) + len(b) <= capacity:
                    assert found == tokens
    assert room_used(pieces).max() <= capacity
    full = np.array([len(a) + len(b) >= capacity for a, b in expected])
    assert (room_used(pieces)[full] == capacity).all()


def test_before_truncation_b_starts_where_a_ends():
    pieces = pack("segment_pair", documents(7), 300)
    for row in range(pieces.num_rows):
        mine = np.flatnonzero(pieces.row == row)
        assert len(mine) <= 2
        if len(mine) == 2:
            a, b = mine
            assert pieces.part[a] == 0 and pieces.part[b] == 1
            assert pieces.start[a] + pieces.length[a] == pieces.start[b]


def test_one_row_in_ten_aims_shorter():
    docs = [np.arange(0, 40_001)]  # sentences of one token, so every row hits its target
    pieces = pack("segment_pair", docs, 43, short=0.1)
    short = room_used(pieces)[:-1] < 40
    assert abs(short.mean() - 0.1 * 38 / 39) < 4 * (0.09 / len(short)) ** 0.5  # one target in 39 is the full window
    assert room_used(pieces).min() >= 2
    assert not (room_used(pack("segment_pair", docs, 43))[:-1] < 40).any()


def test_sentence_pairs_are_two_neighbouring_sentences():
    docs = documents(8, longest=6)
    pieces = pack("sentence_pair", docs, 100)
    expected = [[int(n) for n in document[at:at + 3]] for document in docs for at in range(0, len(document) - 1, 2)]
    for row, bounds in enumerate(expected):
        mine = pieces.row == row
        starts = pieces.start[mine].tolist()
        assert starts == bounds[:-1]
        assert (pieces.start[mine] + pieces.length[mine]).tolist() == bounds[1:]


@pytest.mark.parametrize("kind", PACKINGS)
def test_no_documents_make_no_rows(kind):
    assert pack(kind, [], 20).num_rows == 0


@pytest.mark.parametrize("kind", PACKINGS)
def test_a_document_of_one_token_makes_one_row(kind):
    pieces = pack(kind, [np.array([5, 6])], 20)
    assert pieces.num_rows == 1
    assert tokens_of(pieces) == [[5]]


@pytest.mark.parametrize("kind", PACKINGS)
def test_one_endless_sentence(kind):
    pieces = pack(kind, [np.array([0, 1000])], 12)
    assert room_used(pieces).max() <= 10
    tokens = [token for row in tokens_of(pieces) for token in row]
    assert len(tokens) == len(set(tokens)) == (9 if kind.endswith("pair") else 1000)


@pytest.mark.parametrize(("kind", "length"), [("stream", 2), ("segment_pair", 4), ("full_sentences", 1)])
def test_a_window_without_room_for_text_is_refused(kind, length):
    with pytest.raises(UserError, match="sequence_length"):
        pack(kind, [np.array([0, 3])], length)


def test_a_pair_fits_the_single_template_too():
    """A row without a B is laid out by the other template, which may hold more special tokens."""
    layout = plain_layout(10, single="start start A separator separator", pair="A B:1")
    assert layout.capacity(pair=True) == 6
