"""What every fine-tune shares: the loop of pre-training with a model's weights, gentler, and then scored.

A fine-tune is a run like any other: `run.json` names its task, so that `stemma resume` also takes up the scoring.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.atomic_files import check_output_path
from stemma.device import accepts_device
from stemma.errors import UserError
from stemma.recipe_loading import Recipe
from stemma.schema.recipe import RecipeSettings
from stemma.schema.training import TrainingSettings
from stemma.tasks.kinds import task_kind
from stemma.tasks.runs.finetune_spec import MULTITASK, FinetuneSpec
from stemma.training import pretrain
from stemma.training.budget import Budget
from stemma.training.callbacks import accepts_callbacks
from stemma.training.run_folder import read_run
from stemma.training.run_lock import finished_result, lock_run

PIPELINE = "pipeline.toml"  # the plan of several runs below one folder
ORIGIN = "fine-tuning"  # who set the values that a fine-tune brings
SECTION = "finetuning"


@accepts_device
@accepts_callbacks
def resume(out: str | Path, *, device: str | None = None, callbacks: Sequence[object] = (),
           show: bool = False) -> dict[str, Any]:
    """Go on with any run that was interrupted: a pre-training, a fine-tune up to its scores, or a whole pipeline; on
    the device where it was, unless another one is asked for."""
    if (Path(out) / PIPELINE).is_file():
        from stemma.tasks.pipeline.pipeline import resume as resume_pipeline

        return resume_pipeline(out, show=show)
    _, plan = read_run(Path(out))
    if plan.task is None:
        return pretrain.resume(out, show_progress=show)
    kind = FinetuneSpec.from_run_config(plan).kind
    if kind != MULTITASK:
        return task_kind(kind).resume(Path(out), plan, show)
    from stemma.tasks.runs.multitask import run_to_end

    if (known := finished_result(Path(out))) is not None:
        return known
    with lock_run(Path(out)):
        return run_to_end(Path(out), show)


def with_finetuning_choices(recipe: Recipe, changes: Sequence[str]) -> tuple[Recipe, list[str]]:
    """The recipe with what was typed of its section [finetuning], and the other changes, which come after it is turned
    into [training] and so win. Where something is wrong, all of it is left, to be told with the rest."""
    mine = [change for change in changes if change.partition("=")[2 if change.startswith("remove=") else 0].strip()
            .startswith(f"{SECTION}.")]
    try:
        return recipe.with_overrides(mine), [change for change in changes if change not in mine]
    except UserError:
        return recipe, list(changes)


def finetune_overrides(settings: RecipeSettings, removed_keys: Sequence[str] = ()) -> dict[str, Any]:
    """How a network is trained further, as changes of its recipe: with the optimizer and at the rate of [finetuning].
    What the recipe says for its pre-training alone is removed, and what else is `gone`."""
    chosen, training = settings.finetuning, settings.training
    removed = [*removed_keys, *pretraining_only_keys(settings)]
    changes: dict[str, Any] = {"training.optimizer": chosen.optimizer.model_dump(),
                               "training.schedule": chosen.schedule.model_dump(),
                               "training.learning_rate": chosen.learning_rate_for(settings.network.width)}
    if chosen.clip_norm is not None:
        changes["training.clip_norm"] = chosen.clip_norm
    elif training.clip_norm is not None:
        removed.append("training.clip_norm")
    return {"remove": removed, **changes}


def layer_decay_overrides(settings: RecipeSettings) -> dict[str, Any]:
    """How much less low layers learn than high ones, as [finetuning] has it."""
    chosen = settings.finetuning
    stated = {"training.layer_decay": chosen.layer_decay, "training.layer_decay_top": chosen.layer_decay_top}
    return {key: value for key, value in stated.items() if value is not None}


def pretraining_only_keys(settings: RecipeSettings) -> list[str]:
    """What a recipe says for its pre-training alone, or said for another fine-tune. (Of few examples some are always
    far harder than the mean, so a loss that jumps means nothing here.)"""
    usual = TrainingSettings.model_fields
    chosen = [f"training.{key}" for key in TrainingSettings.task_keys
              if getattr(settings.training, key) != usual[key].default]
    stated = {"corpus.first_phase": settings.corpus.first_phase, "corpus.mixture": settings.corpus.mixture,
              "training.spike_factor": settings.training.spike_factor}
    return [key for key, value in stated.items() if value is not None] + chosen


def check_start_and_out(start: str | Path, run: Path, overwrite: bool) -> str:
    """Where to start from, as a run notes it; the place of the run must be free."""
    check_output_path(run, overwrite)
    if not Path(start).exists():
        return str(start)  # perhaps a hub id; whoever loads it will say
    if run.exists() and Path(start).resolve().is_relative_to(run.resolve()):
        raise UserError(f"the model to start from lies in {run}, which --overwrite would replace; choose another "
                        "--out.")
    return str(Path(start).absolute())


@dataclass(frozen=True)
class TrainingLength:
    """How long to train, in one of three ways; in none of them: the epochs of the recipe's [finetuning]."""

    epochs: float | None = None
    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("epochs", "steps", "minutes") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"{' and '.join(f'--{name}' for name in given)} exclude each other; give one of them.")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise UserError(f"--epochs must be a number greater than 0, not {self.epochs:g}.")
        Budget.from_options(self.steps, None, self.minutes, 1)

    def apply_to(self, recipe: Recipe, steps_per_epoch: int, overridden: Collection[str]) -> tuple[Recipe, Budget]:
        """The recipe with its pace, by the steps of an epoch, and the budget: a warm-up over a share of it, a look at
        the dev set and a checkpoint after each epoch. What was `typed` stays as it is."""
        chosen = recipe.settings.finetuning
        steps = self.steps or max(1, math.ceil(steps_per_epoch * (self.epochs or chosen.epochs)))
        pace = {"training.steps": steps, "training.warmup_steps": int(chosen.warmup * steps),
                "training.validate_every": min(steps_per_epoch, steps),
                "training.checkpoint_every": min(steps_per_epoch, steps)}
        pace = {key: value for key, value in pace.items() if key not in overridden}
        if recipe.settings.training.unfreeze == "epoch":
            pace["training.unfreeze"] = steps_per_epoch
        recipe = recipe.with_changes(pace, ORIGIN)
        stated = steps if self.epochs is not None else self.steps
        return recipe, Budget.from_options(stated, None, self.minutes, recipe.settings.training.steps)
