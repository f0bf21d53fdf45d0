"""Counting in parts, on disk and within a memory limit, against counting in memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from ngram_models import count, ngram_tables, random_documents, stream_of

from stemma.counts.kneser_ney import estimate
from stemma.counts.packed_ngrams import NgramPacker, insertion_point, sort_and_sum
from stemma.counts.sorted_runs import MergedNgrams, open_run, sorting_bytes, write_run
from stemma.errors import CorruptFileError

END = 0


def write_runs(folder, documents, packer, part):
    stream = stream_of(documents, END)
    runs = []
    for start in range(0, stream.num_positions, part):
        runs.append(folder / f"run-{start:06d}.npy")
        write_run(runs[-1], *sort_and_sum(stream.ngrams(start, min(start + part, stream.num_positions), packer)[0]))
    return runs


@pytest.mark.parametrize(("order", "vocab_size"), [(1, 9), (3, 9), (5, 9), (6, 40_000)])
@pytest.mark.parametrize("part", [7, 100])
def test_merged_runs_equal_counting_in_memory(tmp_path, order, vocab_size, part):
    documents = random_documents(order, 30, 9, 25)
    packer = NgramPacker(order, vocab_size)
    runs = write_runs(tmp_path, documents, packer, part)
    memory = 10 * sorting_bytes(packer.num_words)  # ten n-grams at a time
    merged = MergedNgrams.merge(runs, tmp_path / "merged.npy", memory)
    expected, counts = count(documents, packer, END)
    assert merged.num_ngrams == len(expected) and (len(merged) > 2 or order == 1)
    assert all(len(packed) <= 10 for packed, _ in merged)
    assert np.array_equal(np.concatenate([packed for packed, _ in merged]), expected)
    assert np.array_equal(np.concatenate([numbers for _, numbers in merged]), counts)

    tables, discounts = estimate(merged, packer)
    in_memory, same_discounts = ngram_tables(documents, order, vocab_size, END)
    assert discounts == same_discounts
    for name in ("keys", "log_probs", "backoffs"):
        for one, other in zip(getattr(tables, name), getattr(in_memory, name), strict=True):
            assert np.array_equal(one, other), name


@pytest.mark.parametrize(("order", "vocab_size"), [(2, 5), (6, 5), (5, 1 << 13), (6, 250_000)])
def test_packed_ngrams_keep_their_tokens_and_sort_by_suffix(order, vocab_size):
    rng = np.random.default_rng(0)
    columns = [rng.integers(-1, vocab_size, 200) for _ in range(order)]
    packer = NgramPacker(order, vocab_size)
    packed = packer.pack(columns)
    for column, tokens in enumerate(columns):
        assert np.array_equal(packer.column(packed, column), tokens)
    rows = Counter(zip(*(tokens.tolist() for tokens in columns), strict=True))
    ordered, counts = sort_and_sum(packed)
    tuples = list(zip(*(packer.column(ordered, column).tolist() for column in range(order)), strict=True))
    assert tuples == sorted(rows) and counts.tolist() == [rows[row] for row in tuples]
    assert sort_and_sum(ordered, counts)[1].tolist() == counts.tolist()
    assert insertion_point(ordered, ordered[17]) == 17
    differences = packer.first_difference(ordered)
    assert [next(i for i in range(order) if one[i] != other[i])
            for one, other in zip(tuples[:-1], tuples[1:], strict=True)] == differences[1:].tolist()


def test_no_ngram_crosses_a_document():
    packer = NgramPacker(3, 9)
    packed, counts = count([[1, 2], [], [3]], packer, END)
    found = {tuple(int(packer.column(packed[i:i + 1], column)[0]) for column in range(3)): int(counts[i])
             for i in range(len(packed))}
    # newest token first; -1: nothing before
    assert found == {(1, END, -1): 1, (2, 1, END): 1, (END, 2, 1): 1, (END, END, -1): 1, (3, END, -1): 1,
                     (END, 3, END): 1}


def test_a_damaged_run_is_named(tmp_path):
    packer = NgramPacker(2, 9)
    run = write_runs(tmp_path, [[1, 2, 3]], packer, 100)[0]
    run.write_bytes(run.read_bytes()[:40])
    with pytest.raises(CorruptFileError, match=r"run-000000\.npy is no readable run of counts"):
        open_run(run)
