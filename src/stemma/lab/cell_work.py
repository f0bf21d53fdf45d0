"""What is done in a cell: pre-train, ask about held-out text, fine-tune. Each part is kept once it is complete."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stemma.device import choose_device
from stemma.exchange.load import load
from stemma.exchange.model import Model
from stemma.exchange.save import save
from stemma.exchange.weights import SAFE
from stemma.files import remove_leftovers, sha256
from stemma.lab.cells import FINETUNING, Cell, budget_of, stored_scores
from stemma.lab.costs import Costs
from stemma.lab.experiment import Experiment, LabTask, Variant
from stemma.lab.intrinsic import held_out_score
from stemma.lab.lab_tasks import finetune_on, task_scores
from stemma.lab.shared_text import SharedText
from stemma.lineage import Recipe
from stemma.notes import each_once
from stemma.objectives import build_network
from stemma.schema.layers import flatten, spell
from stemma.tasks.finetune import resume as resume_task
from stemma.training.budget import Budget
from stemma.training.graph import carried_out
from stemma.training.loop import Diverged
from stemma.training.pretrain import Work as Training
from stemma.training.pretrain import resume
from stemma.training.run import MODEL, Plan, create_run, read_run
from stemma.training.source import adopt_tokenizer

LOOKS = 8  # at held-out text while a model learns: enough for a curve, few enough to cost little
CHECKPOINTS = "checkpoints"


class Work:
    """Everything that the cells of one experiment share."""

    def __init__(self, experiment: Experiment, shared: SharedText, costs: Costs, show: bool,
                 training: Training | None = None):
        self.experiment, self.shared, self.costs, self.show = experiment, shared, costs, show
        self.training = training  # of a run that stands on disk; None: the loop, left alone
        self.told = set[str]()  # cells are much alike: what was said of one is not said again

    def carry_out(self, cell: Cell, began: float | None = None) -> None:
        """From wherever the cell stands to its end; a training that breaks down is noted, with the reason. It is worked
        on since `began`, or since now."""
        remove_leftovers(cell.folder)
        began = time.time() if began is None else began
        if cell.variant.pretrained:
            try:
                trained = self.train(cell)
            except Diverged as error:
                cell.node.fail(error.message)
                return
            # somebody who was interrupted has trained it before
            before = max(0.0, trained["elapsed_seconds"] - (time.time() - began))
            self.measure(cell, began, before)
        for task in self.experiment.tasks:
            self.learn(cell, task)

    def train(self, cell: Cell) -> dict[str, Any]:
        def go_on(run: Path) -> dict[str, Any]:
            with each_once(self.told):
                return resume(run, show=self.show, work=self.training)

        def begin(run: Path) -> dict[str, Any]:
            create_run(run, *self.planned(cell), overwrite=True)
            return go_on(run)

        return carried_out(cell.run, begin, go_on)

    def planned(self, cell: Cell) -> tuple[Recipe, Plan]:
        """The pre-training of a cell, as it stands on disk before it begins."""
        unit, amount = budget_of(self.experiment.allowance, self.costs.of(cell.variant).flops)
        wanted = self.watched(cell.variant.recipe)
        shared = self.shared
        plan = Plan(shared.corpus, list(shared.text), Budget(unit, amount), cell.seed, reading=shared.reading)
        if shared.corpus:
            corpus = self.costs.corpus(cell.variant)
            wanted, plan = adopt_tokenizer(wanted, corpus), replace(plan, fingerprint=corpus.fingerprint)
        return wanted, plan

    def watched(self, recipe: Recipe) -> Recipe:
        """The recipe with looks at held-out text now and then; of the checkpoints only the newest is of use."""
        steps = self.costs.steps(recipe)
        changes: dict[str, Any] = {"training.keep_checkpoints": 1}
        if steps is not None:
            changes["training.validate_every"] = max(1, steps // LOOKS)
        return recipe.with_changes(changes, "lab")

    def measure(self, cell: Cell, began: float, before: float) -> None:
        """Ask the model about the text that none of them has read; it was worked on since this moment, and for so many
        seconds before."""
        if cell.scores() is not None:
            return
        scores = held_out_score(load(cell.run, choose_device()), self.shared.stretches)
        cost = self.costs.of(cell.variant)
        found = {"scores": stored_scores(scores), "digest": sha256(cell.run / MODEL / SAFE),
                 "flops_a_step": cost.flops, "span": [began, time.time()], "before": before}
        shutil.rmtree(cell.run / CHECKPOINTS, ignore_errors=True)  # the model is there: nobody goes on from them
        cell.node.finish(found)

    def learn(self, cell: Cell, task: LabTask) -> None:
        """Fine-tune the model and keep what it answered; the fine-tuned weights are not kept."""
        node = cell.task(task)
        if node.found() is not None:
            return
        began, run, drawn = time.time(), node.folder / "run", node.folder / "start"
        seed = cell.seed if task.seed is None else task.seed

        def begin(run: Path) -> dict[str, Any]:
            start = cell.run if cell.variant.pretrained else self.random_start(cell.variant, seed, drawn)
            own = own_finetuning(cell) if cell.variant.pretrained else []
            return finetune_on(task, start, run, epochs=task.epochs, seed=seed, changes=[*own, *task.changes],
                               show=self.show)

        with each_once(self.told):
            result = carried_out(run, begin, partial(resume_task, show=self.show))
        found = {"task": task.name, "scores": stored_scores(task_scores(run, result)),
                 "span": [began, time.time()]} | ({"also": result["metrics"]["test"]} if task.also else {})
        for folder in (run, drawn):  # first: whoever is killed in between learns again and leaves nothing
            shutil.rmtree(folder, ignore_errors=True)
        node.finish(found)

    def random_start(self, variant: Variant, seed: int, place: Path) -> Path:
        """The network of a variant as nobody has trained it, with the tokenizer of its corpus, as a folder."""
        fitted = self.costs.fitted(variant)
        torch.manual_seed(seed)
        tokenizer = self.costs.corpus(variant).tokenizer
        network = build_network(fitted, tokenizer=tokenizer)
        save(Model(fitted, tokenizer, network.eval()), place, overwrite=True)
        return place


def own_finetuning(cell: Cell) -> list[str]:
    """What is to be typed where the model was pre-trained for another variant, which is fine-tuned otherwise."""
    mine, found = flatten({FINETUNING: cell.finetuning}), read_run(cell.run)[0].values[FINETUNING]
    if found == cell.finetuning:
        return []
    gone = [key for key in flatten({FINETUNING: found}) if key not in mine and key.count(".") == 1]
    return [*(f"remove={key}" for key in gone), *(f"{key}={spell(value)}" for key, value in mine.items())]
