"""A cell: one variant with one seed, known by all that goes into its training; whoever asks for the same gets the same.

The number of a cell is taken from the resolved recipe, the text, the budget and the seed. So a recipe or a seed more
reuses what is there, and two variants that come to the same recipe share their cells. Each task that the model is
fine-tuned on has a number of its own below it. How a recipe is fine-tuned goes into that one: it changes nothing about
the pre-training, which variants that differ in nothing else share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stemma import plugins
from stemma.atomic_files import sha256
from stemma.lab.downstream_tasks import plugin_code
from stemma.lab.experiment import ComputeBudget, DownstreamTask, Experiment, Score, Variant
from stemma.lab.text_split import TextSplit
from stemma.schema.base import parts_in_settings
from stemma.schema.overrides import flatten
from stemma.schema.training import TrainingSettings
from stemma.text.train_tokenizer import TRAINER_VERSION
from stemma.training import run_graph
from stemma.training.run_folder import read_result
from stemma.training.run_graph import RunNode

CELLS, RUN, TASKS = "cells", "run", "tasks"
FINETUNING = "finetuning"  # the section of a recipe
FORMAT = 1  # a new number leaves old cells aside
LATER = {"seed": None, "also": None, "changes": ()}  # keys of a task that its number leaves out if so
# What a recipe says of the machine and of looking on, and nothing of the model.
NON_MODEL_KEYS = {f"training.{key}" for key in TrainingSettings.bookkeeping_keys}


@dataclass(frozen=True)
class Cell:
    variant: Variant
    seed: int
    folder: Path

    @property
    def digest(self) -> str:
        return self.folder.name

    @property
    def run(self) -> Path:
        return Path(self.variant.run) if self.variant.run else self.folder / RUN

    @property
    def finetuning(self) -> dict[str, Any]:
        found: dict[str, Any] = self.variant.recipe.values[FINETUNING]
        return found

    @property
    def retry_advice(self) -> str:
        """What to do where something of it is damaged."""
        return f"delete {self.folder}, and `stemma resume {self.folder.parent.parent}` makes this cell again."

    @property
    def node(self) -> RunNode:
        return RunNode(self.folder, self.retry_advice)

    def task(self, task: DownstreamTask) -> RunNode:
        """The fine-tuning of its model on a task."""
        return RunNode(self.folder / TASKS / short_digest(task_digest(task), finetuning_values(self.variant)),
                       self.retry_advice)

    def result(self) -> dict[str, Any] | None:
        """What its pre-training reported; None: not yet."""
        return read_result(self.run, self.retry_advice)

    def scores(self) -> dict[str, Any] | None:
        """What was measured of the model itself; None: not yet."""
        return self.node.result()

    def failure(self) -> str | None:
        """Why its training cannot come to an end, however often it is tried."""
        return self.node.failure_reason()

    def task_scores(self, task: DownstreamTask) -> dict[str, Any] | None:
        return self.task(task).result()

    def is_done(self, experiment: Experiment) -> bool:
        measured = not self.variant.pretrained or self.scores() is not None
        return self.failure() is not None or measured and all(
            self.task_scores(task) is not None for task in experiment.tasks)


def experiment_cells(experiment: Experiment, shared: TextSplit, folder: Path) -> list[Cell]:
    """Seed by seed, so that a lab which is stopped early has compared all variants on the same seeds."""
    numbers = {one.name: [recipe_digest(one), shared.digest, asdict(experiment.allowance)]
               for one in experiment.variants}
    return [Cell(one, seed, folder / CELLS / short_digest(FORMAT, *numbers[one.name], seed,
                                                    *([] if one.pretrained else [one.role])))
            for seed in experiment.seeds for one in experiment.variants]


def distinct_cells(cells: Sequence[Cell], tasks: Sequence[DownstreamTask]) -> list[Cell]:
    """One of those that share all work: the pre-training, and where there are tasks the fine-tuning too."""
    return list({(cell.digest, short_digest(finetuning_values(cell.variant)) if tasks else ""): cell
                 for cell in cells}.values())


def recipe_digest(variant: Variant) -> str:
    """Of what the recipe says about the pre-trained model: not its name, nor who set what."""
    unsaid = NON_MODEL_KEYS | set(variant.recipe.settings.later_defaults())
    said = {key: value for key, value in flatten(variant.recipe.values).items()
            if key not in unsaid and not key.startswith(f"{FINETUNING}.")}
    kind = said["tokenizer.kind"]
    code = plugins.plugins_of(parts_in_settings(variant.recipe.settings))
    return short_digest(said | ({"tokenizer.learnt": TRAINER_VERSION[kind]} if kind in TRAINER_VERSION else {})
                  | ({"plugins": code} if code else {}))


def finetuning_values(variant: Variant) -> dict[str, Any]:
    """What a number says of how a recipe is fine-tuned."""
    unsaid = set(variant.recipe.settings.finetuning.later_defaults())
    return {key: value for key, value in variant.recipe.values[FINETUNING].items() if key not in unsaid}


def task_digest(task: DownstreamTask) -> str:
    files = {"train": task.train, "dev": task.dev} | ({"also": task.also} if task.also else {})
    said = {key: value for key, value in asdict(task).items() if key not in LATER or value != LATER[key]}
    return short_digest(said | {name: sha256(Path(file)) for name, file in files.items()}
                  | ({"plugins": code} if (code := plugin_code(task)) else {}))


def short_digest(*parts: object) -> str:
    """Short: it names folders."""
    return run_graph.digest(*parts)[:16]


def scores_to_json(scores: dict[str, Score]) -> dict[str, Any]:
    return {key: {"value": score.value, "parts": score.parts} for key, score in scores.items()}


def scores_from_json(stored: dict[str, Any]) -> dict[str, Score]:
    return {key: Score(one["value"], tuple((above, below) for above, below in one["parts"]))
            for key, one in stored.items()}


def run_budget(budget: ComputeBudget, flops_per_step: float) -> tuple[str, float]:
    """As a run takes it: FLOPs become steps, counted beforehand."""
    if budget.unit == "flops":
        return "steps", max(1, round(budget.amount / flops_per_step))
    return budget.unit, budget.amount
