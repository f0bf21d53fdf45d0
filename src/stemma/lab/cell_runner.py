"""What is done in a cell: pre-train, ask about held-out text, fine-tune. Each part is kept once it is complete."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stemma.atomic_files import remove_leftovers, sha256
from stemma.device import choose_device
from stemma.exchange.load import load
from stemma.exchange.save import save
from stemma.exchange.weights import SAFETENSORS
from stemma.lab.cells import FINETUNING, Cell, run_budget, scores_to_json
from stemma.lab.downstream_tasks import finetune_on, task_scores
from stemma.lab.experiment import DownstreamTask, Experiment, Variant
from stemma.lab.held_out_likelihood import held_out_scores
from stemma.lab.text_split import TextSplit
from stemma.lab.variant_costs import VariantCosts
from stemma.model import Model
from stemma.notes import each_once
from stemma.objectives import build_network
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten, format_value
from stemma.tasks.runs.common import resume as resume_task
from stemma.training.budget import Budget
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain import RunBody as Training
from stemma.training.pretrain import resume
from stemma.training.run_folder import MODEL, RunConfig, create_run, read_run
from stemma.training.run_graph import run_or_resume
from stemma.training.trainer import TrainingDivergedError

NUM_VALIDATIONS = 8  # at held-out text while a model learns: enough for a curve, few enough to cost little
CHECKPOINTS = "checkpoints"


class CellRunner:
    """Everything that the cells of one experiment share."""

    def __init__(self, experiment: Experiment, shared: TextSplit, costs: VariantCosts, show: bool,
                 training: Training | None = None):
        self.experiment, self.shared, self.costs, self.show = experiment, shared, costs, show
        self.training = training  # of a run that stands on disk; None: the loop, left alone
        self.told = set[str]()  # cells are much alike: what was said of one is not said again

    def run(self, cell: Cell, started_at: float | None = None) -> None:
        """From wherever the cell stands to its end; a training that breaks down is noted, with the reason. It is worked
        on since `began`, or since now."""
        remove_leftovers(cell.folder)
        started_at = time.time() if started_at is None else started_at
        if cell.variant.pretrained:
            try:
                trained = self.train(cell)
            except TrainingDivergedError as error:
                cell.node.fail(error.message)
                return
            # somebody who was interrupted has trained it before
            before = max(0.0, trained["elapsed_seconds"] - (time.time() - started_at))
            self.score(cell, started_at, before)
        for task in self.experiment.tasks:
            self.finetune(cell, task)

    def train(self, cell: Cell) -> dict[str, Any]:
        def go_on(run: Path) -> dict[str, Any]:
            with each_once(self.told):
                return resume(run, show_progress=self.show, body=self.training)

        def begin(run: Path) -> dict[str, Any]:
            create_run(run, *self.run_config(cell), overwrite=True)
            return go_on(run)

        return run_or_resume(cell.run, begin, go_on)

    def run_config(self, cell: Cell) -> tuple[Recipe, RunConfig]:
        """The pre-training of a cell, as it stands on disk before it begins."""
        unit, amount = run_budget(self.experiment.allowance, self.costs.step_cost(cell.variant).flops)
        wanted = self.with_lab_logging(cell.variant.recipe)
        shared = self.shared
        plan = RunConfig(shared.corpus, list(shared.text), Budget(unit, amount), cell.seed,
                         reading=shared.reading_options)
        if shared.corpus:
            corpus = self.costs.corpus(cell.variant)
            wanted, plan = adopt_tokenizer(wanted, corpus), replace(plan, fingerprint=corpus.fingerprint)
        return wanted, plan

    def with_lab_logging(self, recipe: Recipe) -> Recipe:
        """The recipe with looks at held-out text now and then; of the checkpoints only the newest is of use."""
        steps = self.costs.steps(recipe)
        changes: dict[str, Any] = {"training.keep_checkpoints": 1}
        if steps is not None:
            changes["training.validate_every"] = max(1, steps // NUM_VALIDATIONS)
        return recipe.with_changes(changes, "lab")

    def score(self, cell: Cell, started_at: float, earlier_seconds: float) -> None:
        """Ask the model about the text that none of them has read; it was worked on since this moment, and for so many
        seconds before."""
        if cell.scores() is not None:
            return
        scores = held_out_scores(load(cell.run, choose_device()), self.shared.eval_chunks)
        cost = self.costs.step_cost(cell.variant)
        found = {"scores": scores_to_json(scores), "digest": sha256(cell.run / MODEL / SAFETENSORS),
                 "flops_a_step": cost.flops, "span": [started_at, time.time()], "before": earlier_seconds}
        shutil.rmtree(cell.run / CHECKPOINTS, ignore_errors=True)  # the model is there: nobody goes on from them
        cell.node.finish(found)

    def finetune(self, cell: Cell, task: DownstreamTask) -> None:
        """Fine-tune the model and keep what it answered; the fine-tuned weights are not kept."""
        node = cell.task(task)
        if node.result() is not None:
            return
        began, run, drawn = time.time(), node.folder / "run", node.folder / "start"
        seed = cell.seed if task.seed is None else task.seed

        def begin(run: Path) -> dict[str, Any]:
            start = cell.run if cell.variant.pretrained else self.random_start(cell.variant, seed, drawn)
            own = finetuning_overrides(cell) if cell.variant.pretrained else []
            return finetune_on(task, start, run, epochs=task.epochs, seed=seed, changes=[*own, *task.changes],
                               show=self.show)

        with each_once(self.told):
            result = run_or_resume(run, begin, partial(resume_task, show=self.show))
        found = {"task": task.name, "scores": scores_to_json(task_scores(run, result)),
                 "span": [began, time.time()]} | ({"also": result["metrics"]["test"]} if task.also else {})
        for folder in (run, drawn):  # first: whoever is killed in between learns again and leaves nothing
            shutil.rmtree(folder, ignore_errors=True)
        node.finish(found)

    def random_start(self, variant: Variant, seed: int, place: Path) -> Path:
        """The network of a variant as nobody has trained it, with the tokenizer of its corpus, as a folder."""
        fitted = self.costs.resolved_recipe(variant)
        torch.manual_seed(seed)
        tokenizer = self.costs.corpus(variant).tokenizer
        network = build_network(fitted, tokenizer=tokenizer)
        save(Model(fitted, tokenizer, network.eval()), place, overwrite=True)
        return place


def finetuning_overrides(cell: Cell) -> list[str]:
    """What is to be typed where the model was pre-trained for another variant, which is fine-tuned otherwise."""
    mine, found = flatten({FINETUNING: cell.finetuning}), read_run(cell.run)[0].values[FINETUNING]
    if found == cell.finetuning:
        return []
    gone = [key for key in flatten({FINETUNING: found}) if key not in mine and key.count(".") == 1]
    return [*(f"remove={key}" for key in gone), *(f"{key}={format_value(value)}" for key, value in mine.items())]
