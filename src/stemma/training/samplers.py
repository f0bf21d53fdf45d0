"""The row samplers of a run: training and validation rows for each group of objectives and each sequence length."""

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

VALIDATION_TOKENS = 65_536  # enough for two digits of the loss, few enough for a laptop
BATCH_TOKENS = 8192  # tokens per validation batch
VALIDATION_SEED = 20_181_011
SAMPLE_ROWS = 64  # rows of a sample batch


class RowSamplers:
    def __init__(self, recipe: RecipeSettings, corpus: Corpus, groups: list[ObjectiveGroup], seed: int):
        self.recipe, self.settings, self.corpus, self.groups, self.seed = recipe, recipe.corpus, corpus, groups, seed
        self.training, self.validation = train_validation_split(corpus, self.settings.validation)
        self._documents = {group.packing: (self.training.documents_for(group.packing),
                                           self.validation.documents_for(group.packing))
                           for group in groups}  # training and validation documents by packing
        self.mixture_weights = self._mixture_weights()
        self._samplers: dict[str, RowSamplerProtocol] = {}

    # --- training ---

    def sampler(self, group_index: int, length: int) -> RowSamplerProtocol:
        """The sampler of a group, created on first use."""
        key = sampler_key(group_index, length)
        if key not in self._samplers:
            self._samplers[key] = self._build_sampler(self.groups[group_index], self.seed + length, length)
        return self._samplers[key]

    def next_draft(self, group_index: int, length: int, rows: int) -> tuple[Draft, np.ndarray]:
        """The group's next rows as a draft, and the epoch of each."""
        return self._draft(self.sampler(group_index, length), self.groups[group_index], rows)

    def training_documents(self, group: ObjectiveGroup) -> CorpusSubset:
        """The training documents for the packing of the group."""
        return self._documents[group.packing][0]

    def cursors(self) -> dict[str, list[int]]:
        """Cursors of the samplers that have returned rows."""
        return {key: [sampler.cursor.epoch, sampler.cursor.block, sampler.cursor.row]
                for key, sampler in self._samplers.items() if sampler.cursor != Cursor()}

    def restore(self, cursors: Mapping[str, list[int]]) -> None:
        """Continue from these cursors; creates the samplers as needed."""
        for key, cursor in cursors.items():
            group, length = (int(part) for part in key.split(":"))
            self.sampler(group, length).cursor = Cursor(*cursor)

    def reset(self, cursors: Mapping[str, list[int]]) -> None:
        """Reset every sampler to its cursor, or to the beginning if it has none."""
        for key, sampler in self._samplers.items():
            sampler.cursor = Cursor(*cursors.get(key, ()))

    def sample_draft(self, group: ObjectiveGroup, length: int) -> Draft:
        """A sample batch of a group, without targets."""
        return self._draft(self._build_sampler(group, VALIDATION_SEED, length), group,
                           min(batch_rows(self.recipe, length), SAMPLE_ROWS))[0]

    # --- validation ---

    def held_out(self, group_index: int, length: int) -> Iterator[tuple[int, Draft]]:
        """Drafts of validation text, each with a seed."""
        group = self.groups[group_index]
        _, subset = self._documents[group.packing]
        if not len(subset.document_ranges):
            return
        request = SamplerRequest(subset, self._packer(group, length), VALIDATION_SEED, batch_rows(self.recipe, length),
                                 length, reversed_rows=group.reversed_rows)
        for rows in sampler_class(group.packing).validation_rows(request, VALIDATION_TOKENS, BATCH_TOKENS):
            yield rows.seed, Draft(subset, rows.spans, request.packer.template,
                                   group.reversed_rows(rows.spans.num_rows), rows.continues_previous)

    # --- construction ---

    def _build_sampler(self, group: ObjectiveGroup, seed: int, length: int) -> RowSamplerProtocol:
        request = SamplerRequest(self.training_documents(group), self._packer(group, length), seed,
                                 batch_rows(self.recipe, length), length, group.num_static_copies,
                                 self.mixture_weights, group.reversed_rows)
        return sampler_class(group.packing).from_request(request)

    def _draft(self, sampler: RowSamplerProtocol, group: ObjectiveGroup, rows: int) -> tuple[Draft, np.ndarray]:
        continues = sampler.continues_previous
        spans, epochs = sampler.next_rows(rows)
        return Draft(self.training_documents(group), spans, sampler.packer.template,
                     group.reversed_rows(spans.num_rows), continues), epochs

    def _packer(self, group: ObjectiveGroup, length: int) -> Packer:
        reuse_length = int(length * group.packing_settings.past)
        decoder_start = self.settings.decoder_start if group.is_seq2seq else None
        template = RowTemplate.from_tokenizer(self.corpus.tokenizer, group.key.single_template,
                                              group.key.pair_template, group.raw_text_length(length), reuse_length,
                                              self.settings.boundary, decoder_start)
        share_row = group.packing_settings.reads == "pairs" and not group.is_seq2seq
        return Packer(group.packing, template, self.settings.short_probability, share_row)

    def _mixture_weights(self) -> list[float] | None:
        """Sampling weights of the groups of pairs; None: proportional to their sizes."""
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
    """The name of a sampler, also in checkpoints."""
    return f"{group_index}:{length}"
