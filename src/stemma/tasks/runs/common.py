"""Shared by all fine-tuning runs: resume, recipe overrides and training length.

Fine-tuning uses the pre-training loop. `run.json` names the task, so `stemma resume` also continues with the scoring.
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

PIPELINE = "pipeline.toml"  # the plan of a pipeline folder
ORIGIN = "fine-tuning"  # origin of the recipe values that fine-tuning sets
SECTION = "finetuning"


@accepts_device
@accepts_callbacks
def resume(out: str | Path, *, device: str | None = None, callbacks: Sequence[object] = (),
           show: bool = False) -> dict[str, Any]:
    """Resume any interrupted run: pre-training, fine-tuning with its scores, or a pipeline; on the same device unless
    another one is given."""
    if (Path(out) / PIPELINE).is_file():
        from stemma.tasks.pipeline.pipeline import resume as resume_pipeline

        return resume_pipeline(out, show=show)
    _, run_config = read_run(Path(out))
    if run_config.task is None:
        return pretrain.resume(out, show_progress=show)
    kind = FinetuneSpec.from_run_config(run_config).kind
    if kind != MULTITASK:
        return task_kind(kind).resume(Path(out), run_config, show)
    from stemma.tasks.runs.multitask import run_to_end

    if (result := finished_result(Path(out))) is not None:
        return result
    with lock_run(Path(out)):
        return run_to_end(Path(out), show)


def with_finetuning_choices(recipe: Recipe, changes: Sequence[str]) -> tuple[Recipe, list[str]]:
    """The recipe with the overrides of [finetuning] applied, and the other overrides, which are applied later and take
    precedence. On an error nothing is applied, so that all errors are reported together."""
    section = [change for change in changes if change.partition("=")[2 if change.startswith("remove=") else 0].strip()
               .startswith(f"{SECTION}.")]
    try:
        return recipe.with_overrides(section), [change for change in changes if change not in section]
    except UserError:
        return recipe, list(changes)


def finetune_overrides(settings: RecipeSettings, removed_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Recipe changes for further training: the optimizer, schedule and learning rate of [finetuning]. Removes
    `removed_keys` and the keys that only apply to pre-training."""
    finetuning, training = settings.finetuning, settings.training
    removed = [*removed_keys, *pretraining_only_keys(settings)]
    changes: dict[str, Any] = {"training.optimizer": finetuning.optimizer.model_dump(),
                               "training.schedule": finetuning.schedule.model_dump(),
                               "training.learning_rate": finetuning.learning_rate_for(settings.network.width)}
    if finetuning.clip_norm is not None:
        changes["training.clip_norm"] = finetuning.clip_norm
    elif training.clip_norm is not None:
        removed.append("training.clip_norm")
    return {"remove": removed, **changes}


def layer_decay_overrides(settings: RecipeSettings) -> dict[str, Any]:
    """Layer-wise learning rate decay, as set in [finetuning]."""
    finetuning = settings.finetuning
    values = {"training.layer_decay": finetuning.layer_decay, "training.layer_decay_top": finetuning.layer_decay_top}
    return {key: value for key, value in values.items() if value is not None}


def pretraining_only_keys(settings: RecipeSettings) -> list[str]:
    """Keys that only apply to pre-training, or to an earlier fine-tuning. Loss-spike detection is off, because
    batches of small data sets vary too much."""
    fields = TrainingSettings.model_fields
    task_keys = [f"training.{key}" for key in TrainingSettings.task_keys
                 if getattr(settings.training, key) != fields[key].default]
    values = {"corpus.first_phase": settings.corpus.first_phase, "corpus.mixture": settings.corpus.mixture,
              "training.spike_factor": settings.training.spike_factor}
    return [key for key, value in values.items() if value is not None] + task_keys


def check_start_and_out(start: str | Path, run: Path, overwrite: bool) -> str:
    """Check that the run folder is free; return the start model as it is written to run.json."""
    check_output_path(run, overwrite)
    if not Path(start).exists():
        return str(start)  # may be a hub id; loading it reports errors
    if run.exists() and Path(start).resolve().is_relative_to(run.resolve()):
        raise UserError(f"the model to start from lies in {run}, which --overwrite would replace; choose another "
                        "--out.")
    return str(Path(start).absolute())


@dataclass(frozen=True)
class TrainingLength:
    """Training length in epochs, steps or minutes; default: the epochs of [finetuning]."""

    epochs: float | None = None
    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        limits = [name for name in ("epochs", "steps", "minutes") if getattr(self, name) is not None]
        if len(limits) > 1:
            raise UserError(f"{' and '.join(f'--{name}' for name in limits)} exclude each other; give one of them.")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise UserError(f"--epochs must be a number greater than 0, not {self.epochs:g}.")
        Budget.from_options(self.steps, None, self.minutes, 1)

    def apply_to(self, recipe: Recipe, steps_per_epoch: int, overridden: Collection[str],
                 default_epochs: float | None = None) -> tuple[Recipe, Budget]:
        """The recipe with steps and warm-up set, and the budget. Validates and saves a checkpoint after each epoch.
        Keys in `overridden` keep their values. `default_epochs` replaces the epochs of [finetuning]."""
        finetuning = recipe.settings.finetuning
        epochs = self.epochs or default_epochs or finetuning.epochs
        steps = self.steps or max(1, math.ceil(steps_per_epoch * epochs))
        changes = {"training.steps": steps, "training.warmup_steps": int(finetuning.warmup * steps),
                   "training.validate_every": min(steps_per_epoch, steps),
                   "training.checkpoint_every": min(steps_per_epoch, steps)}
        changes = {key: value for key, value in changes.items() if key not in overridden}
        if recipe.settings.training.unfreeze == "epoch":
            changes["training.unfreeze"] = steps_per_epoch
        recipe = recipe.with_changes(changes, ORIGIN)
        budget_steps = steps if self.epochs is not None else self.steps
        return recipe, Budget.from_options(budget_steps, None, self.minutes, recipe.settings.training.steps)
