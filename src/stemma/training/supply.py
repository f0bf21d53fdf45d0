"""From a corpus to batches: feeds for each group of objectives, drafts corrupted in recipe order, one batch ahead.

All randomness is a function of (seed, step), or of (seed, copy, row) where masks are static, so a batch can be made
again exactly; the only state is each feed's position, which every batch carries with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stemma import registry
from stemma.corpus.buckets import BucketFeed, mixture_rates
from stemma.corpus.contiguous import ContiguousFeed
from stemma.corpus.draft import Draft
from stemma.corpus.feed import Feed, Position
from stemma.corpus.layout import Layout
from stemma.corpus.packers import Packing
from stemma.corpus.pieces import Pieces
from stemma.corpus.randomness import Randomness, RowRandomness
from stemma.corpus.shards import Corpus
from stemma.corpus.view import View, split
from stemma.errors import UserError
from stemma.lineage import Recipe
from stemma.objectives import Batch, Group, Objective, finish, group_objectives
from stemma.training.batches import Prepared
from stemma.training.phases import first_phase, rows_of
from stemma.training.stages import going_on

VALIDATION_TOKENS = 65_536  # enough for two digits of the loss, little enough for a laptop
BATCH_TOKENS = 8192  # of them at once
COUNTED_PAIRS = 65_536  # pairs whose tokens are counted at once
SEGMENTS = 4  # windows that a held-out column should have at least, so that a memory comes into play
VALIDATION_SEED = 20_181_011
SAMPLE = 64  # rows that are looked at before training


AnyFeed = Feed | ContiguousFeed


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
        self.training, self.validation = split(corpus, self.settings.validation)
        self._read = {group.packing: (self.training.read_by(group.packing), self.validation.read_by(group.packing))
                      for group in self.groups}  # the documents that each packing lays out
        self.rates = self._rates()
        self._feeds: dict[str, AnyFeed] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: tuple[Moment, Future[Prepared]] | None = None
        self._taken: dict[str, list[int]] = {}  # where the feeds stood after the batch that was asked for last

    def restore(self, positions: dict[str, list[int]]) -> None:
        for key, position in positions.items():
            group, length = (int(number) for number in key.split(":"))
            self._feed(group, length).position = Position(*position)
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
                for key, feed in self._feeds.items():
                    feed.position = Position(*self._taken.get(key, ()))
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
            for start, draft in self._held_out(number, length):
                rng = np.random.default_rng([VALIDATION_SEED, number, start])
                for objective in group.objectives:
                    objective.corrupt(draft, rng)
                batch = finish(draft, group.visibility, group.kind.task, self.recipe.network.inputs)
                made.append((group.objectives, replace(batch, held_out=True)))
        return made

    def epoch(self) -> Epoch:
        """What an epoch of pairs is."""
        feed = self._feed(0, self.settings.sequence_length)
        assert isinstance(feed, BucketFeed)
        return Epoch(feed.batches_in_epoch(), len(feed.view.documents), feed.left_out, feed.longest)

    def too_long(self) -> str | None:
        """What to tell of pairs that do not fit the window: a sentence that names the first of them."""
        for number, group in enumerate(self.groups):
            feed = self._feed(number, self.settings.sequence_length) if group.facts.reads == "pairs" else None
            if isinstance(feed, BucketFeed) and feed.first_left_out is not None and len(feed.view.documents):
                document = int(np.searchsorted(self.corpus.documents, feed.first_left_out, side="right")) - 1
                begins = self.corpus.text(document)[:40].partition("\n")[0]
                return (f"{feed.left_out:,} of {feed.left_out + len(feed.view.documents):,} pairs are longer than "
                        f"corpus.sequence_length = {self.settings.sequence_length} and are left out; the first is pair "
                        f'{document + 1:,}, "{begins}...".')
        return None

    def _held_out(self, number: int, length: int) -> Iterator[tuple[int, Draft]]:
        """Drafts of held-out text, each with a number of its own."""
        group, packing = self.groups[number], self._packing(self.groups[number], length)
        _, view = self._read[group.packing]
        if not len(view.documents):
            return
        rows, most = self.rows_at(length), max(1, VALIDATION_TOKENS // length)
        size = max(1, min(rows, BATCH_TOKENS // length))
        if group.facts.contiguous:
            size = max(1, min(size, view.tokens // (SEGMENTS * length)))
            running = _contiguous(view, packing, VALIDATION_SEED, size, group.backward(size))
            for start in range(0, min(most, running.batches * size), size):
                yield start, self._draw(running, view, group, size)[0]
            return
        if group.facts.bucketed:
            bucketed = BucketFeed(view, packing, VALIDATION_SEED, min(rows * length, BATCH_TOKENS))
            for start, alike in enumerate(bucketed.batches(VALIDATION_TOKENS)):
                yield start, Draft(view, alike, packing.layout, group.backward(alike.rows))
            return
        pieces = Feed(view, packing, VALIDATION_SEED).all_rows(most)
        for start in range(0, pieces.rows, size):
            some = pieces.select(np.arange(start, min(start + size, pieces.rows)))
            yield start, Draft(view, some, packing.layout, group.backward(some.rows))

    def unigram(self) -> np.ndarray:
        """(vocabulary,) log-probability of each token in the training text, every token counted once more. Of pairs
        only the targets are guessed, so only they are counted."""
        if all(group.facts.reads == "pairs" for group in self.groups):
            counts = self._target_counts()
        else:
            counts = self.corpus.counts.copy()
            for start, stop in self.validation.documents:
                counts -= np.bincount(self.corpus.slice("tokens", start, stop), minlength=len(counts))
        boundary = self.corpus.tokenizer.boundary(self.settings.boundary) if self.settings.boundary != "none" else None
        writing = [group for group in self.groups if (group.decodes or group.facts.reads == "pairs")
                   and any(objective.guesses_tokens for objective in group.objectives)]
        if boundary is not None and any(objective.guesses_next for group in self.groups if group not in writing
                                        for objective in group.objectives):
            counts[boundary] += len(self.training.documents)  # a document's end is guessed like a token
        for group in writing:
            counts += self._special_counts(group, int(counts.sum()))
        return np.log((counts + 1) / (counts.sum() + len(counts)))

    def _target_counts(self) -> np.ndarray:
        """How often each token occurs in the second texts of the training pairs."""
        counts = np.zeros_like(self.corpus.counts)
        documents, sentences = self._read[self.groups[0].packing][0].documents, np.asarray(self.corpus.sentences)
        for first in range(0, len(documents), COUNTED_PAIRS):
            start, stop = documents[first:first + COUNTED_PAIRS].T
            middle = np.minimum(sentences[np.searchsorted(sentences, start, side="right")], stop)
            lengths = stop - middle
            places = np.arange(lengths.sum()) + np.repeat(middle - (np.cumsum(lengths) - lengths), lengths)
            counts += np.bincount(self.corpus.take("tokens", places), minlength=len(counts))
        return counts

    def _special_counts(self, group: Group, text: int) -> np.ndarray:
        """How often special tokens (sentinels, the end) are guessed beside so many of the text, judged by a batch."""
        draft = self.sample(group, self.settings.sequence_length)
        labels = np.concatenate([target.labels.numpy() for target in finish(draft, group.visibility).scores.values()])
        found = np.bincount(labels, minlength=len(self.corpus.counts))
        special = np.zeros_like(found)
        special[self.corpus.tokenizer.special_ids] = found[self.corpus.tokenizer.special_ids]
        share = special / max(1, found.sum() - special.sum())
        return np.rint(share * text).astype(self.corpus.counts.dtype)

    def has_text(self, group: Group) -> bool:
        """Whether there is anything to train on that its packing can lay out."""
        return len(self._read[group.packing][0].documents) > 0

    def sample(self, group: Group, length: int) -> Draft:
        """Some rows as they may come, ready to be looked at."""
        feed = self._new_feed(group, self._packing(group, length), VALIDATION_SEED, length)
        draft, _ = self._draw(feed, self._read[group.packing][0], group, min(self.rows_at(length), SAMPLE))
        rng = np.random.default_rng(VALIDATION_SEED)
        for objective in group.objectives:
            objective.corrupt(draft, rng)
        return draft

    def draft(self, step: int, length: int, used: float = 0.0) -> tuple[Draft, tuple[Objective, ...]]:
        """The draft of a step, corrupted and ready to be turned into tensors (or shown to people)."""
        return self._drafted(self._moment(step, length, used))

    def _drafted(self, moment: Moment) -> tuple[Draft, tuple[Objective, ...]]:
        number, active = self._choose(moment)
        group, feed = self.groups[number], self._feed(number, moment.length)
        draft, epochs = self._draw(feed, self._read[group.packing][0], group, self.rows_at(moment.length))
        rng = self._randomness(moment.step, group, draft.pieces, epochs)
        for objective in active:
            objective.corrupt(draft, rng)
        return draft, active

    def kind_of(self, step: int, length: int, used: float) -> tuple[int, tuple[str, ...], int]:
        """What sort of step it is: the group whose turn it is, its tasks by then, and how long rows are. Steps of one
        sort cost the same."""
        number, active = self._choose(self._moment(step, length, used))
        return number, tuple(objective.name for objective in active), length

    def skip(self, step: int, length: int, used: float = 0.0) -> None:
        """Move on past the rows of a step without making its draft."""
        number, _ = self._choose(self._moment(step, length, used))
        self._feed(number, length).take(self.rows_at(length))

    def _prepare(self, moment: Moment) -> Prepared:
        draft, active = self._drafted(moment)
        positions = {key: [feed.position.epoch, feed.position.block, feed.position.row]
                     for key, feed in self._feeds.items() if feed.position != Position()}
        number, _ = self._choose(moment)
        kind = self.groups[number].kind
        batch = finish(draft, kind.visibility, kind.task, self.recipe.network.inputs)
        return Prepared(active, batch, positions, _key(number, moment.length))

    def _choose(self, moment: Moment) -> tuple[int, tuple[Objective, ...]]:
        """Groups take turns, each as often as the most frequent of its objectives asks for; an objective takes part
        as long as its stage lasts."""
        active = [tuple(o for o in group.objectives if o.name in moment.tasks) for group in self.groups]
        turns = np.array([max((task.settings.turns for task in tasks), default=0.0) for tasks in active])
        rng = np.random.default_rng([self.seed, moment.step, 3])
        number = int(rng.choice(len(active), p=turns / turns.sum())) if len(active) > 1 else 0
        return number, active[number]

    def _draw(self, feed: AnyFeed, view: View, group: Group, rows: int) -> tuple[Draft, np.ndarray]:
        """The feed's next rows as a draft, and the epoch of each; a bucketed feed has its own mind of how many."""
        continues = feed.continues
        pieces, epochs = feed.take(rows)
        return Draft(view, pieces, feed.packing.layout, group.backward(pieces.rows), continues), epochs

    def _randomness(self, step: int, group: Group, pieces: Pieces, epochs: np.ndarray) -> Randomness:
        if group.copies is None:
            return np.random.default_rng([self.seed, step, 4])
        first = np.searchsorted(pieces.row, np.arange(pieces.rows))
        starts, lengths = pieces.start[first], pieces.length[first]
        return RowRandomness([[self.seed, int(epoch), int(start), int(length)]
                              for epoch, start, length in zip(epochs, starts, lengths, strict=True)])

    def _packing(self, group: Group, length: int) -> Packing:
        past = int(length * group.facts.past)
        start = self.settings.decoder_start if group.decodes else None
        layout = Layout.of(self.corpus.tokenizer, group.kind.single, group.kind.pair, group.raw_length(length), past,
                           self.settings.boundary, start)
        together = group.facts.reads == "pairs" and not group.decodes
        return Packing(group.packing, layout, self.settings.short_probability, together)

    def _feed(self, number: int, length: int) -> AnyFeed:
        key = _key(number, length)
        if key not in self._feeds:
            group = self.groups[number]
            self._feeds[key] = self._new_feed(group, self._packing(group, length), self.seed + length, length)
        return self._feeds[key]

    def _rates(self) -> list[float] | None:
        """How often pairs of each group are drawn; None: as often as there are of them."""
        mixture, groups = self.settings.mixture, self.corpus.manifest.get("groups", [])
        if mixture is None:
            return None
        if len(groups) < 2:
            raise UserError(f"corpus.mixture draws from several groups of pairs, and the corpus {self.corpus.path} has "
                            "none; leave it out.")
        counts = [0 if group.get("held_out") else group["documents"] for group in groups]
        return mixture_rates(counts, mixture.temperature, mixture.limit)

    def _new_feed(self, group: Group, packing: Packing, seed: int, length: int) -> AnyFeed:
        (view, _), rows = self._read[group.packing], self.rows_at(length)
        if group.facts.contiguous:
            return _contiguous(view, packing, seed, rows, group.backward(rows))
        if group.facts.bucketed:
            return BucketFeed(view, packing, seed, rows * length, group.copies, self.rates)
        return Feed(view, packing, seed, group.copies)


def _contiguous(view: View, packing: Packing, seed: int, rows: int, backward: np.ndarray | None) -> ContiguousFeed:
    """The feed that a packing of this kind is."""
    made: ContiguousFeed = registry.get("packing", packing.kind).build(view, packing, seed, rows, backward)
    return made


def _key(group: int, length: int) -> str:
    """Names a feed, in checkpoints too."""
    return f"{group}:{length}"
