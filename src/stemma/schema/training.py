"""How the weights are found.

`learning_rate` is the highest rate of every schedule; a schedule says how it gets there and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import field_validator

from stemma.schema.base import Count, KindField, Natural, Positive, Settings, constraint, integer_or


class OptimizerSettings(Settings):
    """What optimizers of every kind say of themselves (`training/optimizers.py`)."""

    kind: str

    groups_hidden_matrices: ClassVar[bool] = False  # the matrices of the layers are a group of their own, each with
    #                                                 `parts`
    vector_options: ClassVar[Mapping[str, Any]] = {}  # of the group of biases and norms, besides no weight decay
    size_keys: ClassVar[tuple[str, ...]] = ("weight_decay",)  # a size may set these

    @property
    def other_learning_rate(self) -> float | None:
        """The highest of all but the hidden matrices, where it is another one."""
        return None


class ScheduleSettings(Settings):
    """What schedules of every kind say of themselves (`training/schedules.py`)."""

    kind: str


class MethodSettings(Settings):
    """What training methods of every kind say of themselves (`training/method.py`)."""

    kind: str


class CallbackSettings(Settings):
    """What callbacks of every kind say of themselves (`training/callbacks.py`)."""

    kind: str


GRADIENT_DESCENT = "gradient_descent"
AnyOptimizer = Annotated[OptimizerSettings, KindField("optimizer")]
AnySchedule = Annotated[ScheduleSettings, KindField("schedule")]
AnyMethod = Annotated[MethodSettings, KindField("method")]
AnyCallback = Annotated[CallbackSettings, KindField("callback")]
Decay = Annotated[float, constraint(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]


class TrainingSettings(Settings):
    size_keys = ("batch_size", "warmup_steps", "learning_rate", "steps", "checkpoint_every", "validate_every")
    # chosen for one task, and not inherited by the next
    task_keys: ClassVar[tuple[str, ...]] = ("layer_decay", "layer_decay_top", "frozen", "unfreeze", "fresh",
                                            "keep_best", "patience", "callbacks", "method")
    # how a run is watched and kept, which changes nothing about what it computes
    bookkeeping_keys: ClassVar[tuple[str, ...]] = ("threads", "log_every", "validate_every", "checkpoint_every",
                                                   "keep_checkpoints", "steps")
    laptop_keys = ("optimizer", "schedule")

    batch_size: Count  # sequences a step
    micro_batch_size: Count | None = None  # sequences at once; None = chosen by size
    learning_rate: Positive
    warmup_steps: Natural
    steps: Count  # the budget where none is given
    optimizer: AnyOptimizer
    schedule: AnySchedule
    clip_norm: Positive | None = None
    checkpoint_every: Count
    keep_checkpoints: Count = 2
    validate_every: Count
    log_every: Count = 10
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: Count | None = None  # None = all cores
    spike_factor: Positive | None = None  # stop at a loss this many times its running mean; None = at NaN only
    # where training goes on from a model, layers may learn differently; the embedding counts as the lowest of them
    layer_decay: Decay | None = None  # each layer's rate is this share of the one's above it; heads have the full rate
    layer_decay_top: Count | None = None  # the highest layer's is decayed this many times (ELECTRA: 2); None = once
    frozen: Annotated[int | Literal["all"], integer_or("all", 0)] = 0  # so many lowest layers stand still
    unfreeze: Annotated[int | Literal["epoch"], integer_or("epoch", 1)] | None = None  # heads learn first, and after
    #                                                                     every so many steps one layer more, from above
    fresh: Natural = 0  # so many of the highest layers are drawn anew
    # which look at held-out data, one every `validate_every` steps, decides
    keep_best: bool = False  # the weights of the best one are the run's, not the last
    patience: Count | None = None  # the same, and training ends after so many without a better one
    # what hears of the run's steps, under names of one's own; None: nothing but what a call is given
    callbacks: dict[str, AnyCallback] | None = None
    # how a network learns from batches; None: by gradient descent, which is said by leaving it out
    method: AnyMethod | None = None

    @field_validator("method")
    @classmethod
    def _omit_default_method(cls, value: MethodSettings | None) -> MethodSettings | None:
        """The usual one is not written down: recipes from before there were others stay what they are."""
        return None if value is not None and value.kind == GRADIENT_DESCENT else value

    @property
    def method_settings(self) -> MethodSettings:
        return self.method or MethodSettings(kind=GRADIENT_DESCENT)
