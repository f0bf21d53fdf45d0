"""The one loop: batches in, weights out, for every recipe and every training method.

Each step seeds torch from (seed, step), so nothing random has to be remembered; a checkpoint holds the weights, what
the method remembers (an optimizer) and a few counters, and a run that was killed goes on to the very bytes it would
have reached. What follows a step is done by parts that are called in order: selection, callbacks, logging, checkpoints.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stemma import registry
from stemma.errors import Interrupted, UserError
from stemma.lineage import Recipe
from stemma.network.network import Network
from stemma.network.state import Memory
from stemma.stored import list_finished
from stemma.training.batches import Source
from stemma.training.budget import Budget
from stemma.training.callbacks import Callbacks, StepReport, callbacks_of
from stemma.training.checkpoints import Standing, load_latest, save_checkpoint
from stemma.training.course import Course
from stemma.training.log import Log, Logging
from stemma.training.method import Broken, Method, MethodSetup
from stemma.training.passes import Passes
from stemma.training.precision import device_of, keep_memory, prepare_threads, resolve_precision
from stemma.training.progress import Progress
from stemma.training.selection import Best, Judge, Selection
from stemma.training.signals import noted_signals
from stemma.training.validation import Validation

logger = logging.getLogger(__name__)


class Diverged(UserError):  # noqa: N818  (what happened, not what is wrong)
    """The loss is not a number any more, or far above what it was."""


class Loop:
    def __init__(self, run: Path, recipe: Recipe, supply: Source, network: Network, budget: Budget, seed: int,
                 tensorboard: bool = False, show: bool = False,
                 judge: Judge | None = None):
        settings = recipe.settings.training
        self.run, self.recipe, self.settings, self.budget = run, recipe, settings, budget
        self.seed, self.show = seed, show
        self.device = device_of(run)
        self.threads = prepare_threads(settings.threads)
        self.precision = resolve_precision(settings.precision, self.device)
        keep_memory()
        self.network, self.supply = network.to(self.device), supply
        self.passes = Passes(self.network, supply.objectives, settings, self.device, self.precision)
        setup = MethodSetup(self.network, recipe.settings, self.passes, budget)
        self.method: Method = registry.get("method", settings.learns_by.kind).build(settings.learns_by, setup)
        self.method.train()
        self.validation = Validation(supply, self.network, self.passes, seed)
        chooses = settings.keep_best or settings.patience is not None
        self.selection = Selection(run, network, settings.patience, judge) if chooses else None
        self.log = Log(run, tensorboard)
        self.callbacks = Callbacks([*([self.selection] if self.selection else []), *callbacks_of(settings),
                                    Logging(settings.log_every)])
        self.course = Course()
        self.held_out: dict[str, Any] | None = None  # what the last look found
        self.baseline: float | None = None  # of the first batch that tells a loss

    def train(self) -> dict[str, Any]:
        """Run to the end of the budget, from the newest checkpoint if there is one."""
        with self:
            self.advance()
            return self.conclude()

    def __enter__(self) -> Loop:
        self._restore()
        self._refuse_vain()
        return self

    def __exit__(self, *_: object) -> None:
        self.supply.close()
        self.log.close()

    def advance(self, seconds: float = math.inf) -> bool:
        """Go on, for so long at most: several loops may take turns. Whether this one is at its end."""
        until = self.course.elapsed + seconds
        over = self._used() >= 1 or self.course.ended or self.selection is not None and self.selection.settled
        with noted_signals() as stopped, Progress(self.recipe.label, self.budget.describe(), self.show) as progress:
            while not over and self.course.elapsed < until:
                over = self._step(progress)
                if stopped:
                    self.save()
                    raise Interrupted(f"stopped at step {self.course.step:,} and saved; `stemma resume {self.run}` "
                                      "goes on from there.")
        return over

    def _restore(self) -> None:
        state = load_latest(self.run, self.network, self.method)
        if state is not None:
            self.course = Course(step=state.step, tokens=state.tokens, **state.values)
            self.passes.memories = {feed: Memory.of(layers).to(self.device) for feed, layers in state.memories.items()}
            self.supply.restore(self.course.positions or {})
            if self.selection is not None and self.course.best is not None:
                self.selection.best = Best(**self.course.best)
        self.threads = self.course.threads = prepare_threads(self.settings.threads or self.course.threads)
        if told := self.log.truncate_after(self.course.step, self.course.log):
            logger.warning(told)

    def _refuse_vain(self) -> None:
        """What is asked for and could not come true."""
        if self.selection is not None and self.selection.judge is None \
                and not self.validation.batches(self.supply.length_at(0)):
            key = "keep_best" if self.settings.patience is None else "patience"
            raise UserError(f"training.{key} goes by what is held out, and there is nothing to compare with; hold some "
                            "text back with corpus.validation, or give dev examples with answers.")
        if told := self.method.remarks():
            logger.warning(told)

    def _used(self) -> float:
        return self.budget.used(self.course.step, self.course.tokens, self.course.elapsed)

    def _step(self, progress: Progress) -> bool:
        """One step and what belongs to it; whether it was the last."""
        course, began, used = self.course, time.perf_counter(), self._used()
        prepared = self.supply.take(course.step, self.supply.length_at(used), used)
        torch.manual_seed((self.seed * 1_000_003 + course.step) % 2**63)
        try:
            learnt = self.method.learn(prepared, course, used)
        except Broken as error:
            raise self._diverged(error) from None

        course.step += 1
        course.tokens += prepared.batch.tokens
        spent = time.perf_counter() - began
        course.seconds += spent
        course.elapsed += spent
        course.lasted = course.elapsed
        course.used = used
        course.losses, course.measures = learnt.losses, learnt.measures
        loss = self.validation.loss_of(learnt.losses, prepared.objectives)
        course.loss = course.loss if loss is None else loss
        course.positions = prepared.positions
        if self.baseline is None and loss is not None:
            self.baseline = self.validation.baseline(prepared)
        over = self._afterwards(progress, StepReport(loss, learnt.losses, learnt.details))
        course.elapsed += time.perf_counter() - began - spent
        return over

    def _afterwards(self, progress: Progress, report: StepReport) -> bool:
        """What happens after a step, and now and then: a log line, a look at held-out data, a checkpoint. Whether this
        is the end: of the budget, or because a part says so."""
        course, settings = self.course, self.settings
        course.ended = self.callbacks.tell("on_step", self, report)
        over = self._used() >= 1 or course.ended
        if course.step % settings.validate_every == 0 or over:
            self.held_out = self.validate()
            course.ended |= self.callbacks.tell("on_validation", self, self.held_out)
            self.method.train()
            over |= course.ended
        if course.step % settings.checkpoint_every == 0 or over:
            self.save()
        used = self._used()
        left = course.elapsed * (1 - used) / used if used else math.inf
        progress.update(course.step, min(used, 1.0), course.loss or math.nan, self.baseline, course.tokens_per_second,
                        max(left, 0.0))
        return over

    def _diverged(self, broken: Broken) -> Diverged:
        """Keeps the state as it was before the step that broke."""
        kept = "before anything was learnt"
        if self.course.step:
            self.save()
            kept = f"with the state of step {self.course.step:,} saved in {self.run}"
        return Diverged(f"the loss {broken.what} at step {self.course.step + 1:,}; training stopped {kept}. Start "
                        f"again with {broken.advice}.")

    def validate(self) -> dict[str, Any]:
        """The mean losses on held-out text, beside those of the baseline."""
        found = self.validation.look(self.course, self.supply.length_at(self._used()))
        self.method.train()
        return found

    def save(self) -> None:
        course = self.course
        course.best = None if self.selection is None else asdict(self.selection.best)
        course.log = self.log.written()
        values = {key: value for key, value in vars(course).items() if key not in ("step", "tokens")}
        memories = {feed: memory.tensors() for feed, memory in self.passes.memories.items()}
        folder = save_checkpoint(self.run, self.network, self.method,
                                 Standing(course.step, course.tokens, values, memories), self.settings.keep_checkpoints)
        self.callbacks.tell("on_checkpoint", self, folder)

    def conclude(self) -> dict[str, Any]:
        course = self.course
        list_finished(self.log.path)
        chosen: dict[str, Any] = {}
        if self.selection is not None and self.selection.best.step != course.step:
            self.selection.take()
            self.held_out = None
        if self.selection is not None:
            chosen = {"best_step": self.selection.best.step}
        held_out = self.held_out or self.validate()  # none yet where the kill came after the last step
        return {"recipe": self.recipe.label, "steps": course.step, "tokens": course.tokens, "loss": course.loss,
                "losses": course.losses, "measures": course.measures, **held_out, **chosen,
                "tokens_per_second": course.tokens_per_second, "seconds": course.seconds,
                "elapsed_seconds": course.lasted, "parameters": self.network.parameter_count(),
                "precision": str(self.precision).removeprefix("torch."), "device": self.device.type,
                "threads": self.threads}
