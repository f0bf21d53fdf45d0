"""Batches from a corpus: a draft per group of objectives, with targets made in recipe order; prefetches one batch.

All randomness is a function of (seed, step), or of (seed, copy, row) with static masking, so a batch can be reproduced
exactly. The only state is the cursor of each sampler, which every batch carries.
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

PROGRESS_STEP = 0.01  # schedules of objectives, such as the masking rate, change in steps of 1% of the budget


class BatchKey(NamedTuple):
    """Everything a batch depends on: the step, the sequence length, the active objectives, and its schedules."""

    step: int
    length: int
    objectives: frozenset[str]
    rows: int  # batch size (training.batch_schedule)
    progress: float  # used fraction of the budget in steps of PROGRESS_STEP; 0 if no objective has a schedule


@dataclass(frozen=True)
class EpochStats:
    steps: int
    pairs: int
    num_dropped: int  # pairs longer than the sequence length
    max_row_length: int  # tokens of the longest remaining pair


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
        self.counts_words = False  # whether batches come with their number of words
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._prefetched: tuple[BatchKey, Future[PreparedBatch]] | None = None
        self._last_cursors: dict[str, list[int]] = {}  # of the samplers after the last returned batch

    def restore(self, cursors: dict[str, list[int]]) -> None:
        self.samplers.restore(cursors)
        self._last_cursors = cursors

    def get_batch(self, step: int, length: int, progress: float = 0.0) -> PreparedBatch:
        """The batch of this step; `progress` is the used fraction of the budget. The next batch is prefetched; if a
        curriculum stage ends or a schedule changes in between, it is discarded and the cursors are reset."""
        for objective in self.objectives:
            objective.start_step(step)
        key = self._batch_key(step, length, progress)
        if self._prefetched is not None and self._prefetched[0] == key:
            prepared = self._prefetched[1].result()
        else:
            if self._prefetched is not None:
                wait([self._prefetched[1]])
                self.samplers.reset(self._last_cursors)
            prepared = self._prepare(key)
        self._last_cursors = prepared.cursors
        self._prefetched = None
        if any(objective.changes_at(step + 1) for objective in self.objectives):
            return prepared  # the next batch depends on the losses of this one
        expected_progress = progress * (step + 1) / step if step else progress
        next_key = self._batch_key(step + 1, length, expected_progress)
        self._prefetched = (next_key, self._worker.submit(self._prepare, next_key))
        return prepared

    def _batch_key(self, step: int, length: int, progress: float) -> BatchKey:
        active = active_objectives(self.objectives, step, progress)
        scheduled = any(objective.follows_schedule for objective in active)
        return BatchKey(step, length, frozenset(objective.name for objective in active),
                        self.batch_rows_at(length, progress),
                        round(int(progress / PROGRESS_STEP) * PROGRESS_STEP, 6) if scheduled else 0.0)

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    def sequence_length_at(self, progress: float) -> int:
        """Sequence length: short in the first phase, full after it."""
        phase = first_phase(self.settings)
        return self.settings.sequence_length if phase is None or progress >= phase.fraction else phase.sequence_length

    def batch_rows_at(self, length: int, progress: float = 1.0) -> int:
        """Batch size in rows at this sequence length, after this fraction of the budget."""
        return batch_rows(self.recipe, length, progress)

    def validation_batches(self, length: int) -> list[tuple[tuple[Objective, ...], Batch]]:
        """The validation batches, with the same masks each time."""
        if not len(self.validation.document_ranges):
            return []
        batches = []
        for index, group in enumerate(self.groups):
            for start, draft in self.samplers.held_out(index, length):
                draft.progress = 1.0  # always the final masking rate, so that validations are comparable
                rng = np.random.default_rng([VALIDATION_SEED, index, start])
                for objective in group.objectives:
                    objective.make_validation_targets(draft, rng)
                batch = collate(draft, group.attention_mask_kind, group.key.task_id, self.recipe.network.inputs)
                batches.append((group.objectives, replace(batch, held_out=True)))
        return batches

    def epoch_stats(self) -> EpochStats:
        """Size of an epoch of pairs."""
        sampler = self.samplers.sampler(0, self.settings.sequence_length)
        return EpochStats(sampler.batches_in_epoch(), len(sampler.subset.document_ranges), sampler.num_dropped,
                          sampler.max_row_length)

    def dropped_pairs_warning(self) -> str | None:
        """A warning about pairs longer than the sequence length, which names the first; None if there are none."""
        for index, group in enumerate(self.groups):
            if group.packing_settings.reads != "pairs":
                continue
            sampler = self.samplers.sampler(index, self.settings.sequence_length)
            if sampler.first_dropped is not None and len(sampler.subset.document_ranges):
                document = int(np.searchsorted(self.corpus.document_starts, sampler.first_dropped, side="right")) - 1
                beginning = self.corpus.document_text(document)[:40].partition("\n")[0]
                total = sampler.num_dropped + len(sampler.subset.document_ranges)
                return (f"{sampler.num_dropped:,} of {total:,} pairs are longer than corpus.sequence_length = "
                        f"{self.settings.sequence_length} and are left out; the first is pair {document + 1:,}, "
                        f'"{beginning}...".')
        return None

    def unigram(self) -> np.ndarray:
        """(vocabulary,) log-probability of each token in the training text."""
        return unigram_log_probs(self)

    def has_text(self, group: ObjectiveGroup) -> bool:
        """Whether there are training documents for the packing of the group."""
        return len(self.samplers.training_documents(group).document_ranges) > 0

    def sample_draft(self, group: ObjectiveGroup, length: int) -> Draft:
        """A sample batch of a group, with targets, for statistics."""
        draft = self.samplers.sample_draft(group, length)
        _make_targets(draft, group.objectives, np.random.default_rng(VALIDATION_SEED))
        return draft

    def build_draft(self, step: int, length: int, progress: float = 0.0) -> tuple[Draft, tuple[Objective, ...]]:
        """The draft of a step with its targets, to be collated or shown, and its objectives."""
        return self._build_draft(self._batch_key(step, length, progress))

    def _build_draft(self, key: BatchKey) -> tuple[Draft, tuple[Objective, ...]]:
        index, active = self._choose_group(key)
        draft, epochs = self.samplers.next_draft(index, key.length, key.rows)
        draft.progress = key.progress
        _make_targets(draft, active, self._rng(key.step, self.groups[index], draft.spans, epochs))
        return draft, active

    def step_signature(self, step: int, length: int, progress: float) -> tuple[int, tuple[str, ...], int, int]:
        """Group, active objectives, sequence length and batch size (in quarters of the largest) of a step. Steps with
        the same signature have nearly the same cost."""
        key = self._batch_key(step, length, progress)
        index, active = self._choose_group(key)
        size = round(4 * key.rows / batch_rows(self.recipe, length))
        return index, tuple(objective.name for objective in active), length, size

    def skip(self, step: int, length: int, progress: float = 0.0) -> None:
        """Advance the sampler past the rows of a step without making its draft."""
        key = self._batch_key(step, length, progress)
        self.samplers.sampler(self._choose_group(key)[0], length).next_rows(key.rows)

    def _prepare(self, key: BatchKey) -> PreparedBatch:
        draft, active = self._build_draft(key)
        index, _ = self._choose_group(key)
        group_key = self.groups[index].key
        batch = collate(draft, group_key.attention_mask_kind, group_key.task_id, self.recipe.network.inputs)
        num_words = _count_words(draft) if self.counts_words else 0
        return PreparedBatch(active, batch, self.samplers.cursors(), sampler_key(index, key.length), num_words)

    def _choose_group(self, key: BatchKey) -> tuple[int, tuple[Objective, ...]]:
        """Sample the group of a step, weighted by the largest `turns` of its active objectives; returns its index and
        these objectives."""
        active = [tuple(o for o in group.objectives if o.name in key.objectives) for group in self.groups]
        sampling_weights = np.array([max((objective.settings.sampling_weight for objective in objectives), default=0.0)
                                     for objectives in active])
        rng = np.random.default_rng([self.seed, key.step, 3])
        index = int(rng.choice(len(active), p=sampling_weights / sampling_weights.sum())) if len(active) > 1 else 0
        return index, active[index]

    def _rng(self, step: int, group: ObjectiveGroup, spans: RowSpans, epochs: np.ndarray) -> RNG:
        if group.num_static_copies is None:
            return np.random.default_rng([self.seed, step, 4])
        first = np.searchsorted(spans.row, np.arange(spans.num_rows))
        starts, lengths = spans.start[first], spans.length[first]
        return PerRowRNG([[self.seed, int(epoch), int(start), int(length)]
                          for epoch, start, length in zip(epochs, starts, lengths, strict=True)])


def _make_targets(draft: Draft, objectives: tuple[Objective, ...], rng: RNG) -> None:
    """Let the objectives edit the draft, in recipe order."""
    for objective in objectives:
        objective.make_targets(draft, rng)


def _count_words(draft: Draft) -> int:
    """The number of tokens in the rows that begin a word."""
    return int(draft.corpus.values_at("word_starts", draft.corpus_offsets[draft.is_text]).sum())
