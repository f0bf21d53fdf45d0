"""The training loop of every recipe and every training method.

Each step seeds torch from (seed, step), so no random state is stored. A checkpoint holds the weights, the state of the
method (optimizer) and counters; a resumed run ends with the same bytes as an uninterrupted one. After each step come,
in order: early stopping, callbacks, logging, checkpoints.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stemma import registry
from stemma.checksummed_files import record_finished_file
from stemma.device import seed_generators
from stemma.errors import Interrupted, UserError
from stemma.network.cache import Memory
from stemma.network.network import Network
from stemma.objectives.base import Objective
from stemma.recipe_loading import Recipe
from stemma.training.budget import Budget
from stemma.training.callbacks import CallbackList, StepReport, build_callbacks
from stemma.training.checkpoints import Checkpoint, load_latest, save_checkpoint
from stemma.training.early_stopping import BestValidation, EarlyStopping, MetricFn
from stemma.training.forward_backward import ForwardBackward
from stemma.training.hardware import resolve_precision, retain_freed_memory, run_device, set_num_threads
from stemma.training.loader import BatchLoader
from stemma.training.method import Method, MethodSetup, StepFailed
from stemma.training.progress_bar import ProgressBar
from stemma.training.run_log import LoggingCallback, RunLog
from stemma.training.signals import deferred_signals
from stemma.training.train_state import TrainState
from stemma.training.validation import Validator

logger = logging.getLogger(__name__)


class TrainingDivergedError(UserError):  # noqa: N818  (named after the event)
    """The loss is NaN or far above its running mean."""


class Trainer:
    def __init__(self, run: Path, recipe: Recipe, loader: BatchLoader, network: Network, budget: Budget, seed: int,
                 tensorboard: bool = False, show_progress: bool = False, metric_fn: MetricFn | None = None):
        settings = recipe.settings.training
        self.run, self.recipe, self.settings, self.budget = run, recipe, settings, budget
        self.seed, self.show_progress = seed, show_progress
        self.device = run_device(run)
        self.threads = set_num_threads(settings.threads)
        self.precision = resolve_precision(settings.precision, self.device)
        retain_freed_memory()
        self.network, self.loader = network.to(self.device), loader
        self.forward_backward = ForwardBackward(self.network, loader.objectives, settings, self.device, self.precision)
        setup = MethodSetup(self.network, recipe.settings, self.forward_backward, budget, loader, run)
        self.method: Method = registry.get("method", settings.method_settings.kind).build(settings.method_settings,
                                                                                          setup)
        self.method.set_train_mode()
        self.validation = Validator(loader, self.network, self.forward_backward, seed)
        keeps_best = settings.keep_best or settings.patience is not None
        self.early_stopping = EarlyStopping(run, network, settings.patience, metric_fn) if keeps_best else None
        self.log = RunLog(run, tensorboard)
        self.callbacks = CallbackList([*([self.early_stopping] if self.early_stopping else []),
                                       *build_callbacks(settings), LoggingCallback(settings.log_every)])
        self.state = TrainState()
        self.last_validation: dict[str, Any] | None = None  # metrics of the last validation
        self.baseline_loss: float | None = None  # of the first batch with a headline loss

    def train(self) -> dict[str, Any]:
        """Run to the end of the budget, from the newest checkpoint if there is one."""
        with self:
            self.run_for()
            return self.summarize()

    def __enter__(self) -> Trainer:
        self._restore()
        self._check_settings()
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()
        self.log.close()

    def run_for(self, seconds: float = math.inf) -> bool:
        """Train for at most `seconds`, so that several runs can take turns; returns True at the end of training."""
        end_time = self.state.elapsed + seconds
        stopped_early = self.early_stopping is not None and self.early_stopping.should_stop
        finished = self._progress() >= 1 or self.state.ended or stopped_early
        with deferred_signals() as received, ProgressBar(self.recipe.label, self.budget.describe(),
                                                         self.show_progress) as progress:
            while not finished and self.state.elapsed < end_time:
                finished = self._step(progress)
                if received:
                    self.save()
                    raise Interrupted(f"stopped at step {self.state.step:,} and saved; `stemma resume {self.run}` "
                                      "goes on from there.")
        return finished

    def _restore(self) -> None:
        checkpoint = load_latest(self.run, self.network, self.method)
        if checkpoint is not None:
            self.state = TrainState(step=checkpoint.step, tokens=checkpoint.tokens, **checkpoint.state)
            self.forward_backward.memories = {key: Memory.from_tensors(layers).to(self.device)
                                              for key, layers in checkpoint.memories.items()}
            self.loader.restore(self.state.positions or {})
            for objective in self.loader.objectives:
                if objective.name in checkpoint.objectives and isinstance(objective, Objective):
                    objective.restore(checkpoint.objectives[objective.name])
            if self.early_stopping is not None and self.state.best is not None:
                self.early_stopping.best = BestValidation(**self.state.best)
        self.threads = self.state.threads = set_num_threads(self.settings.threads or self.state.threads)
        if warning := self.log.truncate_after(self.state.step, self.state.log):
            logger.warning(warning)

    def _check_settings(self) -> None:
        """Reject or warn about settings that cannot take effect in this run."""
        if self.early_stopping is not None and self.early_stopping.metric_fn is None \
                and not self.validation.batches(self.loader.sequence_length_at(0)):
            key = "keep_best" if self.settings.patience is None else "patience"
            raise UserError(f"training.{key} compares validation scores, and there is no validation data; hold out "
                            "some text with corpus.validation, or give dev examples with answers.")
        if warning := self.method.warning():
            logger.warning(warning)

    def _progress(self) -> float:
        return max(self.budget.progress(self.state.step, self.state.tokens, self.state.elapsed),
                   self.method.completed_fraction(self.state))

    def _step(self, progress: ProgressBar) -> bool:
        """One step, then callbacks, validation and checkpoint if they are due; returns True if it was the last."""
        state, start, progress_fraction = self.state, time.perf_counter(), self._progress()
        prepared = self.method.next_batch(self.loader, state, self.loader.sequence_length_at(progress_fraction),
                                          progress_fraction)
        seed_generators((self.seed * 1_000_003 + state.step) % 2**63)
        try:
            result = self.method.train_step(prepared, state, progress_fraction)
        except StepFailed as error:
            raise self._divergence_error(error) from None

        state.step += 1
        state.tokens += prepared.batch.num_tokens
        state.words += prepared.num_words
        spent = time.perf_counter() - start
        state.seconds += spent
        state.elapsed += spent
        state.lasted = state.elapsed
        state.used = progress_fraction
        state.losses, state.measures = result.losses, result.metrics
        loss = self.validation.headline_loss(result.losses, prepared.objectives)
        state.loss = state.loss if loss is None else loss
        state.positions = prepared.cursors
        if self.baseline_loss is None and loss is not None:
            self.baseline_loss = self.validation.baseline_loss(prepared)
        finished = self._log_validate_save(progress, StepReport(loss, result.losses, result.details,
                                                                 prepared.num_words))
        state.elapsed += time.perf_counter() - start - spent
        return finished

    def _log_validate_save(self, progress: ProgressBar, report: StepReport) -> bool:
        """Periodic logging, validation and checkpointing. Returns True when training ends: the budget is used, or a
        callback ends it."""
        state, settings = self.state, self.settings
        state.ended = self.callbacks.notify("on_step", self, report)
        finished = self._progress() >= 1 or state.ended
        if state.step % settings.validate_every == 0 or finished:
            with self.method.evaluated_weights():
                self.last_validation = self._evaluate()
                state.ended |= self.callbacks.notify("on_validation", self, self.last_validation)
            self.method.after_validation(self.last_validation["validation_loss"])
            self.method.set_train_mode()
            finished |= state.ended
        if state.step % settings.checkpoint_every == 0 or finished:
            self.save()
        progress_fraction = self._progress()
        seconds_left = state.elapsed * (1 - progress_fraction) / progress_fraction if progress_fraction else math.inf
        progress.update(state.step, min(progress_fraction, 1.0), state.loss or math.nan, self.baseline_loss,
                        state.tokens_per_second, max(seconds_left, 0.0))
        return finished

    def _divergence_error(self, error: StepFailed) -> TrainingDivergedError:
        """Save the state before the failed step, and describe it."""
        saved = "before anything was learnt"
        if self.state.step:
            self.save()
            saved = f"with the state of step {self.state.step:,} saved in {self.run}"
        return TrainingDivergedError(f"the loss {error.problem} at step {self.state.step + 1:,}; training stopped "
                                     f"{saved}. Start again with {error.advice}.")

    def validate(self) -> dict[str, Any]:
        """Mean validation losses and baselines."""
        with self.method.evaluated_weights():
            metrics = self._evaluate()
        self.method.set_train_mode()
        return metrics

    def _evaluate(self) -> dict[str, Any]:
        self.method.finish_network(self.state)
        return self.validation.evaluate(self.state, self.loader.sequence_length_at(self._progress()))

    def save(self) -> None:
        state = self.state
        state.best = None if self.early_stopping is None else asdict(self.early_stopping.best)
        state.log = self.log.file_digest()
        values = {key: value for key, value in vars(state).items() if key not in ("step", "tokens")
                  and (key != "words" or value)}
        memories = {key: memory.tensors() for key, memory in self.forward_backward.memories.items()}
        objectives = {objective.name: tensors for objective in self.loader.objectives
                      if isinstance(objective, Objective) and (tensors := objective.state())}
        with self.method.live_weights():  # a callback may save during a validation
            folder = save_checkpoint(self.run, self.network, self.method,
                                     Checkpoint(state.step, state.tokens, values, memories, objectives),
                                     self.settings.keep_checkpoints)
        self.callbacks.notify("on_checkpoint", self, folder)

    def summarize(self) -> dict[str, Any]:
        state = self.state
        record_finished_file(self.log.path)
        best: dict[str, Any] = {}
        self.method.finish_network(state)
        self.method.finish()  # `model/` gets the averaged weights; the last checkpoint has the live ones
        if self.early_stopping is not None and self.early_stopping.best.step != state.step:
            self.early_stopping.restore_best()
            self.last_validation = None
        if self.early_stopping is not None:
            best = {"best_step": self.early_stopping.best.step}
        held_out = self.last_validation or self._evaluate()  # None if the run was killed after its last step
        self.method.remove_files()
        return {"recipe": self.recipe.label, "steps": state.step, "tokens": state.tokens, "loss": state.loss,
                "losses": state.losses, "measures": state.measures, **held_out, **best,
                "tokens_per_second": state.tokens_per_second, "seconds": state.seconds,
                "elapsed_seconds": state.lasted, "parameters": self.network.parameter_count(),
                "precision": str(self.precision).removeprefix("torch."), "device": self.device.type,
                "threads": self.threads}
