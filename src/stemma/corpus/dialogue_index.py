"""The turns of some dialogues, sorted by speaker: so that another's word can be put into a speaker's mouth at once."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from stemma.corpus.subset import CorpusSubset
from stemma.corpus.text_batches import ROLES


class DialogueIndex:
    def __init__(self, subset: CorpusSubset):
        self.subset = subset

    @cached_property
    def _sorted_turns(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every turn, by speaker and dialogue: the key of both, and where it begins."""
        sentences = np.asarray(self.subset.corpus.sentence_starts)
        first, last = np.searchsorted(sentences, self.subset.document_ranges).T
        counts = last - first
        begins = sentences[np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
        keys = self._key(begins, np.repeat(np.arange(len(counts)), counts))
        order = np.argsort(keys, kind="stable")
        return keys[order], begins[order]

    def _key(self, start: np.ndarray, dialogue: np.ndarray | int) -> np.ndarray:
        speaker = self.subset.corpus.values_at(ROLES, start).astype(np.int64)
        return speaker * (len(self.subset.document_ranges) + 1) + dialogue

    def sample_other_dialogue(self, start: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """For each turn that begins at `start`, where another begins that the same speaker says in another dialogue,
        chosen by a number in [0, 1); -1: there is none."""
        keys, begins = self._sorted_turns
        own = np.searchsorted(self.subset.document_ranges[:, 0], start, side="right") - 1
        low, high = (np.searchsorted(keys, self._key(start, edge)) for edge in (0, len(self.subset.document_ranges)))
        mine, behind = (np.searchsorted(keys, self._key(start, own), side=side) for side in ("left", "right"))
        others = (high - low) - (behind - mine)  # what a speaker says in one dialogue stands together: step over it
        place = low + (uniform * others).astype(np.int64)
        place += np.where(place >= mine, behind - mine, 0)
        return np.where(others > 0, begins[np.minimum(place, len(begins) - 1)], -1)
