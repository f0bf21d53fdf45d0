"""The one loop: batches in, weights out, for every recipe.

Each step seeds torch from (seed, step), so nothing random has to be remembered; a checkpoint holds the weights, the
optimizer and a few counters, and a run that was killed goes on to the very bytes it would have reached.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stemma.errors import Interrupted, UserError, counted
from stemma.lineage import Recipe
from stemma.network.network import Network
from stemma.network.state import Memory, State
from stemma.objectives import Batch
from stemma.objectives.base import Scoring
from stemma.progress import stage
from stemma.stored import list_finished
from stemma.training.batches import Prepared, Source
from stemma.training.budget import Budget
from stemma.training.checkpoints import Standing, load_latest, save_checkpoint
from stemma.training.course import Course
from stemma.training.depth import Layers, learning_rate_shares
from stemma.training.log import Log
from stemma.training.optimizers import build_optimizer, set_learning_rate
from stemma.training.passes import Passes
from stemma.training.phases import Phase, phases_of
from stemma.training.precision import device_of, keep_memory, prepare_threads, resolve_precision
from stemma.training.progress import Progress
from stemma.training.schedules import factor
from stemma.training.selection import Best, Judge, Selection
from stemma.training.signals import noted_signals
from stemma.training.stages import has_begun

SMOOTHING = 0.98  # of the running mean that a spike is measured against


class Diverged(UserError):  # noqa: N818  (what happened, not what is wrong)
    """The loss is not a number any more, or far above what it was."""


class Loop:
    def __init__(self, run: Path, recipe: Recipe, supply: Source, network: Network, budget: Budget, seed: int,
                 notice: Callable[[str], None], tensorboard: bool = False, show: bool = False,
                 judge: Judge | None = None):
        settings = recipe.settings.training
        self.run, self.recipe, self.settings, self.budget = run, recipe, settings, budget
        self.seed, self.notice, self.show = seed, notice, show
        self.device = device_of(run, notice)
        self.threads = prepare_threads(settings.threads)
        self.precision = resolve_precision(settings.precision, self.device)
        keep_memory()
        self.network = network.to(self.device)
        self.layers = Layers(network, settings)
        self.layers.train()
        self.passes = Passes(self.network, supply.objectives, settings, self.device, self.precision)
        self.optimizer = build_optimizer(self.network, settings.optimizer, settings.learning_rate,
                                         learning_rate_shares(network, settings.layer_decay,
                                                              settings.layer_decay_top or 1)
                                         if settings.layer_decay else None, self.precision)
        chooses = settings.keep_best or settings.patience is not None
        self.selection = Selection(run, network, settings.patience, judge) if chooses else None
        self.supply, self.objectives = supply, supply.objectives
        self.unigram = self.supply.unigram()
        self.log = Log(run, tensorboard)
        self.course = Course()
        self.phases = phases_of(recipe.settings)
        self.warmups = [self._warmup_steps(phase) for phase in self.phases]
        self.held_out: dict[str, Any] | None = None  # what the last look found
        self.floor: float | None = None
        self._held_out: dict[int, Sequence[tuple[tuple[Scoring, ...], Batch]]] = {}

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
        over = self._used() >= 1 or self.selection is not None and self.selection.settled
        with noted_signals() as stopped, Progress(self.recipe.label, self.budget.describe(), self.show) as progress:
            while not over and self.course.elapsed < until:
                over = self._step(progress)
                if stopped:
                    self.save()
                    raise Interrupted(f"stopped at step {self.course.step:,} and saved; `stemma resume {self.run}` "
                                      "goes on from there.")
        return over

    def _restore(self) -> None:
        state = load_latest(self.run, self.network, self.optimizer, self.notice)
        if state is not None:
            self.course = Course(step=state.step, tokens=state.tokens, **state.values)
            self.passes.memories = {feed: Memory.of(layers).to(self.device) for feed, layers in state.memories.items()}
            self.supply.restore(self.course.positions or {})
            if self.selection is not None and self.course.best is not None:
                self.selection.best = Best(**self.course.best)
        self.threads = self.course.threads = prepare_threads(self.settings.threads or self.course.threads)
        if told := self.log.truncate_after(self.course.step, self.course.log):
            self.notice(told)

    def _refuse_vain(self) -> None:
        """What is asked for and could not come true."""
        if self.selection is not None and self.selection.judge is None and not self._looks_at(self.supply.length_at(0)):
            key = "keep_best" if self.settings.patience is None else "patience"
            raise UserError(f"training.{key} goes by what is held out, and there is nothing to compare with; hold some "
                            "text back with corpus.validation, or give dev examples with answers.")
        if self.budget.unit == "steps" and (late := self.layers.never(self.budget.amount)):
            self.notice(f"with training.unfreeze = {self.settings.unfreeze} the {late} lowest of {self.layers.top} "
                        f"layers (the embedding counted) have no turn in {self.budget.describe()}.")

    def _used(self) -> float:
        return self.budget.used(self.course.step, self.course.tokens, self.course.elapsed)

    def _step(self, progress: Progress) -> bool:
        """One step and what belongs to it; whether it was the last."""
        course, settings = self.course, self.settings
        began, used = time.perf_counter(), self._used()
        prepared = self.supply.take(course.step, self.supply.length_at(used), used)
        rate = settings.learning_rate * self._factor(used)
        set_learning_rate(self.optimizer, rate)
        torch.manual_seed((self.seed * 1_000_003 + course.step) % 2**63)
        self.layers.learn(course.step)
        outcome = self.passes.train(prepared)
        norm = self._clip()
        tasks = ",".join(objective.name for objective in prepared.objectives)
        self._refuse_broken(outcome.total, norm, *course.means.get(tasks, [math.inf, 0]))
        self.passes.remember(prepared.feed, outcome.memory)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

        course.step += 1
        course.tokens += prepared.batch.tokens
        spent = time.perf_counter() - began
        course.seconds += spent
        course.elapsed += spent
        course.lasted = course.elapsed
        course.used = used
        course.losses, course.measures = outcome.losses, outcome.measures
        loss = self._loss_of(outcome.losses, prepared.objectives)
        course.loss = course.loss if loss is None else loss
        course.positions = prepared.positions
        mean, count = course.means.get(tasks, [outcome.total, 0])
        course.means[tasks] = [SMOOTHING * mean + (1 - SMOOTHING) * outcome.total, count + 1]
        if self.floor is None and loss is not None:
            self.floor = self._floor_of(prepared)
        over = self._afterwards(progress, loss, rate, norm, self._used() >= 1)
        course.elapsed += time.perf_counter() - began - spent
        return over

    def _loss_of(self, losses: dict[str, float], objectives: tuple[Scoring, ...]) -> float | None:
        """The number people compare, of one batch; None where others than this one tell it: a batch of a sentence task
        among those of a language model."""
        told = any(objective.guesses_tokens for objective in objectives)
        return _reported(losses, objectives) if told or not any(o.guesses_tokens for o in self.objectives) else None

    def _afterwards(self, progress: Progress, loss: float | None, rate: float, norm: float, over: bool) -> bool:
        """What happens now and then: a log line, a look at held-out text, a checkpoint. Whether this is the end: of the
        budget, or because of what was seen."""
        course, settings = self.course, self.settings
        speed = course.tokens / max(course.seconds, 1e-9)
        if course.step % settings.log_every == 0 or course.step == 1:
            self.log.write({"step": course.step, "loss": loss, "losses": course.losses, "learning_rate": rate,
                            **({"measures": course.measures} if course.measures else {}),
                            "gradient_norm": norm, "tokens": course.tokens, "seconds": round(course.seconds, 3),
                            "tokens_per_second": round(speed, 1)})
        if course.step % settings.validate_every == 0 or over:
            self.held_out = self.validate()
            if self.selection is not None:
                over |= self.selection.look(course.step, self.held_out)
                self.layers.train()
            self.log.write({"step": course.step, "tokens": course.tokens, **self.held_out})
        if course.step % settings.checkpoint_every == 0 or over:
            self.save()
        used = self._used()
        left = course.elapsed * (1 - used) / used if used else math.inf
        progress.update(course.step, min(used, 1.0), course.loss or math.nan, self.floor, speed, max(left, 0.0))
        return over

    def _factor(self, used: float) -> float:
        """The schedule runs once in each phase. Warm-up goes by steps; with a budget in minutes it also ends after a
        tenth of the time."""
        course = self.course
        number = next((n for n, phase in enumerate(self.phases) if used < phase.stops), len(self.phases) - 1)
        if number != course.phase:
            course.phase, course.before, course.warmup, course.warmed = number, course.step, None, 0.0
        step, progress = course.step + 1 - course.before, self.phases[number].progress(used)
        warmup = self.warmups[number] if course.warmup is None else course.warmup
        if self.budget.unit == "minutes" and step < warmup and progress >= 0.1:
            warmup = course.warmup = step
        if step <= warmup:
            course.warmed = progress
        return factor(self.settings.schedule, step, warmup, progress, course.warmed)

    def _warmup_steps(self, phase: Phase) -> int:
        """The recipe's, unless it would eat the phase: then a tenth of it, and the user is told."""
        stated, amount = phase.warmup_steps, self.budget.amount * (phase.stops - phase.starts)
        steps = {"steps": amount, "tokens": amount / (phase.rows * phase.length)}.get(self.budget.unit)
        if steps is None or stated <= steps / 2:
            return stated
        shorter = int(steps // 10)
        whole = "this budget" if len(self.phases) == 1 else f"its {phase.stops - phase.starts:.0%} of this budget"
        self.notice(f"a warm-up of {counted(stated, 'step')} is most of {whole} ({self.budget.describe()}); "
                    f"{counted(shorter, 'step')} are used instead.")
        return shorter

    def _clip(self) -> float:
        """The gradients' norm; they are scaled down only where it is over the limit, which saves a pass over all."""
        limit = self.settings.clip_norm or math.inf
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm > limit:
            torch.nn.utils.clip_grads_with_norm_(self.network.parameters(), limit, norm)
        return float(norm)

    def _refuse_broken(self, total: float, norm: float, mean: float, count: float) -> None:
        """Stop before a bad gradient reaches the weights, and keep the state as it was before this step."""
        spike = self.settings.spike_factor
        spiked = spike is not None and count > 100 and total > spike * mean
        if math.isfinite(total) and math.isfinite(norm) and not spiked:
            return
        self.optimizer.zero_grad(set_to_none=True)
        what = f"jumped to {total:.3g} (its running mean is {mean:.3g})" if spiked else "is not a number"
        kept = "before anything was learnt"
        if self.course.step:
            self.save()
            kept = f"with the state of step {self.course.step:,} saved in {self.run}"
        raise Diverged(f"the loss {what} at step {self.course.step + 1:,}; training stopped {kept}. Start again with "
                        "a lower training.learning_rate, a longer training.warmup_steps or training.clip_norm=1.0.")

    @torch.inference_mode()
    def validate(self) -> dict[str, Any]:
        """The mean losses on held-out text, beside what knowing only the frequencies would lose there; of tasks that
        have begun."""
        length = self.supply.length_at(self._used())
        last = max(self.course.step - 1, 0)
        begun = {o.name for o in self.objectives if has_begun(o, last, self.course.used)}
        sums: dict[str, list[float]] = {}
        seen: dict[str, list[Batch]] = {}
        self.network.eval()
        torch.manual_seed(self.seed)  # a generator draws (ELECTRA): the same each time, whenever the run was resumed
        state: State | None = None
        with stage("validating", len(looked_at := self._looks_at(length)), "batches") as work:
            for group, batch in looked_at:
                work.advance()
                objectives = tuple(objective for objective in group if objective.name in begun)
                if not objectives:
                    continue
                found = self.passes.losses(objectives, batch, state if batch.continues else None)
                state = found.state
                for objective in objectives:
                    sums.setdefault(objective.name, []).append(float(found.losses[objective.name]))
                    seen.setdefault(objective.name, []).append(batch)
        self.layers.train()
        losses = {name: float(np.mean(values)) for name, values in sums.items()}
        baselines = {objective.name: objective.mean_baseline(seen[objective.name], self.unigram)
                     for objective in self.objectives if objective.name in seen}
        return {"validation_loss": _reported(losses, self.objectives), "validation_losses": losses,
                "unigram_loss": _reported(baselines, self.objectives), "baselines": baselines}

    def _looks_at(self, length: int) -> Sequence[tuple[tuple[Scoring, ...], Batch]]:
        if length not in self._held_out:
            self._held_out[length] = self.supply.validation_batches(length)
        return self._held_out[length]

    def _floor_of(self, prepared: Prepared) -> float | None:
        """What knowing only the frequencies would lose on a batch: the number beside the loss in the progress line."""
        floors: dict[str, float] = {}
        for objective in prepared.objectives:
            floors |= objective.baseline(prepared.batch, self.unigram)
        return _reported(floors, prepared.objectives)

    def save(self) -> None:
        course = self.course
        course.best = None if self.selection is None else asdict(self.selection.best)
        course.log = self.log.written()
        values = {key: value for key, value in vars(course).items() if key not in ("step", "tokens")}
        memories = {feed: memory.tensors() for feed, memory in self.passes.memories.items()}
        save_checkpoint(self.run, self.network, self.optimizer, Standing(course.step, course.tokens, values, memories),
                        self.settings.keep_checkpoints)
        if self.selection is not None:
            self.selection.tidy()

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
                "tokens_per_second": course.tokens / max(course.seconds, 1e-9), "seconds": course.seconds,
                "elapsed_seconds": course.lasted, "parameters": self.network.parameter_count(),
                "precision": str(self.precision).removeprefix("torch."), "device": self.device.type,
                "threads": self.threads}


def _reported(losses: dict[str, float], objectives: Sequence[Scoring]) -> float | None:
    """The one number people compare: the weighted mean over tasks that guess tokens, or over all if none does."""
    present = [objective for objective in objectives if objective.name in losses]
    chosen = [objective for objective in present if objective.guesses_tokens] or present
    if not chosen:
        return None
    return sum(losses[o.name] * o.weight for o in chosen) / sum(o.weight for o in chosen)
