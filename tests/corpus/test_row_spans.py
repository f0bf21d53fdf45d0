import numpy as np
import pytest
from literal.segment_pair import truncated_lengths

from stemma.corpus.rng import PerRowRNG
from stemma.corpus.row_spans import RowSpans


def example() -> RowSpans:
    return RowSpans.from_tuples(4, [(0, 10, 3, 0, False), (0, 20, 4, 1, False), (1, 30, 5, 0, False),
                                    (2, 40, 1, 0, False),
                         (2, 50, 2, 0, True), (3, 60, 6, 0, False), (3, 66, 2, 1, False)])


def rows_of(spans: RowSpans) -> list[list[tuple[int, int, int, bool]]]:
    rows: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(spans.num_rows)]
    for row, start, length, part, gap in zip(spans.row, spans.start, spans.length, spans.part,
                                             spans.separator_before,
                                             strict=True):
        rows[row].append((int(start), int(length), int(part), bool(gap)))
    return rows


@pytest.mark.parametrize("selected", [[0], [3, 1], [2, 2, 0], [], [3, 2, 1, 0]])
def test_select_returns_rows_in_the_given_order(selected):
    spans = example()
    assert rows_of(spans.select(np.array(selected, dtype=np.int64))) == [rows_of(spans)[row] for row in selected]


def test_concatenate_renumbers_the_rows():
    joined = RowSpans.concatenate([example(), RowSpans.from_tuples(0, []), example().select(np.array([1]))])
    assert joined.num_rows == 5
    assert rows_of(joined) == rows_of(example()) + [rows_of(example())[1]]


def test_part_lengths_are_summed_per_row():
    assert example().part_lengths(0).tolist() == [3, 5, 3, 6]
    assert example().part_lengths(1).tolist() == [4, 0, 0, 2]


def test_replace_part_inserts_one_span():
    spans = example()
    spans.replace_part(1, np.array([0, 1]), np.array([100, 200]), np.array([7, 8]))
    assert rows_of(spans) == [[(10, 3, 0, False), (100, 7, 1, False)], [(30, 5, 0, False), (200, 8, 1, False)],
                              rows_of(example())[2], rows_of(example())[3]]
    spans.replace_part(0, np.array([2]), np.array([300]), np.array([9]))
    assert rows_of(spans)[2] == [(300, 9, 0, False)]


@pytest.mark.parametrize("capacity", [2, 3, 10, 11])
def test_truncation_shortens_the_longer_segment_as_the_original_algorithm(capacity):
    lengths = [(a, b) for a in range(1, 16) for b in range(16)]
    tuples = [span for row, (a, b) in enumerate(lengths)
              for span in [(row, 100, a, 0, False), (row, 500, b, 1, False)][: 2 if b else 1]]
    spans = RowSpans.from_tuples(len(lengths), tuples)
    spans.truncate_pairs(capacity, np.random.default_rng(0))
    expected = [truncated_lengths(a, b, capacity) for a, b in lengths]
    assert list(zip(spans.part_lengths(0).tolist(), spans.part_lengths(1).tolist(), strict=True)) == expected
    for start, length, part, row in zip(spans.start, spans.length, spans.part, spans.row, strict=True):
        first = (100, 500)[part]
        assert first <= start and start + length <= first + lengths[row][part]  # the new span is part of the old one


def test_truncation_takes_from_the_front_and_from_the_back():
    spans = RowSpans.from_tuples(200, [(row, 0, 30, 0, False) for row in range(200)])
    spans.truncate_pairs(20, np.random.default_rng(1))
    assert set(spans.start.tolist()) == set(range(11))  # 0 to 10 of the ten tokens come off the front
    assert set(spans.length.tolist()) == {20}


def test_truncation_of_a_row_does_not_depend_on_other_rows():
    def random_numbers_after(lengths: list[int]) -> np.ndarray:
        rng = PerRowRNG([[7, row] for row in range(len(lengths))])
        spans = RowSpans.from_tuples(len(lengths), [(row, 0, length, 0, False) for row, length in enumerate(lengths)])
        spans.truncate_pairs(10, rng)
        return rng.random((len(lengths), 3))

    assert (random_numbers_after([5, 6])[0] == random_numbers_after([5, 60])[0]).all()
    assert (random_numbers_after([5, 60])[1] == random_numbers_after([60, 60])[1]).all()
