"""Words and the words around them: what word2vec, fastText and GloVe learn vectors from.

Their training methods (`training/word_vectors.py`) use it without this loss. The loss here measures any of them on
held-out text in the same way: the cross-entropy of a word given a neighbour (skip-gram, GloVe), or given all neighbours
(CBOW). A unigram model is its baseline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stemma.objectives.base import Objective, Requirements
from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, Natural, Positive
from stemma.schema.corpus import single_text_packings
from stemma.schema.objective import AttentionMaskKind, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.network.inputs_outputs import NetworkOutput
    from stemma.network.network import Network
    from stemma.objectives.batch import Batch

CONTEXT_HEAD = "context"
Architecture = Literal["cbow", "skip_gram", "glove"]


class WordContextSettings(ObjectiveSettings):
    kind: Literal["word_context"]
    # cbow: a word from the mean of its neighbours; skip_gram: each neighbour from a word (arXiv:1301.3781); glove: the
    # logarithm of how often two words are neighbours
    architecture: Architecture
    window: Count = 5  # words on each side
    negatives: Natural = 5  # random words that are told from the right one (arXiv:1310.4546); 0 = none
    power: Positive = 0.75  # of the counts that negatives are drawn by
    hierarchical_softmax: bool = False  # a binary tree over the words (arXiv:1310.4546)
    # fastText: character n-grams of these lengths have vectors, in hash buckets (arXiv:1607.04606); 0 buckets = none
    min_n: Natural = 3
    max_n: Natural = 6
    buckets: Natural = 0

    attention_mask: ClassVar[AttentionMaskKind] = "full"
    size_keys: ClassVar[tuple[str, ...]] = ("architecture", "window", "negatives", "hierarchical_softmax", "buckets")

    @property
    def allowed_packings(self) -> tuple[str, ...]:
        return single_text_packings()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.architecture != "glove" and not self.negatives and not self.hierarchical_softmax:
            yield (ConflictKey("negatives", "without negatives set objective.word_context.hierarchical_softmax=true"),
                   ConflictKey("hierarchical_softmax", "without it objective.word_context.negatives must be 1 or more"))
        if self.buckets and not 1 <= self.min_n <= self.max_n:
            yield (ConflictKey("min_n", f"must lie between 1 and max_n = {self.max_n}"),
                   ConflictKey("max_n", f"must be at least min_n = {self.min_n}"))


@register("objective", "word_context", WordContextSettings)
class WordContext(Objective):
    settings: WordContextSettings

    def requirements(self) -> Requirements:
        from stemma.network.context_head import ContextHeadSpec

        return Requirements(heads={CONTEXT_HEAD: ContextHeadSpec(
            self.settings.architecture, self.settings.window, self.settings.hierarchical_softmax,
            self.settings.negatives > 0, self.settings.buckets)})

    def make_targets(self, draft: Draft, rng: RNG) -> None:
        """The text is input and target."""

    def loss(self, network: Network, output: NetworkOutput, batch: Batch) -> dict[str, Tensor]:
        from stemma.network.context_head import ContextHead

        head = network.heads[CONTEXT_HEAD]
        ids = batch.streams["encoder"].input_ids
        assert isinstance(head, ContextHead) and ids is not None
        return {self.name: head.context_loss(output["encoder"], ids)}

    def baseline(self, batch: Batch, unigram: np.ndarray) -> dict[str, float]:
        ids = batch.streams["encoder"].input_ids
        assert ids is not None
        return {self.name: float(-unigram[ids.cpu().numpy()].mean())}
