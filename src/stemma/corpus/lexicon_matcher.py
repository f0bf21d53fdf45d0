"""Finds lexicon entries in text: longest match first, at atom boundaries, vectorised over the text.

For each entry length, the character spans of that length that begin and end at atom boundaries are hashed and looked
up. If two matches overlap, the longer one wins, then the leftmost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stemma.corpus.text_chunks import TextChunk, hash_characters, normalize_characters


class LexiconMatcher:
    """Hash tables of a lexicon's entries, by length."""

    def __init__(self, entries: Sequence[str], lowercase: bool):
        self.tables: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        by_length: dict[int, dict[int, tuple[int, np.ndarray]]] = {}
        for index, entry in enumerate(entries):
            characters = normalize_characters(entry, lowercase)
            by_length.setdefault(len(characters), {}).setdefault(hash_characters(characters), (index, characters))
        for length in sorted(by_length, reverse=True):
            rows = sorted(by_length[length].items())
            self.tables[length] = (np.array([key for key, _ in rows], np.uint64),
                                   np.array([index for _, (index, _) in rows]),
                                   np.stack([characters for _, (_, characters) in rows]))

    def find(self, chunk: TextChunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(M,) each, in text order: first token of a match, its end (exclusive), and the index of its entry."""
        size = len(chunk.characters)
        nonempty = chunk.atom_ends > chunk.atom_starts  # an atom may be only a line end
        ends = np.full(size + 1, -1)  # for each character: the token after an atom that ends there
        ends[chunk.atom_ends[nonempty]] = chunk.atom_first_tokens[1:][nonempty]
        atom_starts, first = chunk.atom_starts[nonempty], chunk.atom_first_tokens[:-1][nonempty]
        taken = np.zeros(chunk.num_tokens, bool)
        matches: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for length, (keys, indices, spellings) in self.tables.items():
            atom = np.flatnonzero(atom_starts + length <= size)
            atom = atom[ends[atom_starts[atom] + length] > first[atom]]
            if not len(atom):
                continue
            key = chunk.hashes(atom_starts[atom], atom_starts[atom] + length)
            entry = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            hit = keys[entry] == key
            atom, entry = atom[hit], entry[hit]
            characters = chunk.characters[atom_starts[atom][:, None] + np.arange(length)]
            equal = characters == spellings[entry]  # hashes may collide
            atom, entry = atom[equal.all(1)], entry[equal.all(1)]
            stop = ends[atom_starts[atom] + length]
            num_taken = np.concatenate([[0], np.cumsum(taken)])
            free = num_taken[stop] == num_taken[first[atom]]
            atom, entry, stop = atom[free], entry[free], stop[free]
            disjoint = select_disjoint(first[atom], stop)
            matches.append((first[atom][disjoint], stop[disjoint], indices[entry[disjoint]]))
            taken |= covered_tokens(matches[-1][0], matches[-1][1], chunk.num_tokens)
        if not matches:
            return (np.zeros(0, np.int64),) * 3
        starts, stops, entries = (np.concatenate(column) for column in zip(*matches, strict=True))
        order = np.argsort(starts)
        return starts[order], stops[order], entries[order]


def select_disjoint(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """(M,) bool: greedy left-to-right selection of non-overlapping spans; `start` is ascending. Each iteration selects
    one span of every cluster."""
    selected = np.zeros(len(start), bool)
    remaining = np.arange(len(start))
    while len(remaining):
        reached = np.concatenate([[-1], np.maximum.accumulate(stop[remaining])[:-1]])
        free = start[remaining] >= reached
        selected[remaining[free]] = True
        settled = np.maximum.accumulate(np.where(free, stop[remaining], -1))
        remaining = remaining[~free & (start[remaining] >= settled)]
    return selected


def covered_tokens(start: np.ndarray, stop: np.ndarray, count: int) -> np.ndarray:
    """(count,) bool: tokens covered by these disjoint spans."""
    edges = np.zeros(count + 1, np.int64)
    edges[start] += 1
    np.subtract.at(edges, stop, 1)
    return np.cumsum(edges)[:count] > 0
