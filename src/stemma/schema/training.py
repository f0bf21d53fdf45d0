"""Optimizer, schedule and trainer settings.

`learning_rate` is the peak learning rate of every schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import field_validator

from stemma.schema.base import (
    Conflict,
    Count,
    KindField,
    Natural,
    OpenFraction,
    Positive,
    Settings,
    constraint,
    integer_or,
)

if TYPE_CHECKING:
    from stemma.schema.recipe import RecipeSettings


class OptimizerSettings(Settings):
    """Base settings of optimizers (`training/optimizers.py`)."""

    kind: str

    groups_hidden_matrices: ClassVar[bool] = False  # the layers' matrices are a separate parameter group (Muon)
    vector_options: ClassVar[Mapping[str, Any]] = {}  # options of the group of biases and norms, besides no decay
    size_keys: ClassVar[tuple[str, ...]] = ("weight_decay",)

    @property
    def other_learning_rate(self) -> float | None:
        """Peak learning rate of all parameters but the hidden matrices, if it differs."""
        return None

    @property
    def has_relative_steps(self) -> bool:
        """Whether the learning rate is relative to the size of each tensor."""
        return False

    @property
    def lookup_learning_rate(self) -> float | None:
        """Peak learning rate of embeddings that are no LM head, if it differs."""
        return None


class ScheduleSettings(Settings):
    """Base settings of learning-rate schedules (`training/schedules.py`)."""

    kind: str


class MethodSettings(Settings):
    """Base settings of training methods (`training/method.py`)."""

    has_revisions: ClassVar[bool] = True  # whether there is a model to save at numbers of words read

    kind: str

    unused_keys: ClassVar[tuple[str, ...]] = ()  # patterns of keys of the recipe that have no effect with it

    def recipe_conflicts(self, recipe: RecipeSettings) -> Iterator[Conflict]:
        """Conflicts with the rest of the recipe; keys are absolute."""
        yield from ()


class CallbackSettings(Settings):
    """Base settings of callbacks (`training/callbacks.py`)."""

    kind: str


GRADIENT_DESCENT = "gradient_descent"
AnyOptimizer = Annotated[OptimizerSettings, KindField("optimizer")]
AnySchedule = Annotated[ScheduleSettings, KindField("schedule")]
AnyMethod = Annotated[MethodSettings, KindField("method")]
AnyCallback = Annotated[CallbackSettings, KindField("callback")]
Decay = Annotated[float, constraint(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]


class BatchScheduleSettings(Settings):
    """The batch grows linearly from a fraction of `batch_size` to all of it: noisy gradients suffice at first
    (arXiv:1711.00489; GPT-BERT starts at a quarter)."""

    start: OpenFraction  # fraction of batch_size at the first step
    growth: Decay = 1.0  # fraction of the budget after which the batch has its full size

    def fraction_at(self, progress: float) -> float:
        """Fraction of the batch size after this fraction of the budget."""
        return min(1.0, self.start + (1 - self.start) * progress / self.growth)

    def steps_factor(self, start: float = 0.0, end: float = 1.0) -> float:
        """How many times as many steps the same tokens take between two fractions of the budget: the mean of
        1 / fraction_at."""
        growth = self.growth / (1 - self.start)  # the integral of 1 / fraction_at is growth * log(fraction_at)
        integrals = [growth * math.log(self.fraction_at(progress) / self.start) + max(0.0, progress - self.growth)
                     for progress in (start, end)]
        return (integrals[1] - integrals[0]) / (end - start)


class TrainingSettings(Settings):
    size_keys = ("batch_size", "warmup_steps", "learning_rate", "steps", "clip_norm", "checkpoint_every",
                 "validate_every")
    # Set for one task; the next task does not inherit them.
    task_keys: ClassVar[tuple[str, ...]] = ("layer_decay", "layer_decay_top", "frozen", "unfreeze", "fresh",
                                            "keep_best", "patience", "callbacks", "method", "ema", "average_after",
                                            "z_loss", "batch_schedule")
    # Logging, validation and checkpointing: no effect on the computed weights.
    bookkeeping_keys: ClassVar[tuple[str, ...]] = ("threads", "log_every", "validate_every", "checkpoint_every",
                                                   "keep_checkpoints", "steps")
    laptop_keys = ("optimizer", "schedule")

    batch_size: Count  # sequences per step
    micro_batch_size: Count | None = None  # sequences per forward pass; None = automatic
    learning_rate: Positive
    warmup_steps: Natural
    steps: Count  # default budget
    optimizer: AnyOptimizer
    schedule: AnySchedule
    clip_norm: Positive | None = None
    z_loss: Positive | None = None  # coefficient of (log Z)^2 of the softmax over the vocabulary (PaLM); None = none
    # Decay of an exponential moving average of the weights, which validation and `model/` use; None = the live weights.
    ema: OpenFraction | None = None
    # The mean of the weights of all steps since validation was no better than this many validations before (NT-ASGD,
    # arXiv:1708.02182); used as the weights of `ema` are. None = the live weights.
    average_after: Count | None = None
    batch_schedule: BatchScheduleSettings | None = None  # the batch grows during training; None = always batch_size
    checkpoint_every: Count
    keep_checkpoints: Count = 2
    validate_every: Count
    log_every: Count = 10
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: Count | None = None  # None = all cores
    spike_factor: Positive | None = None  # stop if the loss exceeds this multiple of its running mean; None = at NaN
    # Layer-wise training when starting from a model; the embedding counts as the lowest layer.
    layer_decay: Decay | None = None  # learning rate of a layer, relative to the layer above it (heads: 1)
    layer_decay_top: Count | None = None  # how often the decay applies to the top layer (ELECTRA: 2); None = once
    frozen: Annotated[int | Literal["all"], integer_or("all", 0)] = 0  # number of frozen layers, from the bottom
    # Gradual unfreezing: only heads at first, then one more layer, from the top, every this many steps.
    unfreeze: Annotated[int | Literal["epoch"], integer_or("epoch", 1)] | None = None
    fresh: Natural = 0  # number of re-initialized layers, from the top
    # Selection by the validation score, every `validate_every` steps.
    keep_best: bool = False  # the run ends with the best weights, not the last
    patience: Count | None = None  # the same, and stop early after this many validations without improvement
    callbacks: dict[str, AnyCallback] | None = None  # by name
    method: AnyMethod | None = None  # training method; None: gradient descent

    @field_validator("method")
    @classmethod
    def _omit_default_method(cls, value: MethodSettings | None) -> MethodSettings | None:
        """Omit the default method, so that recipes older than this key stay unchanged."""
        return None if value is not None and value.kind == GRADIENT_DESCENT else value

    @property
    def method_settings(self) -> MethodSettings:
        return self.method or MethodSettings(kind=GRADIENT_DESCENT)
