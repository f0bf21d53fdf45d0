"""The feeds of a run: for each group of objectives and each row length, rows to train on and rows that are held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from stemma.corpus.bucket_sampler import mixture_weights
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.packing_samplers import sampler_class
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import Cursor, RowSamplerProtocol, SamplerRequest
from stemma.corpus.subset import CorpusSubset, train_validation_split
from stemma.errors import UserError
from stemma.objectives import ObjectiveGroup
from stemma.schema.recipe import RecipeSettings
from stemma.training.phases import batch_rows

VALIDATION_TOKENS = 65_536  # enough for two digits of the loss, little enough for a laptop
BATCH_TOKENS = 8192  # of them at once
VALIDATION_SEED = 20_181_011
SAMPLE_ROWS = 64  # rows that are looked at before training


class RowSamplers:
    def __init__(self, recipe: RecipeSettings, corpus: Corpus, groups: list[ObjectiveGroup], seed: int):
        self.recipe, self.settings, self.corpus, self.groups, self.seed = recipe, recipe.corpus, corpus, groups, seed
        self.training, self.validation = train_validation_split(corpus, self.settings.validation)
        self._read = {group.packing: (self.training.documents_for(group.packing),
                                      self.validation.documents_for(group.packing))
                      for group in groups}  # the documents that each packing lays out
        self.mixture_weights = self._mixture_weights()
        self._samplers: dict[str, RowSamplerProtocol] = {}

    # --- to train on ---

    def sampler(self, group_index: int, length: int) -> RowSamplerProtocol:
        """The feed of a group, made when it is first asked for."""
        key = sampler_key(group_index, length)
        if key not in self._samplers:
            self._samplers[key] = self._build_sampler(self.groups[group_index], self.seed + length, length)
        return self._samplers[key]

    def next_draft(self, group_index: int, length: int) -> tuple[Draft, np.ndarray]:
        """The group's next rows as a draft, and the epoch of each."""
        return self._draft(self.sampler(group_index, length), self.groups[group_index], batch_rows(self.recipe, length))

    def training_documents(self, group: ObjectiveGroup) -> CorpusSubset:
        """The documents to train on that its packing can lay out."""
        return self._read[group.packing][0]

    def cursors(self) -> dict[str, list[int]]:
        """Where each feed stands that has given rows."""
        return {key: [feed.cursor.epoch, feed.cursor.block, feed.cursor.row]
                for key, feed in self._samplers.items() if feed.cursor != Cursor()}

    def restore(self, cursors: Mapping[str, list[int]]) -> None:
        """Go on where these say, with feeds that may not have been made yet."""
        for key, position in cursors.items():
            group, length = (int(number) for number in key.split(":"))
            self.sampler(group, length).cursor = Cursor(*position)

    def reset(self, cursors: Mapping[str, list[int]]) -> None:
        """Every feed to where it stood, at its beginning if it had given nothing."""
        for key, feed in self._samplers.items():
            feed.cursor = Cursor(*cursors.get(key, ()))

    def sample_draft(self, group: ObjectiveGroup, length: int) -> Draft:
        """Some rows as they may come."""
        return self._draft(self._build_sampler(group, VALIDATION_SEED, length), group,
                          min(batch_rows(self.recipe, length), SAMPLE_ROWS))[0]

    # --- held out ---

    def held_out(self, group_index: int, length: int) -> Iterator[tuple[int, Draft]]:
        """Drafts of held-out text, each with a number of its own."""
        group = self.groups[group_index]
        _, view = self._read[group.packing]
        if not len(view.document_ranges):
            return
        demand = SamplerRequest(view, self._packer(group, length), VALIDATION_SEED, batch_rows(self.recipe, length),
                                length,
                        reversed_rows=group.reversed_rows)
        for rows in sampler_class(group.packing).validation_rows(demand, VALIDATION_TOKENS, BATCH_TOKENS):
            yield rows.seed, Draft(view, rows.spans, demand.packer.template, group.reversed_rows(rows.spans.num_rows),
                                     rows.continues_previous)

    # --- how they are made ---

    def _build_sampler(self, group: ObjectiveGroup, seed: int, length: int) -> RowSamplerProtocol:
        return sampler_class(group.packing).from_request(SamplerRequest(self.training_documents(group),
                                                                        self._packer(group, length), seed,
                                                batch_rows(self.recipe, length), length, group.num_static_copies,
                                                                        self.mixture_weights,
                                                group.reversed_rows))

    def _draft(self, sampler: RowSamplerProtocol, group: ObjectiveGroup, rows: int) -> tuple[Draft, np.ndarray]:
        continues = sampler.continues_previous
        pieces, epochs = sampler.next_rows(rows)
        return Draft(self.training_documents(group), pieces, sampler.packer.template,
                     group.reversed_rows(pieces.num_rows), continues), epochs

    def _packer(self, group: ObjectiveGroup, length: int) -> Packer:
        past = int(length * group.packing_settings.past)
        start = self.settings.decoder_start if group.is_seq2seq else None
        layout = RowTemplate.from_tokenizer(self.corpus.tokenizer, group.key.single_template, group.key.pair_template,
                                            group.raw_text_length(length), past,
                           self.settings.boundary, start)
        together = group.packing_settings.reads == "pairs" and not group.is_seq2seq
        return Packer(group.packing, layout, self.settings.short_probability, together)

    def _mixture_weights(self) -> list[float] | None:
        """How often pairs of each group are drawn; None: as often as there are of them."""
        mixture, groups = self.settings.mixture, self.corpus.manifest.get("groups", [])
        if mixture is None:
            return None
        if len(groups) < 2:
            raise UserError(f"corpus.mixture draws from several groups of pairs, and the corpus {self.corpus.path} has "
                            "none; leave it out.")
        counts = [0 if group.get("held_out") else group["documents"] for group in groups]
        weights = [(mixture.weights or {}).get(group.get("name", ""), 1.0) for group in groups]
        return mixture_weights(counts, mixture.temperature, mixture.limit, weights)


def sampler_key(group_index: int, length: int) -> str:
    """Names a feed, in checkpoints too."""
    return f"{group_index}:{length}"
