"""How the weights are found.

`learning_rate` is the highest rate of every schedule; a schedule says how it gets there and back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from stemma.schema.base import (
    BY_KIND,
    BelowOne,
    Count,
    Natural,
    NonNegative,
    Positive,
    Settings,
    Share,
    limit,
    number_or,
)


class AdamW(Settings):
    """Adam with decay outside the moments (arXiv:1711.05101)."""

    kind: Literal["adamw"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01


class Adam(Settings):
    kind: Literal["adam"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8


class Lamb(Settings):
    """Each layer moves in proportion to the size of its weights, for very large batches (arXiv:1904.00962)."""

    kind: Literal["lamb"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.01


class Adamax(Settings):
    """Adam with the largest recent gradient in place of the second moment (arXiv:1412.6980, section 7)."""

    kind: Literal["adamax"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0


class Adafactor(Settings):
    """Second moments as a row and a column (arXiv:1804.04235)."""

    kind: Literal["adafactor"]
    beta2_decay: Positive = 0.8
    epsilon: Positive = 1e-30  # added to squared gradients
    least_scale: Positive = 1e-3  # the smallest size a tensor is taken to have
    clip: Positive = 1.0
    weight_decay: NonNegative = 0.0
    relative: bool = True  # the rate is a share of each tensor's own size


class StableAdamW(Settings):
    """AdamW whose update is clipped tensor by tensor, in place of the gradient (arXiv:2304.13013; ModernBERT)."""

    kind: Literal["stable_adamw"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.98
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.01


class Muon(Settings):
    """Orthogonalised updates for the hidden matrices, by training.learning_rate; AdamW for everything else."""

    kind: Literal["muon"]
    momentum: BelowOne = 0.95
    nesterov: bool = True
    iterations: Annotated[int, limit(lambda n: 1 <= n <= 99, "must lie between 1 and 99")] = 5  # of Newton-Schulz
    scale: Literal["original", "match_rms_adamw"] = "original"  # sqrt(max(1, rows / columns)), with rates about 0.02;
    #                                                  or 0.2 sqrt(max(rows, columns)), with those of AdamW
    adamw_learning_rate: Positive = 3e-4  # the highest; the schedule is that of training.learning_rate
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01  # of all matrices


OptimizerSettings = Annotated[AdamW | Adam | Lamb | Adamax | Adafactor | StableAdamW | Muon, BY_KIND]


class LinearSchedule(Settings):
    """Up in a straight line over the warm-up, down in a straight line to nothing at the last step (BERT)."""

    kind: Literal["linear"]


class NoamSchedule(Settings):
    """Up in a straight line over the warm-up, then down as 1 / sqrt(step) (arXiv:1706.03762, section 5.3)."""

    kind: Literal["noam"]


class CosineSchedule(Settings):
    """Up in a straight line over the warm-up, then down half a cosine to `floor` times the highest rate (GPT)."""

    kind: Literal["cosine"]
    floor: NonNegative = 0.0


class InverseSqrtSchedule(Settings):
    """At the highest rate over the warm-up, then down as 1 / sqrt(step) (T5)."""

    kind: Literal["inverse_sqrt"]


class ConstantSchedule(Settings):
    """Up in a straight line over the warm-up, then level."""

    kind: Literal["constant"]


class SlantedTriangularSchedule(Settings):
    """A short steep rise over the share `cut` of all steps, a long fall to 1 / `ratio` (arXiv:1801.06146)."""

    kind: Literal["slanted_triangular"]
    cut: Share = 0.1
    ratio: Positive = 32.0


Decay = Annotated[float, limit(lambda x: 0 < x <= 1, "must be greater than 0 and at most 1")]


class WarmupStableDecaySchedule(Settings):
    """Up over the warm-up, level, and down to `floor` times the highest rate over the last share `decay` of the budget
    (arXiv:2404.06395); with 1 - sqrt of the way in place of a straight line as in arXiv:2405.18392 and ModernBERT."""

    kind: Literal["warmup_stable_decay"]
    decay: Decay = 0.2
    shape: Literal["linear", "one_minus_sqrt"] = "linear"
    floor: BelowOne = 0.0


ScheduleSettings = Annotated[
    LinearSchedule | NoamSchedule | CosineSchedule | InverseSqrtSchedule | ConstantSchedule | SlantedTriangularSchedule
    | WarmupStableDecaySchedule,
    BY_KIND,
]


class TrainingSettings(Settings):
    batch_size: Count  # sequences a step
    micro_batch_size: Count | None = None  # sequences at once; None = chosen by size
    learning_rate: Positive
    warmup_steps: Natural
    steps: Count  # the budget where none is given
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
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
    frozen: Annotated[int | Literal["all"], number_or("all", 0)] = 0  # so many lowest layers stand still
    unfreeze: Annotated[int | Literal["epoch"], number_or("epoch", 1)] | None = None  # heads learn first, and after
    #                                                                     every so many steps one layer more, from above
    fresh: Natural = 0  # so many of the highest layers are drawn anew
    # which look at held-out data, one every `validate_every` steps, decides
    keep_best: bool = False  # the weights of the best one are the run's, not the last
    patience: Count | None = None  # the same, and training ends after so many without a better one
