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
from stemma.files import sha256
from stemma.lab.experiment import Allowance, Experiment, LabTask, Score, Variant
from stemma.lab.lab_tasks import task_code
from stemma.lab.shared_text import SharedText
from stemma.schema.base import parts_of
from stemma.schema.layers import flatten
from stemma.schema.training import TrainingSettings
from stemma.text.train import LEARNT
from stemma.training import graph
from stemma.training.graph import Node
from stemma.training.run import read_result

CELLS, RUN, TASKS = "cells", "run", "tasks"
FINETUNING = "finetuning"  # the section of a recipe
FORMAT = 1  # a new number leaves old cells aside
LATER = {"seed": None, "also": None, "changes": ()}  # keys of a task that its number leaves out if so
# What a recipe says of the machine and of looking on, and nothing of the model.
ASIDE = {f"training.{key}" for key in TrainingSettings.bookkeeping_keys}


@dataclass(frozen=True)
class Cell:
    variant: Variant
    seed: int
    folder: Path

    @property
    def number(self) -> str:
        return self.folder.name

    @property
    def run(self) -> Path:
        return Path(self.variant.run) if self.variant.run else self.folder / RUN

    @property
    def finetuning(self) -> dict[str, Any]:
        found: dict[str, Any] = self.variant.recipe.values[FINETUNING]
        return found

    @property
    def again(self) -> str:
        """What to do where something of it is damaged."""
        return f"delete {self.folder}, and `stemma resume {self.folder.parent.parent}` makes this cell again."

    @property
    def node(self) -> Node:
        return Node(self.folder, self.again)

    def task(self, task: LabTask) -> Node:
        """The fine-tuning of its model on a task."""
        return Node(self.folder / TASKS / digest(task_number(task), finetuning_of(self.variant)), self.again)

    def result(self) -> dict[str, Any] | None:
        """What its pre-training reported; None: not yet."""
        return read_result(self.run, self.again)

    def scores(self) -> dict[str, Any] | None:
        """What was measured of the model itself; None: not yet."""
        return self.node.found()

    def failure(self) -> str | None:
        """Why its training cannot come to an end, however often it is tried."""
        return self.node.failure()

    def task_scores(self, task: LabTask) -> dict[str, Any] | None:
        return self.task(task).found()

    def is_done(self, experiment: Experiment) -> bool:
        measured = not self.variant.pretrained or self.scores() is not None
        return self.failure() is not None or measured and all(
            self.task_scores(task) is not None for task in experiment.tasks)


def cells_of(experiment: Experiment, shared: SharedText, folder: Path) -> list[Cell]:
    """Seed by seed, so that a lab which is stopped early has compared all variants on the same seeds."""
    numbers = {one.name: [recipe_number(one), shared.digest, asdict(experiment.allowance)]
               for one in experiment.variants}
    return [Cell(one, seed, folder / CELLS / digest(FORMAT, *numbers[one.name], seed,
                                                    *([] if one.pretrained else [one.role])))
            for seed in experiment.seeds for one in experiment.variants]


def distinct(cells: Sequence[Cell], tasks: Sequence[LabTask]) -> list[Cell]:
    """One of those that share all work: the pre-training, and where there are tasks the fine-tuning too."""
    return list({(cell.number, digest(finetuning_of(cell.variant)) if tasks else ""): cell for cell in cells}.values())


def recipe_number(variant: Variant) -> str:
    """Of what the recipe says about the pre-trained model: not its name, nor who set what."""
    unsaid = ASIDE | set(variant.recipe.settings.later_defaults())
    said = {key: value for key, value in flatten(variant.recipe.values).items()
            if key not in unsaid and not key.startswith(f"{FINETUNING}.")}
    kind = said["tokenizer.kind"]
    code = plugins.used_by(parts_of(variant.recipe.settings))
    return digest(said | ({"tokenizer.learnt": LEARNT[kind]} if kind in LEARNT else {})
                  | ({"plugins": code} if code else {}))


def finetuning_of(variant: Variant) -> dict[str, Any]:
    """What a number says of how a recipe is fine-tuned."""
    unsaid = set(variant.recipe.settings.finetuning.later_defaults())
    return {key: value for key, value in variant.recipe.values[FINETUNING].items() if key not in unsaid}


def task_number(task: LabTask) -> str:
    files = {"train": task.train, "dev": task.dev} | ({"also": task.also} if task.also else {})
    said = {key: value for key, value in asdict(task).items() if key not in LATER or value != LATER[key]}
    return digest(said | {name: sha256(Path(file)) for name, file in files.items()}
                  | ({"plugins": code} if (code := task_code(task)) else {}))


def digest(*parts: object) -> str:
    """Short: it names folders."""
    return graph.digest(*parts)[:16]


def stored_scores(scores: dict[str, Score]) -> dict[str, Any]:
    return {key: {"value": score.value, "parts": score.parts} for key, score in scores.items()}


def restored_scores(stored: dict[str, Any]) -> dict[str, Score]:
    return {key: Score(one["value"], tuple((above, below) for above, below in one["parts"]))
            for key, one in stored.items()}


def budget_of(allowance: Allowance, flops_a_step: float) -> tuple[str, float]:
    """As a run takes it: FLOPs become steps, counted beforehand."""
    if allowance.unit == "flops":
        return "steps", max(1, round(allowance.amount / flops_a_step))
    return allowance.unit, allowance.amount
