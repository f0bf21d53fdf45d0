"""The training methods of word vectors: their settings. Their modules are imported when a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count, NonNegative, Positive
from stemma.schema.training import MethodSettings
from stemma.training.method_kinds import NO_GRADIENTS

if TYPE_CHECKING:
    from stemma.schema.recipe import RecipeSettings
    from stemma.training.method import Method, MethodSetup


class VectorMethodSettings(MethodSettings):
    """Several passes over a text, or over what was counted in it."""

    unused_keys: ClassVar[tuple[str, ...]] = tuple(key for key in NO_GRADIENTS if key != "training.learning_rate")
    architectures: ClassVar[tuple[str, ...]]
    size_keys: ClassVar[tuple[str, ...]] = ("epochs", "min_count")

    epochs: Count  # passes; a budget may end training earlier
    min_count: Count = 5  # words that occur less often are left out
    unit: Literal["sentence", "document"]  # neighbours are words of one of these

    def recipe_conflicts(self, recipe: RecipeSettings) -> Iterator[Conflict]:
        from stemma.objectives.word_context import WordContextSettings

        tasks = list(recipe.objective.values())
        what = f"training.method.kind = {self.kind} learns word vectors: its only objective is word_context with " \
               f"architecture {' or '.join(self.architectures)}, and network.depth.kind is static"
        if len(tasks) != 1 or not isinstance(tasks[0], WordContextSettings) \
                or tasks[0].architecture not in self.architectures or recipe.network.depth.kind != "static" \
                or recipe.network.embedding.width is not None:
            yield (ConflictKey("training.method.kind", what), ConflictKey("objective", what),
                   ConflictKey("network", what))


class Word2vecSettings(VectorMethodSettings):
    architectures: ClassVar[tuple[str, ...]] = ("cbow", "skip_gram")

    # Occurrences of words more frequent than this fraction of the text are left out at random (arXiv:1310.4546,
    # section 2.3; kept with probability (sqrt(f / t) + 1) t / f, as in the authors' code); 0 = none
    subsample: NonNegative = 1e-3
    workers: Count = 1  # threads; with one a run is reproducible, with more they update the same vectors unlocked


class GloveSettings(VectorMethodSettings):
    architectures: ClassVar[tuple[str, ...]] = ("glove",)

    x_max: Positive = 100.0  # a pair counted this often or more has weight 1,
    alpha: Positive = 0.75  # a rarer one (count / x_max) ^ alpha
    # Diagonals of the matrix that are computed at once. On one no word occurs twice, so the result is that of one pair
    # after the other, as in the authors' code; with more, gradients of a word are summed
    diagonals: Count = 1
    memory: Count = 1024  # megabytes for sorting and merging counts, which are on disk


@register("method", "word2vec", Word2vecSettings)
def word2vec(settings: Word2vecSettings, setup: MethodSetup) -> Method:
    """word2vec and fastText, by gensim."""
    from stemma.training.gensim_vectors import GensimVectors

    return GensimVectors(settings, setup)


@register("method", "glove", GloveSettings)
def glove(settings: GloveSettings, setup: MethodSetup) -> Method:
    """GloVe (Pennington, Socher & Manning 2014)."""
    from stemma.training.glove import Glove

    return Glove(settings, setup)
