"""Finding the entries of a lexicon in running text: longest first, at the edges of atoms, all places at once.

For each length that an entry has, every atom is asked whether another one ends just so many characters on, and the
keys of those runs are looked up. What two entries claim goes to the longer one, then to the one further left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stemma.corpus.text_chunks import TextChunk, hash_characters, normalize_characters


class LexiconMatcher:
    def __init__(self, entries: Sequence[str], lowercase: bool):
        self.tables: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        by_length: dict[int, dict[int, tuple[int, np.ndarray]]] = {}
        for number, entry in enumerate(entries):
            characters = normalize_characters(entry, lowercase)
            by_length.setdefault(len(characters), {}).setdefault(hash_characters(characters), (number, characters))
        for length in sorted(by_length, reverse=True):
            found = sorted(by_length[length].items())
            self.tables[length] = (np.array([key for key, _ in found], np.uint64),
                                   np.array([number for _, (number, _) in found]),
                                   np.stack([characters for _, (_, characters) in found]))

    def find(self, chunk: TextChunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(M,) each, in the order of the text: the first token of a unit, the token behind it, which entry it is."""
        size = len(chunk.characters)
        written = chunk.atom_ends > chunk.atom_starts  # an atom may be a line end and nothing else
        ends = np.full(size + 1, -1)  # the token behind an atom that ends at this character
        ends[chunk.atom_ends[written]] = chunk.atom_first_tokens[1:][written]
        begin, first = chunk.atom_starts[written], chunk.atom_first_tokens[:-1][written]
        taken = np.zeros(chunk.num_tokens, bool)
        units: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for length, (keys, numbers, spellings) in self.tables.items():
            at = np.flatnonzero(begin + length <= size)
            at = at[ends[begin[at] + length] > first[at]]
            if not len(at):
                continue
            key = chunk.hashes(begin[at], begin[at] + length)
            entry = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            hit = keys[entry] == key
            at, entry = at[hit], entry[hit]
            same = chunk.characters[begin[at][:, None] + np.arange(length)] == spellings[entry]  # keys may collide
            at, entry = at[same.all(1)], entry[same.all(1)]
            stop = ends[begin[at] + length]
            claimed = np.concatenate([[0], np.cumsum(taken)])
            free = claimed[stop] == claimed[first[at]]
            at, entry, stop = at[free], entry[free], stop[free]
            chosen = select_disjoint(first[at], stop)
            units.append((first[at][chosen], stop[chosen], numbers[entry[chosen]]))
            taken |= covered_tokens(units[-1][0], units[-1][1], chunk.num_tokens)
        if not units:
            return (np.zeros(0, np.int64),) * 3
        starts, stops, found = (np.concatenate(column) for column in zip(*units, strict=True))
        order = np.argsort(starts)
        return starts[order], stops[order], found[order]


def select_disjoint(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """(M,) bool: of ascending stretches those that one takes who goes from left to right and leaves out what overlaps;
    a round of the loop settles one of each cluster."""
    chosen = np.zeros(len(start), bool)
    left = np.arange(len(start))
    while len(left):
        reached = np.concatenate([[-1], np.maximum.accumulate(stop[left])[:-1]])
        free = start[left] >= reached
        chosen[left[free]] = True
        settled = np.maximum.accumulate(np.where(free, stop[left], -1))
        left = left[~free & (start[left] >= settled)]
    return chosen


def covered_tokens(start: np.ndarray, stop: np.ndarray, count: int) -> np.ndarray:
    """(count,) bool: tokens that stretches, none of which overlaps another, cover."""
    edges = np.zeros(count + 1, np.int64)
    edges[start] += 1
    np.subtract.at(edges, stop, 1)
    return np.cumsum(edges)[:count] > 0
