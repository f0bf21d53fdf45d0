"""What a cell runs: pre-training, scoring of held-out text, fine-tuning. Each result is stored once it is complete."""

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
from stemma.lab.blimp import pairs_node, score_blimp
from stemma.lab.cells import FINETUNING, Cell, run_budget, scores_to_json
from stemma.lab.downstream_tasks import finetune_on, no_finetuning_reason, task_scores
from stemma.lab.experiment import DownstreamTask, Experiment, Variant
from stemma.lab.held_out_likelihood import held_out_scores
from stemma.lab.input_files import check_examples, check_pairs
from stemma.lab.text_split import TextSplit
from stemma.lab.variant_costs import VariantCosts
from stemma.model import Model
from stemma.notes import each_once
from stemma.objectives import build_network
from stemma.recipe_loading import COMMAND_LINE, Recipe
from stemma.schema.overrides import flatten
from stemma.tasks.runs.common import resume as resume_task
from stemma.training.budget import Budget
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain import RunBody as Training
from stemma.training.pretrain import resume
from stemma.training.run_folder import MODEL, RunConfig, create_run, read_result, read_run
from stemma.training.run_graph import run_or_resume
from stemma.training.trainer import TrainingDivergedError

NUM_VALIDATIONS = 8  # validations during training: enough for a curve, few enough to be cheap
CHECKPOINTS = "checkpoints"


class CellRunner:
    """Runs the cells of one experiment."""

    def __init__(self, experiment: Experiment, text_split: TextSplit, costs: VariantCosts, show: bool,
                 training: Training | None = None):
        self.experiment, self.text_split, self.costs, self.show = experiment, text_split, costs, show
        self.training = training  # how to train an existing run folder; None: the plain training loop
        self.logged = set[str]()  # messages so far: cells are similar, so each message is logged once

    def run(self, cell: Cell, started_at: float | None = None) -> None:
        """Run or resume the cell to its end; a diverged training is stored as failed, with the reason. The time counts
        from `started_at`, by default from now."""
        remove_leftovers(cell.folder)
        started_at = time.time() if started_at is None else started_at
        if cell.variant.pretrained:
            try:
                trained = self.train(cell)
            except TrainingDivergedError as error:
                cell.node.fail(error.message)
                return
            # training time before an interruption
            earlier_seconds = max(0.0, trained["elapsed_seconds"] - (time.time() - started_at))
            self.score(cell, started_at, earlier_seconds)
            self.score_pairs(cell)
        for task in self.experiment.tasks:
            self.finetune(cell, task)

    def train(self, cell: Cell) -> dict[str, Any]:
        def continue_run(run: Path) -> dict[str, Any]:
            read_run(run)  # an edited recipe is refused
            if (finished := read_result(run)) is not None:
                return finished
            with each_once(self.logged):
                return resume(run, show_progress=self.show, body=self.training)

        def start_run(run: Path) -> dict[str, Any]:
            create_run(run, *self.run_config(cell), overwrite=True)
            return continue_run(run)

        return run_or_resume(cell.run, start_run, continue_run)

    def run_config(self, cell: Cell) -> tuple[Recipe, RunConfig]:
        """Recipe and run.json of a cell's pre-training."""
        unit, amount = run_budget(self.experiment.allowance, self.costs.step_cost(cell.variant).flops)
        recipe = self.with_lab_logging(cell.variant.recipe)
        text_split = self.text_split
        plan = RunConfig(text_split.corpus, list(text_split.text), Budget(unit, amount), cell.seed,
                         reading=text_split.reading_options)
        if text_split.corpus:
            corpus = self.costs.corpus(cell.variant)
            recipe, plan = adopt_tokenizer(recipe, corpus), replace(plan, fingerprint=corpus.fingerprint)
        return recipe, plan

    def with_lab_logging(self, recipe: Recipe) -> Recipe:
        """The recipe with NUM_VALIDATIONS validations and only the newest checkpoint."""
        steps = self.costs.steps(recipe)
        changes: dict[str, Any] = {"training.keep_checkpoints": 1}
        if steps is not None:
            changes["training.validate_every"] = max(1, steps // NUM_VALIDATIONS)
        return recipe.with_changes(changes, "lab")

    def score(self, cell: Cell, started_at: float, earlier_seconds: float) -> None:
        """Score the model on the held-out text. `started_at` and `earlier_seconds` (before an interruption) are the
        cell's working time so far."""
        if cell.scores() is not None:
            return
        scores = held_out_scores(load(cell.run, choose_device()), self.text_split.eval_chunks)
        cost = self.costs.step_cost(cell.variant)
        result = {"scores": scores_to_json(scores), "digest": sha256(cell.run / MODEL / SAFETENSORS),
                  "flops_a_step": cost.flops, "span": [started_at, time.time()], "before": earlier_seconds}
        shutil.rmtree(cell.run / CHECKPOINTS, ignore_errors=True)  # the model is complete: no one resumes from them
        cell.node.finish(result)

    def score_pairs(self, cell: Cell) -> None:
        """Score the model on minimal pairs, if the experiment has some."""
        folder = self.experiment.blimp
        if folder is None or pairs_node(cell, self.experiment).result() is not None:
            return
        check_pairs(self.experiment)
        started_at = time.time()
        result = score_blimp(load(cell.run, choose_device()), folder)
        pairs_node(cell, self.experiment).finish({**result, "span": [started_at, time.time()]})

    def finetune(self, cell: Cell, task: DownstreamTask) -> None:
        """Fine-tune the model and store its scores; the fine-tuned weights are deleted."""
        node = cell.task(task)
        if node.result() is not None:
            return
        started_at, run, start_model = time.time(), node.folder / "run", node.folder / "start"
        if (reason := no_finetuning_reason(cell.variant)) is not None:
            node.finish({"task": task.name, "scores": {}, "why": reason, "span": [started_at, started_at]})
            return
        check_examples(task)
        seed = cell.seed if task.seed is None else task.seed

        def start_run(run: Path) -> dict[str, Any]:
            start = pretrained_start(cell, start_model) if cell.variant.pretrained \
                else self.random_start(cell.variant, seed, start_model)
            return finetune_on(task, start, run, epochs=task.epochs, seed=seed, changes=task.changes, show=self.show)

        with each_once(self.logged):
            result = run_or_resume(run, start_run, partial(resume_task, show=self.show))
        stored = {"task": task.name, "scores": scores_to_json(task_scores(run, result)),
                  "span": [started_at, time.time()]} | ({"also": result["metrics"]["test"]} if task.also else {})
        for folder in (run, start_model):  # before the result is stored, so that a kill in between leaves no weights
            shutil.rmtree(folder, ignore_errors=True)
        node.finish(stored)

    def random_start(self, variant: Variant, seed: int, folder: Path) -> Path:
        """Save the variant's network with random weights and its corpus's tokenizer; returns the folder."""
        recipe = self.costs.resolved_recipe(variant)
        torch.manual_seed(seed)
        tokenizer = self.costs.corpus(variant).tokenizer
        network = build_network(recipe, tokenizer=tokenizer)
        save(Model(recipe, tokenizer, network.eval()), folder, overwrite=True)
        return folder


def pretrained_start(cell: Cell, folder: Path) -> Path:
    """The pre-trained model of the cell. If it was pre-trained for another variant, a copy in `folder` that has the
    [finetuning] of this one."""
    if read_run(cell.run)[0].values[FINETUNING] == cell.finetuning:
        return cell.run
    model = load(cell.run)
    save(replace(model, recipe=with_finetuning_of(model.recipe, cell.variant.recipe)), folder, overwrite=True)
    return folder


def with_finetuning_of(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with the section [finetuning] of another one; what the user stated there stays stated."""
    section, values = other.values[FINETUNING], flatten({FINETUNING: other.values[FINETUNING]})
    removed = [key for key in flatten({FINETUNING: recipe.values[FINETUNING]})
               if key not in values and key.count(".") == 1]
    recipe = recipe.with_changes({"remove": removed, FINETUNING: section}, other.label)
    stated = {key: value for key, value in values.items() if other.origin.get(key) == COMMAND_LINE}
    return recipe.with_changes(stated, COMMAND_LINE) if stated else recipe
