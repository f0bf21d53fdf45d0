import numpy as np
import pytest
from literal.segment_pair import truncated_lengths

from stemma.corpus.rng import PerRowRNG
from stemma.corpus.row_spans import RowSpans


def example() -> RowSpans:
    return RowSpans.from_tuples(4, [(0, 10, 3, 0, False), (0, 20, 4, 1, False), (1, 30, 5, 0, False),
                                    (2, 40, 1, 0, False),
                         (2, 50, 2, 0, True), (3, 60, 6, 0, False), (3, 66, 2, 1, False)])


def rows_of(pieces: RowSpans) -> list[list[tuple[int, int, int, bool]]]:
    made: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(pieces.num_rows)]
    for row, start, length, part, gap in zip(pieces.row, pieces.start, pieces.length, pieces.part,
                                             pieces.separator_before,
                                             strict=True):
        made[row].append((int(start), int(length), int(part), bool(gap)))
    return made


@pytest.mark.parametrize("chosen", [[0], [3, 1], [2, 2, 0], [], [3, 2, 1, 0]])
def test_select_takes_rows_in_the_order_asked_for(chosen):
    pieces = example()
    assert rows_of(pieces.select(np.array(chosen, dtype=np.int64))) == [rows_of(pieces)[row] for row in chosen]


def test_join_counts_rows_on():
    joined = RowSpans.concatenate([example(), RowSpans.from_tuples(0, []), example().select(np.array([1]))])
    assert joined.num_rows == 5
    assert rows_of(joined) == rows_of(example()) + [rows_of(example())[1]]


def test_part_lengths():
    assert example().part_lengths(0).tolist() == [3, 5, 3, 6]
    assert example().part_lengths(1).tolist() == [4, 0, 0, 2]


def test_replace_part_inserts_one_span():
    pieces = example()
    pieces.replace_part(1, np.array([0, 1]), np.array([100, 200]), np.array([7, 8]))
    assert rows_of(pieces) == [[(10, 3, 0, False), (100, 7, 1, False)], [(30, 5, 0, False), (200, 8, 1, False)],
                               rows_of(example())[2], rows_of(example())[3]]
    pieces.replace_part(0, np.array([2]), np.array([300]), np.array([9]))
    assert rows_of(pieces)[2] == [(300, 9, 0, False)]


@pytest.mark.parametrize("capacity", [2, 3, 10, 11])
def test_truncation_cuts_the_longer_side_as_popping_tokens_would(capacity):
    lengths = [(a, b) for a in range(1, 16) for b in range(16)]
    made = [piece for row, (a, b) in enumerate(lengths)
            for piece in [(row, 100, a, 0, False), (row, 500, b, 1, False)][: 2 if b else 1]]
    pieces = RowSpans.from_tuples(len(lengths), made)
    pieces.truncate_pairs(capacity, np.random.default_rng(0))
    expected = [truncated_lengths(a, b, capacity) for a, b in lengths]
    assert list(zip(pieces.part_lengths(0).tolist(), pieces.part_lengths(1).tolist(), strict=True)) == expected
    for start, length, part, row in zip(pieces.start, pieces.length, pieces.part, pieces.row, strict=True):
        first = (100, 500)[part]
        assert first <= start and start + length <= first + lengths[row][part]  # what is left was there before


def test_truncation_takes_from_the_front_and_from_the_back():
    pieces = RowSpans.from_tuples(200, [(row, 0, 30, 0, False) for row in range(200)])
    pieces.truncate_pairs(20, np.random.default_rng(1))
    assert set(pieces.start.tolist()) == set(range(11))  # any share of the ten that go
    assert set(pieces.length.tolist()) == {20}


def test_truncation_of_a_row_does_not_depend_on_other_rows():
    def numbers_after(lengths: list[int]) -> np.ndarray:
        rng = PerRowRNG([[7, row] for row in range(len(lengths))])
        pieces = RowSpans.from_tuples(len(lengths), [(row, 0, length, 0, False) for row, length in enumerate(lengths)])
        pieces.truncate_pairs(10, rng)
        return rng.random((len(lengths), 3))

    assert (numbers_after([5, 6])[0] == numbers_after([5, 60])[0]).all()
    assert (numbers_after([5, 60])[1] == numbers_after([60, 60])[1]).all()
