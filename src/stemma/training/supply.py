"""From a corpus to batches: feeds for each group of objectives, drafts corrupted in recipe order, one batch ahead.

All randomness is a function of (seed, step), or of (seed, copy, row) where masks are static, so a batch can be made
again exactly; the only state is each feed's position, which every batch carries with it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stemma.corpus.draft import Draft, Layout
from stemma.corpus.feed import Feed, Position
from stemma.corpus.packers import Packing
from stemma.corpus.pieces import Pieces
from stemma.corpus.randomness import Randomness, RowRandomness
from stemma.corpus.shards import Corpus
from stemma.corpus.view import View, split
from stemma.lineage import Recipe
from stemma.objectives import Batch, Group, Objective, finish, group_objectives

VALIDATION_TOKENS = 65_536  # enough for two digits of the loss, little enough for a laptop
VALIDATION_SEED = 20_181_011


@dataclass(frozen=True)
class Prepared:
    """One step's batch, the objectives to score it, and where the feeds stood after it was taken."""

    objectives: tuple[Objective, ...]
    batch: Batch
    positions: dict[str, list[int]]


class Supply:
    def __init__(self, recipe: Recipe, corpus: Corpus, objectives: list[Objective], seed: int):
        self.settings = recipe.settings.corpus
        self.batch_size = recipe.settings.training.batch_size
        self.corpus = corpus
        self.seed = seed
        self.groups = group_objectives(recipe, objectives)
        self.training, self.validation = split(corpus, self.settings.validation)
        self._feeds: dict[str, Feed] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: tuple[int, int, Future[Prepared]] | None = None

    def restore(self, positions: dict[str, list[int]]) -> None:
        for key, position in positions.items():
            group, length = (int(number) for number in key.split(":"))
            self._feed(group, length).position = Position(*position)

    def take(self, step: int, length: int) -> Prepared:
        """The batch of this step; the next one is prepared while this one is computed."""
        if self._ahead is not None and self._ahead[:2] == (step, length):
            prepared = self._ahead[2].result()
        else:
            if self._ahead is not None:
                self._ahead[2].result()  # a batch of the phase that just ended: let it finish, then leave it
            prepared = self._prepare(step, length)
        self._ahead = (step + 1, length, self._worker.submit(self._prepare, step + 1, length))
        return prepared

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def length_at(self, used: float) -> int:
        """Two phases: short sequences for the first share of the budget, full ones after it."""
        phase = self.settings.first_phase
        if phase is not None and used < phase.share and phase.sequence_length < self.settings.sequence_length:
            return phase.sequence_length
        return self.settings.sequence_length

    def validation_batches(self, length: int) -> list[tuple[tuple[Objective, ...], Batch]]:
        """The same held-out batches each time: the masks are drawn once."""
        if not len(self.validation.documents):
            return []
        made = []
        for number, group in enumerate(self.groups):
            feed = Feed(self.validation, self._packing(group, length), VALIDATION_SEED)
            pieces = feed.all_rows(max(1, VALIDATION_TOKENS // length))
            size = max(1, min(self.batch_size, 8192 // length))
            for start in range(0, pieces.rows, size):
                rows = pieces.select(np.arange(start, min(start + size, pieces.rows)))
                rng = np.random.default_rng([VALIDATION_SEED, number, start])
                draft = self._corrupt(self.validation, rows, group, group.objectives, length, rng)
                made.append((group.objectives, finish(draft)))
        return made

    def unigram(self) -> np.ndarray:
        """(vocabulary,) log-probability of each token in the training text, every token counted once more."""
        counts = self.corpus.counts.copy()
        for start, stop in self.validation.documents:
            counts -= np.bincount(self.corpus.slice("tokens", start, stop), minlength=len(counts))
        return np.log((counts + 1) / (counts.sum() + len(counts)))

    def draft(self, step: int, length: int) -> tuple[Draft, tuple[Objective, ...]]:
        """The draft of a step, corrupted and ready to be turned into tensors (or shown to people)."""
        number, active = self._choose(step)
        group = self.groups[number]
        pieces, epochs = self._feed(number, length).take(self.batch_size)
        rng = self._randomness(step, group, pieces, epochs)
        return self._corrupt(self.training, pieces, group, active, length, rng), active

    def skip(self, step: int, length: int) -> None:
        """Move on past the rows of a step without making its draft."""
        number, _ = self._choose(step)
        self._feed(number, length).take(self.batch_size)

    def _prepare(self, step: int, length: int) -> Prepared:
        draft, active = self.draft(step, length)
        positions = {key: [feed.position.epoch, feed.position.block, feed.position.row]
                     for key, feed in self._feeds.items()}
        return Prepared(active, finish(draft), positions)

    def _choose(self, step: int) -> tuple[int, tuple[Objective, ...]]:
        """Groups take turns in proportion to their weight; an objective takes part from its start_step on."""
        active = [tuple(o for o in group.objectives if o.settings.start_step <= step) for group in self.groups]
        weights = np.array([sum(objective.weight for objective in objectives) for objectives in active])
        rng = np.random.default_rng([self.seed, step, 3])
        number = int(rng.choice(len(active), p=weights / weights.sum())) if len(active) > 1 else 0
        return number, active[number]

    def _corrupt(self, view: View, pieces: Pieces, group: Group, objectives: tuple[Objective, ...], length: int,
                 rng: Randomness) -> Draft:
        draft = Draft(view, pieces, self._packing(group, length).layout)
        for objective in objectives:
            objective.corrupt(draft, rng)
        return draft

    def _randomness(self, step: int, group: Group, pieces: Pieces, epochs: np.ndarray) -> Randomness:
        if group.copies is None:
            return np.random.default_rng([self.seed, step, 4])
        first = np.searchsorted(pieces.row, np.arange(pieces.rows))
        starts, lengths = pieces.start[first], pieces.length[first]
        return RowRandomness([[self.seed, int(epoch), int(start), int(length)]
                              for epoch, start, length in zip(epochs, starts, lengths, strict=True)])

    def _packing(self, group: Group, length: int) -> Packing:
        layout = Layout.of(self.corpus.tokenizer, self.settings.single, self.settings.pair, length)
        return Packing(group.packing, layout, self.settings.short_probability)

    def _feed(self, group: int, length: int) -> Feed:
        key = f"{group}:{length}"
        if key not in self._feeds:
            chosen = self.groups[group]
            self._feeds[key] = Feed(self.training, self._packing(chosen, length), self.seed + length, chosen.copies)
        return self._feeds[key]
