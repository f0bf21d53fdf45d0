"""The feeds of a run: for each group of objectives and each row length, rows to train on and rows that are held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from stemma.corpus.buckets import mixture_rates
from stemma.corpus.draft import Draft
from stemma.corpus.feed import AnyFeed, Demand, Position
from stemma.corpus.feeds import feed_of
from stemma.corpus.layout import Layout
from stemma.corpus.packers import Packing
from stemma.corpus.shards import Corpus
from stemma.corpus.view import View, split
from stemma.errors import UserError
from stemma.objectives import Group
from stemma.schema.recipe import RecipeSettings
from stemma.training.phases import rows_of

VALIDATION_TOKENS = 65_536  # enough for two digits of the loss, little enough for a laptop
BATCH_TOKENS = 8192  # of them at once
VALIDATION_SEED = 20_181_011
SAMPLE = 64  # rows that are looked at before training


class Feeds:
    def __init__(self, recipe: RecipeSettings, corpus: Corpus, groups: list[Group], seed: int):
        self.recipe, self.settings, self.corpus, self.groups, self.seed = recipe, recipe.corpus, corpus, groups, seed
        self.training, self.validation = split(corpus, self.settings.validation)
        self._read = {group.packing: (self.training.read_by(group.packing), self.validation.read_by(group.packing))
                      for group in groups}  # the documents that each packing lays out
        self.rates = self._rates()
        self._made: dict[str, AnyFeed] = {}

    # --- to train on ---

    def of(self, number: int, length: int) -> AnyFeed:
        """The feed of a group, made when it is first asked for."""
        key = key_of(number, length)
        if key not in self._made:
            self._made[key] = self._new(self.groups[number], self.seed + length, length)
        return self._made[key]

    def draft(self, number: int, length: int) -> tuple[Draft, np.ndarray]:
        """The group's next rows as a draft, and the epoch of each."""
        return self._draw(self.of(number, length), self.groups[number], rows_of(self.recipe, length))

    def texts(self, group: Group) -> View:
        """The documents to train on that its packing can lay out."""
        return self._read[group.packing][0]

    def positions(self) -> dict[str, list[int]]:
        """Where each feed stands that has given rows."""
        return {key: [feed.position.epoch, feed.position.block, feed.position.row]
                for key, feed in self._made.items() if feed.position != Position()}

    def restore(self, positions: Mapping[str, list[int]]) -> None:
        """Go on where these say, with feeds that may not have been made yet."""
        for key, position in positions.items():
            group, length = (int(number) for number in key.split(":"))
            self.of(group, length).position = Position(*position)

    def put_back(self, positions: Mapping[str, list[int]]) -> None:
        """Every feed to where it stood, at its beginning if it had given nothing."""
        for key, feed in self._made.items():
            feed.position = Position(*positions.get(key, ()))

    def sample(self, group: Group, length: int) -> Draft:
        """Some rows as they may come."""
        return self._draw(self._new(group, VALIDATION_SEED, length), group,
                          min(rows_of(self.recipe, length), SAMPLE))[0]

    # --- held out ---

    def held_out(self, number: int, length: int) -> Iterator[tuple[int, Draft]]:
        """Drafts of held-out text, each with a number of its own."""
        group = self.groups[number]
        _, view = self._read[group.packing]
        if not len(view.documents):
            return
        demand = Demand(view, self._packing(group, length), VALIDATION_SEED, rows_of(self.recipe, length), length,
                        backward=group.backward)
        for rows in feed_of(group.packing).held_out(demand, VALIDATION_TOKENS, BATCH_TOKENS):
            yield rows.number, Draft(view, rows.pieces, demand.packing.layout, group.backward(rows.pieces.rows),
                                     rows.continues)

    # --- how they are made ---

    def _new(self, group: Group, seed: int, length: int) -> AnyFeed:
        return feed_of(group.packing).of(Demand(self.texts(group), self._packing(group, length), seed,
                                                rows_of(self.recipe, length), length, group.copies, self.rates,
                                                group.backward))

    def _draw(self, feed: AnyFeed, group: Group, rows: int) -> tuple[Draft, np.ndarray]:
        continues = feed.continues
        pieces, epochs = feed.take(rows)
        return Draft(self.texts(group), pieces, feed.packing.layout, group.backward(pieces.rows), continues), epochs

    def _packing(self, group: Group, length: int) -> Packing:
        past = int(length * group.facts.past)
        start = self.settings.decoder_start if group.decodes else None
        layout = Layout.of(self.corpus.tokenizer, group.kind.single, group.kind.pair, group.raw_length(length), past,
                           self.settings.boundary, start)
        together = group.facts.reads == "pairs" and not group.decodes
        return Packing(group.packing, layout, self.settings.short_probability, together)

    def _rates(self) -> list[float] | None:
        """How often pairs of each group are drawn; None: as often as there are of them."""
        mixture, groups = self.settings.mixture, self.corpus.manifest.get("groups", [])
        if mixture is None:
            return None
        if len(groups) < 2:
            raise UserError(f"corpus.mixture draws from several groups of pairs, and the corpus {self.corpus.path} has "
                            "none; leave it out.")
        counts = [0 if group.get("held_out") else group["documents"] for group in groups]
        weights = [(mixture.weights or {}).get(group.get("name", ""), 1.0) for group in groups]
        return mixture_rates(counts, mixture.temperature, mixture.limit, weights)


def key_of(group: int, length: int) -> str:
    """Names a feed, in checkpoints too."""
    return f"{group}:{length}"
