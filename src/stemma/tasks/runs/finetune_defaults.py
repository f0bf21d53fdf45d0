"""The default learning rate, number of epochs and warm-up of fine-tuning.

A published checkpoint takes the values of its paper, the section [finetuning] of the recipe. A network that was
pre-trained for minutes takes other values: it is as far from a good solution for the task as from its start, so it
needs larger steps, and a minimum number of them if there are few examples (compare arXiv:2006.04884 and
arXiv:2006.05987, where more steps help even BERT). `benchmarks/finetune_defaults.py` measures the constants.

What the user states is never changed: values from the command line or from a recipe of the user's own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stemma.errors import pluralize
from stemma.model import Model
from stemma.pretraining_record import PretrainingRecord
from stemma.recipe_loading import COMMAND_LINE, Recipe, recipe_names
from stemma.recipe_loading import recipe as resolve_recipe
from stemma.schema.finetuning import FinetuningSettings
from stemma.schema.overrides import flatten
from stemma.tasks.runs.common import ORIGIN, SECTION, TrainingLength
from stemma.training.budget import Budget
from stemma.training.stall_note import LAPTOP_SIZES

# Fewer tokens per parameter make the pre-training brief: compute-optimal training has 20 (arXiv:2203.15556).
FEW_TOKENS_PER_PARAMETER = 20
LITTLE_LEARNT = 0.5  # nats below the unigram loss; below this, little beyond word frequencies was learnt
BRIEF_FACTOR = 4.0  # learning rate after a brief pre-training, relative to the paper's at the same width
MIN_STEPS = 200  # after a brief pre-training,
MAX_EPOCHS = 20  # but at most this many epochs, unless the paper has more

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartModel:
    """What the defaults depend on, of the model to start from."""

    title: str
    width: int
    parameters: int
    laptop_size: bool = False  # of a size that only Stemma trains
    record: PretrainingRecord | None = None
    is_new: bool = False  # random weights over word vectors

    @classmethod
    def of(cls, model: Model, is_new: bool = False) -> StartModel:
        recipe = model.recipe
        return cls(recipe.title, recipe.settings.network.width, model.parameter_count(), recipe.size in LAPTOP_SIZES,
                   model.pretraining, is_new)

    @property
    def is_briefly_pretrained(self) -> bool:
        """Whether it has seen few tokens, or learnt little from them. Without a record, it is if it has a laptop size:
        other checkpoints are published ones."""
        if self.record is None:
            return self.laptop_size or self.is_new
        nats = self.record.nats_below_unigram
        return self.record.tokens < FEW_TOKENS_PER_PARAMETER * self.parameters \
            or nats is not None and nats < LITTLE_LEARNT

    def describe(self) -> str:
        """width 128, pre-trained on 900 K tokens (1.43 nats below unigram)"""
        if self.is_new:
            return f"width {self.width:,}, new over word vectors"
        if self.record is None:
            return f"width {self.width:,}, pre-training not recorded" if self.laptop_size \
                else f"as published for {self.title}, at width {self.width:,}"
        nats = self.record.nats_below_unigram
        below = "" if nats is None else f" ({abs(nats):.2f} nats {'below' if nats >= 0 else 'above'} unigram)"
        return f"width {self.width:,}, pre-trained on {_short(self.record.tokens)} tokens{below}"


def default_learning_rate(settings: FinetuningSettings, start: StartModel, stated: Collection[str] = ()) -> float:
    """Learning rate of [finetuning] at the width of the model; larger after a brief pre-training."""
    rate = settings.learning_rate_for(start.width)
    fixed = {"learning_rate", "width"} & set(stated) or settings.optimizer.has_relative_steps
    return rate if fixed or not start.is_briefly_pretrained else float(f"{BRIEF_FACTOR * rate:.3g}")


def default_epochs(settings: FinetuningSettings, start: StartModel, steps_per_epoch: int,
                   stated: Collection[str] = ()) -> float:
    """Epochs of [finetuning]; after a brief pre-training as many more as `MIN_STEPS` steps need."""
    if "epochs" in stated or not start.is_briefly_pretrained:
        return settings.epochs
    return epochs_for_min_steps(settings.epochs, steps_per_epoch)


def epochs_for_min_steps(epochs: float, steps_per_epoch: int) -> float:
    """This many epochs, or more if `MIN_STEPS` steps need more."""
    return max(epochs, min(math.ceil(MIN_STEPS / steps_per_epoch), MAX_EPOCHS))


def uses_layer_decay(start: StartModel, stated: Collection[str] = ()) -> bool:
    """Whether the layer-wise decay of [finetuning] applies. It would keep the lower layers of a briefly pre-trained
    network near their random start."""
    return "layer_decay" in stated or not start.is_briefly_pretrained


def published_dropouts(recipe: Recipe) -> dict[str, float]:
    """The dropouts of the paper, for a network of a laptop size. These sizes have none in pre-training, where little
    text is read often; fine-tuning reads few examples several times. Dropouts that the user stated stay."""
    name = recipe.name if recipe.name in recipe_names() else recipe.parent
    if recipe.size not in LAPTOP_SIZES or name not in recipe_names():
        return {}
    values = flatten(resolve_recipe(str(name)).values)
    return {key: values[key] for key, origin in recipe.origin.items()
            if key.startswith("network.") and key.endswith("dropout") and values.get(key)
            and origin.partition("@")[2] in LAPTOP_SIZES}


def stated_keys(recipe: Recipe) -> set[str]:
    """The keys of [finetuning] whose value comes from the command line or from a recipe of the user's own."""
    published = set(recipe_names())
    origins = {key.removeprefix(f"{SECTION}."): origin for key, origin in recipe.origin.items()
               if key.startswith(f"{SECTION}.")}
    return {key for key, origin in origins.items()
            if origin == COMMAND_LINE or origin == recipe.name and recipe.name not in published}


def apply_defaults(recipe: Recipe, start: StartModel, length: TrainingLength, steps_per_epoch: int,
                   overridden: Collection[str], examples: int, rate_follows: bool = False,
                   new_layers: bool = False) -> tuple[Recipe, Budget, dict[str, Any] | None]:
    """The recipe with its learning rate, length and warm-up, its budget, and the values that nobody stated, with the
    reason for them. `overridden` are stated keys; `rate_follows`: the learning rate is found
    or chosen later; `new_layers`: what is trained starts at random, and the recipe has its rate."""
    settings, stated, values = recipe.settings.finetuning, stated_keys(recipe), dict[str, Any]()
    if "training.learning_rate" not in overridden:
        rate = recipe.settings.training.learning_rate if new_layers else default_learning_rate(settings, start, stated)
        recipe = recipe.with_changes({"training.learning_rate": rate}, ORIGIN)
        values = {} if rate_follows else {"learning_rate": rate}
    epochs = default_epochs(settings, start, steps_per_epoch, stated)
    recipe, budget = length.apply_to(recipe, steps_per_epoch, overridden, epochs)
    if length == TrainingLength() and "training.steps" not in overridden:
        values["epochs"] = epochs
    if "training.warmup_steps" not in overridden:
        values["warmup"] = settings.warmup
    values = {key: value for key, value in values.items() if key not in stated}
    if not values:
        return recipe, budget, None
    return recipe, budget, {**values, "reason": f"{start.describe()}, {pluralize(examples, 'example')}"}


def log_defaults(defaults: Mapping[str, Any] | None) -> None:
    """Say what was chosen and why; once all problems are reported."""
    if defaults is not None:
        logger.info(f"{describe_values(defaults)}: {defaults['reason']}")


def record_json(model: Model) -> dict[str, Any] | None:
    """The pre-training record as a run stores it."""
    return None if model.pretraining is None else model.pretraining.to_json()


def describe_values(values: Mapping[str, Any]) -> str:
    """learning rate 3e-4, 8 epochs, warm-up 10%"""
    parts = []
    if "learning_rate" in values:
        parts.append(f"learning rate {scientific(values['learning_rate'])}")
    if "epochs" in values:
        parts.append(f"{values['epochs']:g} epoch{'' if values['epochs'] == 1 else 's'}")
    if "warmup" in values:
        parts.append(f"warm-up {100 * values['warmup']:g}%")
    return ", ".join(parts)


def scientific(rate: float) -> str:
    """3e-4, 0.02"""
    if rate >= 0.01:
        return f"{rate:.3g}"
    mantissa, exponent = f"{rate:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _short(count: int) -> str:
    """900 K, 2.1 B, 12 K"""
    for size, unit in ((10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1000:.3g} K"
