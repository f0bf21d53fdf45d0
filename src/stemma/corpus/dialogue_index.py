"""Dialogue turns indexed by speaker, to sample a replacement from another dialogue."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from stemma.corpus.subset import CorpusSubset
from stemma.corpus.text_batches import ROLES


class DialogueIndex:
    """Turns of a subset's dialogues, sorted by speaker and dialogue."""

    def __init__(self, subset: CorpusSubset):
        self.subset = subset

    @cached_property
    def _sorted_turns(self) -> tuple[np.ndarray, np.ndarray]:
        """(keys, starts): the (speaker, dialogue) key of each turn in ascending order, and its first token."""
        sentences = np.asarray(self.subset.corpus.sentence_starts)
        first, last = np.searchsorted(sentences, self.subset.document_ranges).T
        counts = last - first
        starts = sentences[np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
        keys = self._key(starts, np.repeat(np.arange(len(counts)), counts))
        order = np.argsort(keys, kind="stable")
        return keys[order], starts[order]

    def _key(self, start: np.ndarray, dialogue: np.ndarray | int) -> np.ndarray:
        speaker = self.subset.corpus.values_at(ROLES, start).astype(np.int64)
        return speaker * (len(self.subset.document_ranges) + 1) + dialogue

    def sample_other_dialogue(self, start: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """For each turn that starts at `start`, the start of a turn of the same speaker in another dialogue, selected
        by `uniform` in [0, 1); -1 if there is none."""
        keys, starts = self._sorted_turns
        dialogue = np.searchsorted(self.subset.document_ranges[:, 0], start, side="right") - 1
        low, high = (np.searchsorted(keys, self._key(start, bound)) for bound in (0, len(self.subset.document_ranges)))
        first, stop = (np.searchsorted(keys, self._key(start, dialogue), side=side) for side in ("left", "right"))
        others = (high - low) - (stop - first)  # the speaker's turns in this dialogue are contiguous: skip them
        index = low + (uniform * others).astype(np.int64)
        index += np.where(index >= first, stop - first, 0)
        return np.where(others > 0, starts[np.minimum(index, len(starts) - 1)], -1)
