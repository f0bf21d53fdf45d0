"""The built-in training methods. Their modules are imported when a run begins: recipes are checked without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from stemma.registry import register
from stemma.schema.base import Conflict, ConflictKey, Count
from stemma.schema.training import MethodSettings

if TYPE_CHECKING:
    from stemma.schema.objective import ObjectiveSettings
    from stemma.schema.recipe import RecipeSettings
    from stemma.training.method import Method, MethodSetup


@register("method", "gradient_descent", MethodSettings)
def gradient_descent(settings: MethodSettings, setup: MethodSetup) -> Method:
    from stemma.training.gradient_descent import GradientDescent

    return GradientDescent(setup)


# Keys that describe gradient descent.
NO_GRADIENTS = ("training.learning_rate", "training.warmup*", "training.optimizer.*", "training.schedule.*",
                "training.clip_norm", "training.z_loss", "training.ema", "training.average_after",
                "training.batch_schedule.*",
                "training.micro_batch_size", "training.spike_factor", "training.layer_decay*",
                "training.frozen", "training.unfreeze", "training.fresh", "training.precision")


class CountingSettings(MethodSettings):
    """Counting, once through the text."""

    unused_keys: ClassVar[tuple[str, ...]] = NO_GRADIENTS

    has_revisions: ClassVar[bool] = False  # counts become a model at the end
    body: ClassVar[str]  # the only kind of body that has tables for these counts,
    start: ClassVar[str]  # and a recipe that has it
    counted: ClassVar[str]
    objective: ClassVar[str]  # the only objective that the counts serve, as a sentence

    memory: Count = 1024  # megabytes for sorting and merging counts, which are on disk; the finished tables come on top

    def recipe_conflicts(self, recipe: RecipeSettings) -> Iterator[Conflict]:
        kind = recipe.network.depth.kind
        if kind != self.body:
            yield (ConflictKey("training.method.kind",
                               f"counts {self.counted}, and this network has no tables for them; set "
                               f"network.depth.kind={self.body}, or start from the recipe {self.start}"),
                   ConflictKey("network.depth.kind",
                               f"training.method.kind = {self.kind} counts {self.counted}: only {self.body} has tables "
                               "for them"))
        elif len(recipe.objective) != 1 or not self.serves(next(iter(recipe.objective.values()))):
            what = f"training.method.kind = {self.kind} {self.objective}"
            keys = [f"objective.{name}" for name, task in recipe.objective.items()
                    if len(recipe.objective) > 1 or not self.serves(task)] or ["objective"]
            yield (*(ConflictKey(key, what) for key in keys), ConflictKey("training.method.kind", what))

    def serves(self, objective: ObjectiveSettings) -> bool:
        """Whether these counts are a model for this objective."""
        raise NotImplementedError


class KneserNeySettings(CountingSettings):
    body: ClassVar[str] = "ngram"
    start: ClassVar[str] = "ngram"
    counted: ClassVar[str] = "n-grams"
    objective: ClassVar[str] = "counts which token comes next in running text; its only objective is " \
                               "objective.causal_lm, forward, with every token scored"

    def serves(self, objective: ObjectiveSettings) -> bool:
        return objective.kind == "causal_lm" and getattr(objective, "direction", "forward") == "forward" \
            and getattr(objective, "scored", "all") == "all"


class NeighborCountsSettings(CountingSettings):
    body: ClassVar[str] = "neighbors"
    start: ClassVar[str] = "two-sided-ngram"
    counted: ClassVar[str] = "tokens between their neighbours"
    objective: ClassVar[str] = "predicts a masked token from both sides; its only objective is objective.masked_lm, " \
                               "with attention_mask=full and not shifted"

    def serves(self, objective: ObjectiveSettings) -> bool:
        return objective.kind == "masked_lm" and not objective.target_shift and objective.attention_mask_kind == "full"


@register("method", "kneser_ney", KneserNeySettings)
def kneser_ney(settings: CountingSettings, setup: MethodSetup) -> Method:
    """The next token, with modified Kneser-Ney smoothing (Chen & Goodman 1998)."""
    from stemma.training.count_ngrams import CountNgrams

    return CountNgrams(settings, setup)


@register("method", "neighbor_counts", NeighborCountsSettings)
def neighbor_counts(settings: CountingSettings, setup: MethodSetup) -> Method:
    """A token between its neighbours."""
    from stemma.training.count_neighbors import CountNeighbors

    return CountNeighbors(settings, setup)
