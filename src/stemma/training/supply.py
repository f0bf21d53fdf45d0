"""From a corpus to batches: drafts of each group of objectives, corrupted in recipe order, one batch ahead.

All randomness is a function of (seed, step), or of (seed, copy, row) where masks are static, so a batch can be made
again exactly; the only state is each feed's position, which every batch carries with it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stemma.corpus.draft import Draft
from stemma.corpus.pieces import Pieces
from stemma.corpus.randomness import Randomness, RowRandomness
from stemma.corpus.shards import Corpus
from stemma.lineage import Recipe
from stemma.objectives import Batch, Group, Objective, finish, group_objectives
from stemma.training.batches import Prepared
from stemma.training.feeds import VALIDATION_SEED, Feeds, key_of
from stemma.training.phases import first_phase, rows_of
from stemma.training.stages import going_on
from stemma.training.unigram import unigram_of


class Moment(NamedTuple):
    """All that a batch depends on: the step, how long rows are then, and which tasks are trained."""

    step: int
    length: int
    tasks: frozenset[str]


@dataclass(frozen=True)
class Epoch:
    steps: int
    pairs: int
    left_out: int  # pairs that are too long for the window
    longest: int  # places of the longest pair that is not


class Supply:
    def __init__(self, recipe: Recipe, corpus: Corpus, objectives: list[Objective], seed: int):
        self.recipe, self.settings = recipe.settings, recipe.settings.corpus
        self.corpus = corpus
        self.objectives = objectives
        self.seed = seed
        self.groups = group_objectives(recipe, objectives)
        self.feeds = Feeds(recipe.settings, corpus, self.groups, seed)
        self.training, self.validation = self.feeds.training, self.feeds.validation
        self.rates = self.feeds.rates
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: tuple[Moment, Future[Prepared]] | None = None
        self._taken: dict[str, list[int]] = {}  # where the feeds stood after the batch that was asked for last

    def restore(self, positions: dict[str, list[int]]) -> None:
        self.feeds.restore(positions)
        self._taken = positions

    def take(self, step: int, length: int, used: float = 0.0) -> Prepared:
        """The batch of this step, when this share of the budget is used; the next one is prepared while this one is
        computed. How much of the budget this one uses is not known by then, so the next one may turn out to belong to
        a stage that is over: its rows are put back."""
        moment = self._moment(step, length, used)
        if self._ahead is not None and self._ahead[0] == moment:
            prepared = self._ahead[1].result()
        else:
            if self._ahead is not None:
                wait([self._ahead[1]])
                self.feeds.put_back(self._taken)
            prepared = self._prepare(moment)
        self._taken = prepared.positions
        following = self._moment(step + 1, length, used)
        self._ahead = (following, self._worker.submit(self._prepare, following))
        return prepared

    def _moment(self, step: int, length: int, used: float) -> Moment:
        return Moment(step, length, frozenset(objective.name for objective in going_on(self.objectives, step, used)))

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def length_at(self, used: float) -> int:
        """Two phases: short sequences for the first share of the budget, full ones after it."""
        phase = first_phase(self.settings)
        return self.settings.sequence_length if phase is None or used >= phase.share else phase.sequence_length

    def rows_at(self, length: int) -> int:
        """How many rows a step has while they are of this length."""
        return rows_of(self.recipe, length)

    def validation_batches(self, length: int) -> list[tuple[tuple[Objective, ...], Batch]]:
        """The same held-out batches each time: the masks are drawn once."""
        if not len(self.validation.documents):
            return []
        made = []
        for number, group in enumerate(self.groups):
            for start, draft in self.feeds.held_out(number, length):
                _corrupt(draft, group.objectives, np.random.default_rng([VALIDATION_SEED, number, start]))
                batch = finish(draft, group.visibility, group.kind.task, self.recipe.network.inputs)
                made.append((group.objectives, replace(batch, held_out=True)))
        return made

    def epoch(self) -> Epoch:
        """What an epoch of pairs is."""
        feed = self.feeds.of(0, self.settings.sequence_length)
        return Epoch(feed.batches_in_epoch(), len(feed.view.documents), feed.left_out, feed.longest)

    def too_long(self) -> str | None:
        """What to tell of pairs that do not fit the window: a sentence that names the first of them."""
        for number, group in enumerate(self.groups):
            feed = self.feeds.of(number, self.settings.sequence_length) if group.facts.reads == "pairs" else None
            if feed is not None and feed.first_left_out is not None and len(feed.view.documents):
                document = int(np.searchsorted(self.corpus.documents, feed.first_left_out, side="right")) - 1
                begins = self.corpus.text(document)[:40].partition("\n")[0]
                return (f"{feed.left_out:,} of {feed.left_out + len(feed.view.documents):,} pairs are longer than "
                        f"corpus.sequence_length = {self.settings.sequence_length} and are left out; the first is pair "
                        f'{document + 1:,}, "{begins}...".')
        return None

    def unigram(self) -> np.ndarray:
        """(vocabulary,) log-probability of each token in the training text."""
        return unigram_of(self)

    def has_text(self, group: Group) -> bool:
        """Whether there is anything to train on that its packing can lay out."""
        return len(self.feeds.texts(group).documents) > 0

    def sample(self, group: Group, length: int) -> Draft:
        """Some rows as they may come, ready to be looked at."""
        draft = self.feeds.sample(group, length)
        _corrupt(draft, group.objectives, np.random.default_rng(VALIDATION_SEED))
        return draft

    def draft(self, step: int, length: int, used: float = 0.0) -> tuple[Draft, tuple[Objective, ...]]:
        """The draft of a step, corrupted and ready to be turned into tensors (or shown to people)."""
        return self._drafted(self._moment(step, length, used))

    def _drafted(self, moment: Moment) -> tuple[Draft, tuple[Objective, ...]]:
        number, active = self._choose(moment)
        draft, epochs = self.feeds.draft(number, moment.length)
        _corrupt(draft, active, self._randomness(moment.step, self.groups[number], draft.pieces, epochs))
        return draft, active

    def kind_of(self, step: int, length: int, used: float) -> tuple[int, tuple[str, ...], int]:
        """What sort of step it is: the group whose turn it is, its tasks by then, and how long rows are. Steps of one
        sort cost the same."""
        number, active = self._choose(self._moment(step, length, used))
        return number, tuple(objective.name for objective in active), length

    def skip(self, step: int, length: int, used: float = 0.0) -> None:
        """Move on past the rows of a step without making its draft."""
        number, _ = self._choose(self._moment(step, length, used))
        self.feeds.of(number, length).take(self.rows_at(length))

    def _prepare(self, moment: Moment) -> Prepared:
        draft, active = self._drafted(moment)
        number, _ = self._choose(moment)
        kind = self.groups[number].kind
        batch = finish(draft, kind.visibility, kind.task, self.recipe.network.inputs)
        return Prepared(active, batch, self.feeds.positions(), key_of(number, moment.length))

    def _choose(self, moment: Moment) -> tuple[int, tuple[Objective, ...]]:
        """Groups take turns, each as often as the most frequent of its objectives asks for; an objective takes part
        as long as its stage lasts."""
        active = [tuple(o for o in group.objectives if o.name in moment.tasks) for group in self.groups]
        turns = np.array([max((task.settings.turns for task in tasks), default=0.0) for tasks in active])
        rng = np.random.default_rng([self.seed, moment.step, 3])
        number = int(rng.choice(len(active), p=turns / turns.sum())) if len(active) > 1 else 0
        return number, active[number]

    def _randomness(self, step: int, group: Group, pieces: Pieces, epochs: np.ndarray) -> Randomness:
        if group.copies is None:
            return np.random.default_rng([self.seed, step, 4])
        first = np.searchsorted(pieces.row, np.arange(pieces.rows))
        starts, lengths = pieces.start[first], pieces.length[first]
        return RowRandomness([[self.seed, int(epoch), int(start), int(length)]
                              for epoch, start, length in zip(epochs, starts, lengths, strict=True)])


def _corrupt(draft: Draft, objectives: tuple[Objective, ...], rng: Randomness) -> None:
    """In recipe order."""
    for objective in objectives:
        objective.corrupt(draft, rng)
