"""Gradient descent: forward and backward pass, gradient clipping, optimizer step at the scheduled learning rate."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch

from stemma.training.layerwise import LayerFreezing, layer_lr_scales
from stemma.training.learning_rate import LearningRate
from stemma.training.loader import PreparedBatch
from stemma.training.method import Method, MethodSetup, MethodState, StepFailed, StepMetrics
from stemma.training.optimizer_state import OptimizerState
from stemma.training.optimizers import build_optimizer, set_learning_rate
from stemma.training.train_state import TrainState
from stemma.training.weight_average import PREFIX, TriggeredAverage, WeightAverage

UPDATES = "average_updates"  # number of updates of the average, in a checkpoint
VALIDATIONS = "average_validations"  # losses that decide when an average begins
SMOOTHING = 0.98  # of the running mean of the loss, for spike detection
LEAST_MEAN = 1.0  # the loss of a classifier that is nearly always right varies by large factors from batch to batch
ADVICE = "a lower training.learning_rate, a longer training.warmup_steps or training.clip_norm=1.0"


class GradientDescent(Method):
    def __init__(self, setup: MethodSetup):
        super().__init__(setup)
        settings = self.settings = setup.settings.training
        self.layer_freezing = LayerFreezing(self.network, settings)
        self.layer_freezing.set_train_mode()
        lr_scales = layer_lr_scales(self.network, settings.layer_decay, settings.layer_decay_top or 1) \
            if settings.layer_decay else None
        self.optimizer = build_optimizer(self.network, settings.optimizer, settings.learning_rate, lr_scales,
                                         self.forward_backward.training_step.precision)
        self.learning_rate = LearningRate(setup.settings, setup.budget)
        self._optimizer_state = OptimizerState(self.network, self.optimizer)
        self.average = WeightAverage(self.network, settings.ema) if settings.ema is not None else \
            None if settings.average_after is None else TriggeredAverage(self.network, settings.average_after)
        self._parameters = list(self.network.parameters())  # walking through the modules takes a millisecond

    def train_step(self, prepared: PreparedBatch, state: TrainState, progress: float) -> StepMetrics:
        learning_rate = self.learning_rate.at(state, progress)
        set_learning_rate(self.optimizer, learning_rate)
        self.layer_freezing.unfreeze_for_step(state.step)
        result = self.forward_backward.forward_backward(prepared)
        norm = self._clip()
        names = ",".join(objective.name for objective in prepared.objectives)
        self._check_divergence(result.total, norm, *state.means.get(names, [math.inf, 0]))
        self.forward_backward.store_memory(prepared.sampler_key, result.memory)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update()
        mean, count = state.means.get(names, [result.total, 0])
        state.means[names] = [SMOOTHING * mean + (1 - SMOOTHING) * result.total, count + 1]
        measures = {"measures": result.metrics} if result.metrics else {}
        return StepMetrics(result.losses, result.metrics,
                           {"learning_rate": learning_rate, **measures, "gradient_norm": norm})

    def set_train_mode(self) -> None:
        self.layer_freezing.set_train_mode()

    def warning(self) -> str | None:
        budget = self.setup.budget
        if budget.unit == "steps" and (num_frozen := self.layer_freezing.num_never_unfrozen(budget.amount)):
            return (f"with training.unfreeze = {self.settings.unfreeze} the {num_frozen} lowest of "
                    f"{self.layer_freezing.top_index} layers (the embedding counted) stay frozen for all of "
                    f"{budget.describe()}.")
        return None

    def state(self) -> MethodState:
        tensors, values = self._optimizer_state.state()
        if self.average is None:
            return MethodState(tensors, values)
        values = {**values, UPDATES: self.average.num_updates}
        if isinstance(self.average, TriggeredAverage):
            values[VALIDATIONS] = self.average.losses
        return MethodState({**tensors, **self.average.tensors()}, values)

    def incompatibility(self, values: dict[str, Any]) -> str | None:
        if (self.average is None) is (UPDATES in values):
            return f"{'an' if UPDATES in values else 'no'} average of the weights (training.ema or average_after)"
        return self._optimizer_state.incompatibility(values)

    def restore(self, state: MethodState) -> None:
        averages = {name: tensor for name, tensor in state.tensors.items() if name.startswith(PREFIX)}
        others = {name: tensor for name, tensor in state.tensors.items() if name not in averages}
        self._optimizer_state.restore(MethodState(others, state.values))
        if self.average is not None:
            self.average.restore(averages, state.values[UPDATES])
        if isinstance(self.average, TriggeredAverage):
            self.average.restore_losses(state.values[VALIDATIONS])

    def evaluated_weights(self) -> AbstractContextManager[None]:
        return super().evaluated_weights() if self.average is None else self.average.applied()

    def live_weights(self) -> AbstractContextManager[None]:
        return super().live_weights() if self.average is None else self.average.live_weights()

    def after_validation(self, loss: float) -> None:
        if isinstance(self.average, TriggeredAverage):
            self.average.after_validation(loss)

    def finish(self) -> None:
        if self.average is not None:
            self.average.copy_to_network()

    def _clip(self) -> float:
        """Clip the gradients and return their norm. Below the limit nothing is scaled, which saves a pass over them."""
        limit = self.settings.clip_norm or math.inf
        embedding_gradient = self.forward_backward.embedding_gradient
        gradients = [embedding_gradient.nonzero_rows(parameter.grad) for parameter in self._parameters
                     if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm > limit:
            torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))
            embedding_gradient.rescale()
        return float(norm)

    def _check_divergence(self, total: float, norm: float, mean: float, count: float) -> None:
        """Fail before a bad gradient reaches the weights."""
        spike = self.settings.spike_factor
        spiked = spike is not None and count > 100 and total > spike * max(mean, LEAST_MEAN)
        if math.isfinite(total) and math.isfinite(norm) and not spiked:
            return
        self.optimizer.zero_grad(set_to_none=True)
        raise StepFailed(f"jumped to {total:.3g} (its running mean is {mean:.3g})" if spiked else "is not a number",
                         ADVICE)
