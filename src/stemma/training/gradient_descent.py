"""Gradient descent: a pass forward and back, gradients clipped, a step of the optimizer at the scheduled learning rate.
"""

from __future__ import annotations

import math

import torch

from stemma.training.batches import Prepared
from stemma.training.course import Course
from stemma.training.depth import Layers, learning_rate_shares
from stemma.training.learning_rate import LearningRate
from stemma.training.method import Broken, Learnt, Method, MethodSetup, MethodState
from stemma.training.optimizer_state import OptimizerState
from stemma.training.optimizers import build_optimizer, set_learning_rate

SMOOTHING = 0.98  # of the running mean that a spike is measured against
ADVICE = "a lower training.learning_rate, a longer training.warmup_steps or training.clip_norm=1.0"


class GradientDescent(Method):
    def __init__(self, setup: MethodSetup):
        super().__init__(setup)
        settings = self.settings = setup.settings.training
        self.layers = Layers(self.network, settings)
        self.layers.train()
        shares = learning_rate_shares(self.network, settings.layer_decay, settings.layer_decay_top or 1) \
            if settings.layer_decay else None
        self.optimizer = build_optimizer(self.network, settings.optimizer, settings.learning_rate, shares,
                                         self.passes.step.precision)
        self.learning_rate = LearningRate(setup.settings, setup.budget)
        self._kept = OptimizerState(self.network, self.optimizer)

    def learn(self, prepared: Prepared, course: Course, used: float) -> Learnt:
        learning_rate = self.learning_rate.at(course, used)
        set_learning_rate(self.optimizer, learning_rate)
        self.layers.learn(course.step)
        outcome = self.passes.train(prepared)
        norm = self._clip()
        tasks = ",".join(objective.name for objective in prepared.objectives)
        self._refuse_broken(outcome.total, norm, *course.means.get(tasks, [math.inf, 0]))
        self.passes.remember(prepared.feed, outcome.memory)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mean, count = course.means.get(tasks, [outcome.total, 0])
        course.means[tasks] = [SMOOTHING * mean + (1 - SMOOTHING) * outcome.total, count + 1]
        measures = {"measures": outcome.measures} if outcome.measures else {}
        return Learnt(outcome.losses, outcome.measures,
                      {"learning_rate": learning_rate, **measures, "gradient_norm": norm})

    def train(self) -> None:
        self.layers.train()

    def remarks(self) -> str | None:
        budget = self.setup.budget
        if budget.unit == "steps" and (late := self.layers.never(budget.amount)):
            return (f"with training.unfreeze = {self.settings.unfreeze} the {late} lowest of {self.layers.top} layers "
                    f"(the embedding counted) have no turn in {budget.describe()}.")
        return None

    def state(self) -> MethodState:
        return self._kept.state()

    def refusal(self, values: dict[str, object]) -> str | None:
        return self._kept.refusal(values)

    def restore(self, state: MethodState) -> None:
        self._kept.restore(state)

    def _clip(self) -> float:
        """The gradients' norm; they are scaled down only where it is over the limit, which saves a pass over all."""
        limit = self.settings.clip_norm or math.inf
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm > limit:
            torch.nn.utils.clip_grads_with_norm_(self.network.parameters(), limit, norm)
        return float(norm)

    def _refuse_broken(self, total: float, norm: float, mean: float, count: float) -> None:
        """Stop before a bad gradient reaches the weights."""
        spike = self.settings.spike_factor
        spiked = spike is not None and count > 100 and total > spike * mean
        if math.isfinite(total) and math.isfinite(norm) and not spiked:
            return
        self.optimizer.zero_grad(set_to_none=True)
        raise Broken(f"jumped to {total:.3g} (its running mean is {mean:.3g})" if spiked else "is not a number", ADVICE)
