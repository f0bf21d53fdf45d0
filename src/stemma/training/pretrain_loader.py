"""From a corpus to batches: drafts of each group of objectives, corrupted in recipe order, one batch ahead.

All randomness is a function of (seed, step), or of (seed, copy, row) where masks are static, so a batch can be made
again exactly; the only state is each feed's position, which every batch carries with it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import RNG, PerRowRNG
from stemma.corpus.row_spans import RowSpans
from stemma.objectives import Batch, Objective, ObjectiveGroup, collate, group_objectives
from stemma.recipe_loading import Recipe
from stemma.training.curriculum import active_objectives
from stemma.training.loader import PreparedBatch
from stemma.training.phases import batch_rows, first_phase
from stemma.training.samplers import VALIDATION_SEED, RowSamplers, sampler_key
from stemma.training.unigram_baseline import unigram_log_probs


class BatchKey(NamedTuple):
    """All that a batch depends on: the step, how long rows are then, and which tasks are trained."""

    step: int
    length: int
    objectives: frozenset[str]


@dataclass(frozen=True)
class EpochStats:
    steps: int
    pairs: int
    num_dropped: int  # pairs that are too long for the window
    max_row_length: int  # places of the longest pair that is not


class PretrainLoader:
    def __init__(self, recipe: Recipe, corpus: Corpus, objectives: list[Objective], seed: int):
        self.recipe, self.settings = recipe.settings, recipe.settings.corpus
        self.corpus = corpus
        self.objectives = objectives
        self.seed = seed
        self.groups = group_objectives(recipe, objectives)
        self.samplers = RowSamplers(recipe.settings, corpus, self.groups, seed)
        self.training, self.validation = self.samplers.training, self.samplers.validation
        self.mixture_weights = self.samplers.mixture_weights
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._prefetched: tuple[BatchKey, Future[PreparedBatch]] | None = None
        self._last_cursors: dict[str, list[int]] = {}  # where the feeds stood after the batch that was asked for last

    def restore(self, cursors: dict[str, list[int]]) -> None:
        self.samplers.restore(cursors)
        self._last_cursors = cursors

    def get_batch(self, step: int, length: int, progress: float = 0.0) -> PreparedBatch:
        """The batch of this step, when this share of the budget is used; the next one is prepared while this one is
        computed. How much of the budget this one uses is not known by then, so the next one may turn out to belong to
        a stage that is over: its rows are put back."""
        key = self._batch_key(step, length, progress)
        if self._prefetched is not None and self._prefetched[0] == key:
            prepared = self._prefetched[1].result()
        else:
            if self._prefetched is not None:
                wait([self._prefetched[1]])
                self.samplers.reset(self._last_cursors)
            prepared = self._prepare(key)
        self._last_cursors = prepared.cursors
        next_key = self._batch_key(step + 1, length, progress)
        self._prefetched = (next_key, self._worker.submit(self._prepare, next_key))
        return prepared

    def _batch_key(self, step: int, length: int, progress: float) -> BatchKey:
        return BatchKey(step, length, frozenset(objective.name for objective in active_objectives(self.objectives,
                                                                                                  step, progress)))

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def sequence_length_at(self, progress: float) -> int:
        """Two phases: short sequences for the first share of the budget, full ones after it."""
        phase = first_phase(self.settings)
        return self.settings.sequence_length if phase is None or progress >= phase.share else phase.sequence_length

    def batch_rows_at(self, length: int) -> int:
        """How many rows a step has while they are of this length."""
        return batch_rows(self.recipe, length)

    def validation_batches(self, length: int) -> list[tuple[tuple[Objective, ...], Batch]]:
        """The same held-out batches each time: the masks are drawn once."""
        if not len(self.validation.document_ranges):
            return []
        batches = []
        for number, group in enumerate(self.groups):
            for start, draft in self.samplers.held_out(number, length):
                _corrupt(draft, group.objectives, np.random.default_rng([VALIDATION_SEED, number, start]))
                batch = collate(draft, group.attention_mask_kind, group.key.task_id, self.recipe.network.inputs)
                batches.append((group.objectives, replace(batch, held_out=True)))
        return batches

    def epoch_stats(self) -> EpochStats:
        """What an epoch of pairs is."""
        feed = self.samplers.sampler(0, self.settings.sequence_length)
        return EpochStats(feed.batches_in_epoch(), len(feed.subset.document_ranges), feed.num_dropped,
                          feed.max_row_length)

    def dropped_pairs_warning(self) -> str | None:
        """What to tell of pairs that do not fit the window: a sentence that names the first of them."""
        for number, group in enumerate(self.groups):
            feed = self.samplers.sampler(number,
                                         self.settings.sequence_length) if group.packing_settings.reads == "pairs" else None
            if feed is not None and feed.first_dropped is not None and len(feed.subset.document_ranges):
                document = int(np.searchsorted(self.corpus.document_starts, feed.first_dropped, side="right")) - 1
                begins = self.corpus.document_text(document)[:40].partition("\n")[0]
                return (f"{feed.num_dropped:,} of {feed.num_dropped + len(feed.subset.document_ranges):,} pairs are longer than "
                        f"corpus.sequence_length = {self.settings.sequence_length} and are left out; the first is pair "
                        f'{document + 1:,}, "{begins}...".')
        return None

    def unigram(self) -> np.ndarray:
        """(vocabulary,) log-probability of each token in the training text."""
        return unigram_log_probs(self)

    def has_text(self, group: ObjectiveGroup) -> bool:
        """Whether there is anything to train on that its packing can lay out."""
        return len(self.samplers.training_documents(group).document_ranges) > 0

    def sample_draft(self, group: ObjectiveGroup, length: int) -> Draft:
        """Some rows as they may come, ready to be looked at."""
        draft = self.samplers.sample_draft(group, length)
        _corrupt(draft, group.objectives, np.random.default_rng(VALIDATION_SEED))
        return draft

    def build_draft(self, step: int, length: int, progress: float = 0.0) -> tuple[Draft, tuple[Objective, ...]]:
        """The draft of a step, corrupted and ready to be turned into tensors (or shown to people)."""
        return self._build_draft(self._batch_key(step, length, progress))

    def _build_draft(self, key: BatchKey) -> tuple[Draft, tuple[Objective, ...]]:
        number, active = self._choose_group(key)
        draft, epochs = self.samplers.next_draft(number, key.length)
        _corrupt(draft, active, self._rng(key.step, self.groups[number], draft.spans, epochs))
        return draft, active

    def step_signature(self, step: int, length: int, progress: float) -> tuple[int, tuple[str, ...], int]:
        """What sort of step it is: the group whose turn it is, its tasks by then, and how long rows are. Steps of one
        sort cost the same."""
        number, active = self._choose_group(self._batch_key(step, length, progress))
        return number, tuple(objective.name for objective in active), length

    def skip(self, step: int, length: int, progress: float = 0.0) -> None:
        """Move on past the rows of a step without making its draft."""
        number, _ = self._choose_group(self._batch_key(step, length, progress))
        self.samplers.sampler(number, length).next_rows(self.batch_rows_at(length))

    def _prepare(self, key: BatchKey) -> PreparedBatch:
        draft, active = self._build_draft(key)
        number, _ = self._choose_group(key)
        kind = self.groups[number].key
        batch = collate(draft, kind.attention_mask_kind, kind.task_id, self.recipe.network.inputs)
        return PreparedBatch(active, batch, self.samplers.cursors(), sampler_key(number, key.length))

    def _choose_group(self, key: BatchKey) -> tuple[int, tuple[Objective, ...]]:
        """Groups take turns, each as often as the most frequent of its objectives asks for; an objective takes part
        as long as its stage lasts."""
        active = [tuple(o for o in group.objectives if o.name in key.objectives) for group in self.groups]
        sampling_weights = np.array([max((task.settings.turns for task in tasks), default=0.0) for tasks in active])
        rng = np.random.default_rng([self.seed, key.step, 3])
        number = int(rng.choice(len(active), p=sampling_weights / sampling_weights.sum())) if len(active) > 1 else 0
        return number, active[number]

    def _rng(self, step: int, group: ObjectiveGroup, spans: RowSpans, epochs: np.ndarray) -> RNG:
        if group.num_static_copies is None:
            return np.random.default_rng([self.seed, step, 4])
        first = np.searchsorted(spans.row, np.arange(spans.num_rows))
        starts, lengths = spans.start[first], spans.length[first]
        return PerRowRNG([[self.seed, int(epoch), int(start), int(length)]
                              for epoch, start, length in zip(epochs, starts, lengths, strict=True)])


def _corrupt(draft: Draft, objectives: tuple[Objective, ...], rng: RNG) -> None:
    """In recipe order."""
    for objective in objectives:
        objective.make_targets(draft, rng)
