"""Counting out of core: each part of a text becomes a sorted run on disk, and the runs are merged within a memory
limit.

A run is one `.npy` file: its rows are the words of a packed n-gram and its count. It appears under its name when it is
complete, so counting that was killed goes on with the parts that have no run yet. Merging cuts all runs at the same
n-grams, so that each piece fits into memory, and sorts the pieces one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from stemma.atomic_files import atomic_file, explain_disk_errors
from stemma.counts.packed_ngrams import Counts, Words, insertion_point, sort_and_sum
from stemma.errors import CorruptFileError
from stemma.progress import progress_stage

BYTES_PER_KEY = 6  # copies of a word that sorting holds at once: the words, their order, the sorted words, the sums
SAMPLES_PER_RUN = 512  # n-grams of each run that the cuts are chosen from


def sorting_bytes(num_words: int) -> int:
    """Memory that sorting one n-gram takes, at most."""
    return 8 * BYTES_PER_KEY * (num_words + 1)


def write_run(path: Path, packed: Words, counts: Counts) -> None:
    with explain_disk_errors(path), atomic_file(path) as file:
        np.save(file, np.column_stack([packed, counts.astype(np.uint64)]))


def open_run(path: Path) -> np.ndarray:
    """The rows of a run, mapped and not read."""
    try:
        rows: np.ndarray = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{path} is no readable run of counts ({error}); delete it, and `stemma resume` counts "
                               "its part of the text again.") from error
    return rows


def merge_runs(paths: Sequence[Path], memory_bytes: int) -> Iterator[tuple[Words, Counts]]:
    """The distinct n-grams of all runs with the sums of their counts, in order, in pieces."""
    if not paths:
        return
    sizes = [len(open_run(path)) for path in paths]
    num_words = open_run(paths[0]).shape[1] - 1
    total = sum(sizes)
    num_pieces = -(-total * sorting_bytes(num_words) // max(1, memory_bytes))
    cuts = _cuts(paths, num_pieces, num_words)
    with progress_stage("merging counts", total, "n-grams") as stage:
        starts = [0] * len(paths)
        for index in range(len(cuts) + 1):
            parts = []
            for number, path in enumerate(paths):
                rows = open_run(path)
                stop = insertion_point(rows[:, :num_words], cuts[index]) if index < len(cuts) else len(rows)
                parts.append(np.array(rows[starts[number]:stop]))
                starts[number] = stop
            piece = np.concatenate(parts)
            if not len(piece):
                continue
            stage.advance(len(piece))
            yield sort_and_sum(np.ascontiguousarray(piece[:, :num_words]), piece[:, num_words].astype(np.int64))


def _cuts(paths: Sequence[Path], num_pieces: int, num_words: int) -> list[Words]:
    """N-grams that cut the runs into pieces of similar size."""
    if num_pieces <= 1:
        return []
    samples = np.concatenate([np.array(rows[:: max(1, len(rows) // max(SAMPLES_PER_RUN, 4 * num_pieces))])
                              for rows in map(open_run, paths)])
    ordered = samples[np.lexsort(samples[:, :num_words].T[::-1]), :num_words]
    positions = np.unique(np.linspace(0, len(ordered), num_pieces + 1).astype(int)[1:-1])
    cuts = [ordered[position] for position in positions]
    return [cut for index, cut in enumerate(cuts) if not index or (cut != cuts[index - 1]).any()]


class MergedNgrams(Collection[tuple[Words, Counts]]):
    """The distinct n-grams of all runs in one sorted file, read in pieces as often as needed."""

    def __init__(self, path: Path, memory_bytes: int):
        self.path, rows = path, open_run(path)
        self.num_words, self.num_ngrams = rows.shape[1] - 1, len(rows)
        self.piece_rows = max(1, memory_bytes // sorting_bytes(self.num_words))

    @classmethod
    def merge(cls, runs: Sequence[Path], path: Path, memory_bytes: int) -> MergedNgrams:
        """Merge the runs into a file, unless it is there."""
        if not path.exists():
            with explain_disk_errors(path), atomic_file(path) as file:
                num_words = open_run(runs[0]).shape[1] - 1
                header = np.lib.format.header_data_from_array_1_0(np.zeros((0, num_words + 1), np.uint64))
                _write_header(file, header)  # again with the number of rows, which is known at the end
                start = file.tell()
                num_rows = 0
                for packed, counts in merge_runs(runs, memory_bytes):
                    file.write(np.column_stack([packed, counts.astype(np.uint64)]).tobytes())
                    num_rows += len(packed)
                file.seek(0)
                _write_header(file, {**header, "shape": (num_rows, num_words + 1)})
                assert file.tell() == start, "the header of a merged file has a fixed size"
        return cls(path, memory_bytes)

    def __len__(self) -> int:
        return -(-self.num_ngrams // self.piece_rows)

    def __iter__(self) -> Iterator[tuple[Words, Counts]]:
        for start in range(0, self.num_ngrams, self.piece_rows):
            rows = np.array(open_run(self.path)[start:start + self.piece_rows])
            yield np.ascontiguousarray(rows[:, :-1]), rows[:, -1].astype(np.int64)

    def __contains__(self, piece: object) -> bool:
        raise TypeError("pieces are read in order; n-grams are looked up in the tables")


def _write_header(file: IO[bytes], header: dict[str, Any]) -> None:
    """numpy pads a header to a multiple of 64 bytes and leaves room for the shape to grow."""
    np.lib.format.write_array_header_1_0(file, header)
