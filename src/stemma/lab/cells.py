"""A cell: one variant with one seed, identified by the digest of everything that goes into its training.

The digest covers the resolved recipe, the text, the budget and the seed. So another recipe or seed reuses the finished
cells, and variants with equal recipes share cells. Each task that the model is fine-tuned on has its own digest, which
also covers the fine-tuning settings: variants that differ only in those share the pre-training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stemma import plugins
from stemma.lab.downstream_tasks import plugin_code
from stemma.lab.experiment import ComputeBudget, DownstreamTask, Experiment, Score, Variant
from stemma.lab.text_split import TextSplit
from stemma.schema.base import parts_in_settings
from stemma.schema.overrides import flatten
from stemma.schema.renamed_keys import old_entry
from stemma.schema.training import TrainingSettings
from stemma.text.train_tokenizer import TRAINER_VERSION
from stemma.training import run_graph
from stemma.training.run_folder import read_result
from stemma.training.run_graph import RunNode

CELLS, RUN, TASKS = "cells", "run", "tasks"
FINETUNING = "finetuning"  # the section of a recipe
FORMAT = 1  # part of every digest: with a new format, old cells are not reused
LATER = {"seed": None, "also": None, "changes": ()}  # keys that a task's digest omits at these defaults
# Keys about the machine and about logging, which do not affect the model.
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
        values: dict[str, Any] = self.variant.recipe.values[FINETUNING]
        return values

    @property
    def retry_advice(self) -> str:
        """Advice for errors about damaged files of the cell."""
        return f"delete {self.folder}, and `stemma resume {self.folder.parent.parent}` makes this cell again."

    @property
    def node(self) -> RunNode:
        return RunNode(self.folder, self.retry_advice)

    def task(self, task: DownstreamTask) -> RunNode:
        """The fine-tuning of its model on a task."""
        return RunNode(self.folder / TASKS / short_digest(task_digest(task), finetuning_values(self.variant)),
                       self.retry_advice)

    def result(self) -> dict[str, Any] | None:
        """result.json of the pre-training; None if it is not finished."""
        return read_result(self.run, self.retry_advice)

    def scores(self) -> dict[str, Any] | None:
        """Scores of the pre-trained model; None if there are none yet."""
        return self.node.result()

    def failure(self) -> str | None:
        """Why its training failed for good; None if it did not."""
        return self.node.failure_reason()

    def task_scores(self, task: DownstreamTask) -> dict[str, Any] | None:
        return self.task(task).result()

    def is_done(self, experiment: Experiment) -> bool:
        is_scored = not self.variant.pretrained or self.scores() is not None
        return self.failure() is not None or is_scored and all(
            self.task_scores(task) is not None for task in experiment.tasks) and (
            experiment.blimp is None or not self.variant.pretrained or self._has_pair_scores(experiment))

    def _has_pair_scores(self, experiment: Experiment) -> bool:
        from stemma.lab.blimp import pairs_node  # imports this module

        return pairs_node(self, experiment).result() is not None


def experiment_cells(experiment: Experiment, text_split: TextSplit, folder: Path) -> list[Cell]:
    """All cells, seed by seed, so that a lab which is stopped early has all variants of the first seeds."""
    inputs = {variant.name: [recipe_digest(variant), text_split.digest, asdict(experiment.allowance)]
              for variant in experiment.variants}
    return [Cell(variant, seed, folder / CELLS / short_digest(FORMAT, *inputs[variant.name], seed,
                                                              *([] if variant.pretrained else [variant.role])))
            for seed in experiment.seeds for variant in experiment.variants]


def distinct_cells(cells: Sequence[Cell], tasks: Sequence[DownstreamTask]) -> list[Cell]:
    """One cell of those that share all work: the pre-training and, if there are tasks, the fine-tuning."""
    return list({(cell.digest, short_digest(finetuning_values(cell.variant)) if tasks else ""): cell
                 for cell in cells}.values())


def recipe_digest(variant: Variant) -> str:
    """Digest of the values that affect the pre-trained model, without the recipe's name and the values' origins."""
    omitted = NON_MODEL_KEYS | set(variant.recipe.settings.later_defaults())
    values = dict(old_entry(key, value) for key, value in flatten(variant.recipe.values).items()
                  if key not in omitted and not key.startswith(f"{FINETUNING}."))
    kind = values["tokenizer.kind"]
    code = plugins.plugins_of(parts_in_settings(variant.recipe.settings))
    return short_digest(values | ({"tokenizer.learnt": TRAINER_VERSION[kind]} if kind in TRAINER_VERSION else {})
                        | ({"plugins": code} if code else {}))


def finetuning_values(variant: Variant) -> dict[str, Any]:
    """The fine-tuning settings as a task's digest has them."""
    omitted = set(variant.recipe.settings.finetuning.later_defaults())
    return {key: value for key, value in variant.recipe.values[FINETUNING].items() if key not in omitted}


def task_digest(task: DownstreamTask) -> str:
    values = {key: value for key, value in asdict(task).items()
              if key != "digests" and (key not in LATER or value != LATER[key])}
    return short_digest(values | dict(task.file_digests())
                        | ({"plugins": code} if (code := plugin_code(task)) else {}))


def short_digest(*parts: object) -> str:
    """The first 16 characters of a digest: a folder name."""
    return run_graph.digest(*parts)[:16]


def scores_to_json(scores: dict[str, Score]) -> dict[str, Any]:
    return {key: {"value": score.value, "parts": score.parts} for key, score in scores.items()}


def scores_from_json(stored: dict[str, Any]) -> dict[str, Score]:
    return {key: Score(entry["value"], tuple((above, below) for above, below in entry["parts"]))
            for key, entry in stored.items()}


def run_budget(budget: ComputeBudget, flops_per_step: float) -> tuple[str, float]:
    """The budget of a run: FLOPs are converted to steps."""
    if budget.unit == "flops":
        return "steps", max(1, round(budget.amount / flops_per_step))
    return budget.unit, budget.amount
