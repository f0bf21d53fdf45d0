"""Find the learning rate of a fine-tuning: a range test (arXiv:1506.01186, section 3.3).

A short training from the start weights raises the learning rate exponentially, until the loss diverges. The loss stays
flat while the rate is too low, falls, and rises again. The choice is between the rate where it falls fastest and the
rate where it is lowest (Smith and fastai read the same curve by eye). Then the run starts anew with this rate; the
curve stays in the run folder, so that a resumed run does not repeat the test.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stemma import registry
from stemma.checksummed_files import has_checksum, read_verified_object, write_file, write_object
from stemma.device import seed_generators
from stemma.errors import Interrupted, UserError, pluralize
from stemma.recipe_loading import Recipe
from stemma.schema.training import GRADIENT_DESCENT
from stemma.tasks.runs.finetune_defaults import scientific
from stemma.tasks.runs.finetune_loader import FinetuneLoader
from stemma.training.gradient_descent import GradientDescent
from stemma.training.learning_rate import LearningRate
from stemma.training.method import StepFailed
from stemma.training.run_folder import RECIPE, read_run
from stemma.training.signals import deferred_signals
from stemma.training.train_state import TrainState
from stemma.training.trainer import Trainer

logger = logging.getLogger(__name__)

FILE = "learning_rate_search.json"
ORIGIN = "range test"  # origin of the learning rate in the recipe
# Steps of the test: at most those of the run and those of one epoch, but at least MIN_STEPS. In a second epoch the loss
# falls fastest at the rate that memorizes the examples fastest.
MAX_STEPS, MIN_STEPS = 100, 20
# Rates to try, relative to the default.
LOWEST, HIGHEST = 1 / 50, 10.0
WIDTH = 0.15  # of the smoothing of the curve: standard deviation in powers of ten of the rate
DIVERGED = 1.5  # the test ends when the running mean of the loss is above this multiple of its start
MIN_DROP = 0.02  # fraction of the first loss by which the smoothed loss must fall,
# and by how many standard errors. Losses of batches differ without any training: of 1,000 curves of noise alone (20 to
# 100 steps) 3% to 6% fall as much, because the highest and the lowest point of a curve are compared.
MIN_STANDARD_ERRORS = 3.5
ROWS = 11  # of the table


def check_one_rate(recipe: Recipe, overridden: Collection[str], several: bool, find: bool) -> None:
    """Check that the learning rate is given in one way only."""
    if several and find:
        raise UserError("--rates and --find-rate exclude each other; give one of them.")
    option = "--rates" if several else "--find-rate"
    for key in ("training.learning_rate", "finetuning.learning_rate"):
        if (several or find) and key in overridden:
            raise UserError(f"{option} and {key} exclude each other; give one of them.")
    kind = recipe.settings.training.method_settings.kind
    if find and kind != GRADIENT_DESCENT:
        raise UserError(f"--find-rate needs training by gradient descent, and training.method is {kind}; leave it out.")


class RisingRate(LearningRate):
    """Rises exponentially from `low` to `high`."""

    def __init__(self, low: float, high: float, steps: int):
        self.low, self.high, self.steps = low, high, steps

    def at(self, state: TrainState, progress: float) -> float:
        return self.low * math.exp(math.log(self.high / self.low) * state.step / (self.steps - 1))


@dataclass(frozen=True)
class RangeTest:
    rates: list[float]
    losses: list[float]  # before the update with each rate
    diverged: bool

    def _weights(self) -> NDArray[np.float64]:
        """(rates, losses) weights of the smoothing."""
        exponents = np.log10(self.rates)
        weights = np.exp(-0.5 * ((exponents[:, None] - exponents) / WIDTH) ** 2)
        normalized: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return normalized

    def smoothed(self) -> list[float]:
        """The losses, averaged over neighbouring rates: one batch says little."""
        return [float(value) for value in self._weights() @ np.array(self.losses)]

    def doubt(self) -> str | None:
        """Why no rate can be chosen; None if the loss clearly falls."""
        if len(self.rates) < 3:
            return "the loss diverged in the first steps"
        smoothed, weights = np.array(self.smoothed()), self._weights()
        lowest = int(smoothed.argmin())
        if lowest == 0:
            return "the loss did not fall at any learning rate"
        highest = int(smoothed[:lowest].argmax())
        drop = smoothed[highest] - smoothed[lowest]
        if drop < MIN_DROP * smoothed[0]:
            return f"the loss fell by only {drop / smoothed[0]:.1%}"
        # before they rise, successive losses differ by the noise of the batches and hardly by the training
        before = np.array(self.losses[:max(lowest + 1, len(self.losses) // 2)])
        noise = np.sqrt(np.mean(np.diff(before) ** 2) / 2)
        if drop < MIN_STANDARD_ERRORS * noise * np.linalg.norm(weights[highest] - weights[lowest]):
            return f"the loss fell by {drop / smoothed[0]:.1%}, which is within the noise of its batches"
        return None

    def best_rate(self) -> float | None:
        """The geometric mean of the rate where the loss falls fastest and the rate where it is lowest; None if it does
        not clearly fall."""
        if self.doubt():
            return None
        smoothed = np.array(self.smoothed())
        lowest = int(smoothed.argmin())
        slopes = np.diff(smoothed[:lowest + 1])  # steps are equal on a logarithmic scale
        steepest = int(slopes.argmin())
        return float(f"{math.sqrt(self.rates[steepest] * self.rates[lowest]):.2g}")


def range_test(trainer: Trainer, default: float, steps: int) -> RangeTest:
    """Train `trainer` with rising rates; it and its network cannot be used afterwards."""
    method, state = trainer.method, TrainState()
    assert isinstance(method, GradientDescent)
    method.learning_rate = RisingRate(LOWEST * default, HIGHEST * default, steps)
    rates, losses, mean = list[float](), list[float](), 0.0
    with deferred_signals() as received:
        for step in range(steps):
            state.step = step
            batch = method.next_batch(trainer.loader, state, trainer.loader.sequence_length_at(0.0), 0.0)
            seed_generators((trainer.seed * 1_000_003 + step) % 2**63)
            try:
                result = method.train_step(batch, state, 0.0)
            except StepFailed:
                return RangeTest(rates, losses, True)
            rates.append(method.learning_rate.at(state, 0.0))
            losses.append(sum(result.losses.values()))
            mean = 0.9 * mean + 0.1 * losses[-1]
            start = sum(losses[:steps // 10]) / (steps // 10)
            if step >= steps // 5 and mean / (1 - math.pow(0.9, step + 1)) > DIVERGED * start:
                return RangeTest(rates, losses, True)
            if received:
                raise Interrupted(f"stopped while looking for the learning rate; `stemma resume {trainer.run}` looks "
                                  "again.")
    return RangeTest(rates, losses, False)


def find_rate(run: Path, open_trainer: Callable[[], Trainer],
              parts: Sequence[registry.RegistryEntry] = ()) -> dict[str, Any] | None:
    """The result of the range test of a run, which is made now unless it is in the run folder; its rate is in the
    recipe afterwards. None: the run does not ask for it."""
    recipe, config = read_run(run)
    if config.task is None or not config.task.get("find_rate"):
        return None
    found = read_search(run)
    if found is None:
        steps = config.budget.amount if config.budget.unit == "steps" else math.inf
        found = _search(recipe, steps, config.task.get("steps_in_epoch"), open_trainer)
        write_object(run / FILE, found)
    if recipe.settings.training.learning_rate != found["learning_rate"]:
        write_file(run / RECIPE, recipe.with_changes({"training.learning_rate": found["learning_rate"]},
                                                     ORIGIN).to_toml(parts))
    return found


def read_search(run: Path) -> dict[str, Any] | None:
    file = run / FILE
    if not file.is_file() and not has_checksum(file):
        return None
    return read_verified_object(file, "bring it back, or start the fine-tune again in another folder.")


def search_steps(run_steps: float, epoch_steps: float) -> int:
    """Steps of the test of a run of this length."""
    return int(min(MAX_STEPS, max(MIN_STEPS, min(run_steps, epoch_steps))))


def _search(recipe: Recipe, run_steps: float, epoch_steps: int | None,
            open_trainer: Callable[[], Trainer]) -> dict[str, Any]:
    default = recipe.settings.training.learning_rate
    trainer = open_trainer()
    if epoch_steps is None:
        assert isinstance(trainer.loader, FinetuneLoader)
        epoch_steps = trainer.loader.steps_in_epoch()
    steps = search_steps(run_steps, epoch_steps)
    logger.info(f"looking for the learning rate: at most {steps} steps, from {scientific(LOWEST * default)} to "
                f"{scientific(HIGHEST * default)}")
    try:
        test = range_test(trainer, default, steps)
    finally:
        trainer.loader.close()
        trainer.log.close()
    smoothed = test.smoothed() if test.rates else []
    best = test.best_rate()
    _show(test, smoothed, best)
    if doubt := test.doubt():
        logger.warning(f"{doubt}, so the default of {scientific(default)} stays; state training.learning_rate if you "
                       "know a better one.")
    curve = [{"learning_rate": rate, "loss": loss, "smoothed_loss": mean}
             for rate, loss, mean in zip(test.rates, test.losses, smoothed, strict=True)]
    return {"learning_rate": default if best is None else best, "default": default, "found": best is not None,
            "diverged": test.diverged, "steps": len(test.rates), "curve": curve}


def _show(test: RangeTest, smoothed: Sequence[float], best: float | None) -> None:
    """A table of the smoothed curve, with a bar."""
    if not test.rates:
        return
    top, low = max(smoothed), min(smoothed)
    lines = ["learning rate    loss"]
    for index in np.unique(np.linspace(0, len(test.rates) - 1, ROWS).round().astype(int)):
        bar = "#" * round(30 * (smoothed[index] - low) / (top - low or 1))
        lines.append(f"{scientific(float(f'{test.rates[index]:.2g}')):>13}  {smoothed[index]:6.3f}  {bar}".rstrip())
    ended = f"; it diverged after {pluralize(len(test.rates), 'step')}" if test.diverged else ""
    chosen = "" if best is None else f"\nchosen: learning rate {scientific(best)}{ended}"
    logger.info("\n".join(lines) + chosen)
