"""The Universal Transformer: one block applied repeatedly (arXiv:1807.03819).

Before every step, embeddings of the position and of the step are added. With adaptive computation time, each position
has its own number of steps: a halting unit computes, from the state that enters a step, the probability that this step
is the last. Once the probabilities of a position add up to the threshold, its output is fixed: a weighted mean of its
states. Its state is still transformed, so that running positions attend to it, as in the listing of appendix C (the
paper's text says that the state is only copied). As in that listing, a new state is added as new * p + old * (1 - p).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stemma.network.body import StackInput, StackOutput
from stemma.network.initialization import Linear, default_initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.network.kinds import HaltingSettings, RecurrentBodySettings
from stemma.network.position_embedding import SinusoidalPositionEmbedding
from stemma.network.position_kinds import build_position_scheme
from stemma.network.stack import Stack
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class RecurrentStack(Stack):
    """The body of an encoder, or of a decoder, whose block attends to the encoder's final output at every step."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__(settings, replace(part, layers=1))
        assert isinstance(part.body, RecurrentBodySettings)
        self.steps = part.layers
        self.position_embedding = None
        if settings.position.addable_per_step:
            self.position_embedding = build_position_scheme(settings).build_embedding(settings.width)
        self.halting = Halting(settings, part.body.halting) if part.body.halting else None

    def layer_groups(self) -> list[list[nn.Module]]:
        (modules,) = super().layer_groups()
        return [modules + ([] if self.halting is None else [self.halting])]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        block, output = self.blocks[0], StackOutput(x, hidden_states=[x] if stack_input.keep_hidden_states else None)
        if stack_input.cross_cache is not None:  # keys and values of the encoder output are the same at every step
            cross_cache = stack_input.cross_cache.for_one_pass()
            cross_cache.keys_and_values(0, block.cross.keys_and_values)
            stack_input = replace(stack_input, cross_cache=cross_cache)
        halting_state = None if self.halting is None else self.halting.start(x)
        for step in range(self.steps):
            x = x + self.timing_signal(x, stack_input, step)
            if halting_state is not None:
                halting_state.update(x, last=step == self.steps - 1)
            context = self.layer_context(step, x, stack_input)
            output.memory += self.memory_update(step, x, stack_input)
            if stack_input.keep_attention_scores:
                x, scores = block.forward_with_scores(x, context)
                output.attention_scores.append(scores)
            else:
                x = block(x, context)
            if halting_state is not None:
                halting_state.accumulate(x)
            if output.hidden_states is not None:
                output.hidden_states.append(x)
            # with a cache all steps are computed: a later call may take more steps
            if halting_state is not None and stack_input.cache is None and not halting_state.any_running():
                break
        if halting_state is not None and self.halting is not None:
            x, token_mask = halting_state.output, stack_input.token_mask
            weights = torch.ones_like(halting_state.steps) if token_mask is None else token_mask.to(x.dtype)
            ponder_mean = (halting_state.ponder() * weights).sum() / weights.sum().clamp(min=1)
            output.auxiliary_losses["ponder"] = self.halting.cost * ponder_mean
            output.metrics["steps"] = halting_state.steps if token_mask is None else \
                halting_state.steps.masked_fill(~token_mask, torch.nan)
        output.last_hidden_state = self.finish(x)
        return output

    def layer_context(self, layer_index: int, x: Tensor, stack_input: StackInput) -> LayerContext:
        """Each step has its own keys and values of self-attention; all steps share those of cross-attention."""
        context = super().layer_context(layer_index, x, stack_input)
        return context if stack_input.cross_cache is None else replace(context, layer_index=0)

    def timing_signal(self, x: Tensor, stack_input: StackInput, step: int) -> Tensor:
        """(L, width): sinusoids of the position plus sinusoids of the step, both from 0 as in the authors' code."""
        step_signal = SinusoidalPositionEmbedding.encode(torch.tensor([float(step)], device=x.device), x.shape[2])
        if self.position_embedding is None:
            return step_signal
        return self.position_embedding(x, stack_input.position_ids) + step_signal


class Halting(nn.Module):
    """The halting unit of adaptive computation time."""

    def __init__(self, network: NetworkSettings, settings: HaltingSettings):
        super().__init__()
        self.threshold, self.cost = settings.threshold, settings.cost
        self.assign_remainder = settings.limit == "full"
        self.unit = Linear(network.width, 1, True, default_initializer(network, network.width),
                           bias_start=settings.bias)

    def start(self, x: Tensor) -> HaltingState:
        return HaltingState(self, x)


class HaltingState:
    """Adaptive computation time (arXiv:1603.08983): halting probabilities and weighted outputs of all positions."""

    def __init__(self, halting: Halting, x: Tensor):
        self.halting = halting
        self.probability = x.new_zeros(x.shape[:2])  # sum of the halting probabilities so far
        self.remainder = x.new_zeros(x.shape[:2])  # 1 - probability before the last step
        self.steps = x.new_zeros(x.shape[:2])
        self.output = torch.zeros_like(x)
        self.weight = self.probability

    def update(self, x: Tensor, last: bool) -> None:
        """Update halting from the state that enters a step: which positions continue, which halt, and the weight of
        this step's output."""
        halting_probability = torch.sigmoid(self.halting.unit(x).squeeze(-1).float()).to(x.dtype)
        running = self.probability < 1.0
        cumulative = self.probability + halting_probability * running
        halts = running & ((cumulative > self.halting.threshold) | (last and self.halting.assign_remainder))
        continues = running & ~halts
        self.probability = self.probability + halting_probability * continues
        self.remainder = self.remainder + halts * (1 - self.probability)
        self.probability = self.probability + halts * self.remainder
        self.steps = self.steps + running
        self.weight = halting_probability * continues + self.remainder * halts

    def accumulate(self, x: Tensor) -> None:
        """Add the output of a step to the weighted mean."""
        weight = self.weight[:, :, None]
        self.output = x * weight + self.output * (1 - weight)

    def any_running(self) -> bool:
        return bool((self.probability < self.halting.threshold).any())

    def ponder(self) -> Tensor:
        """(B, L) ponder cost: the number of steps plus the remainder, which alone has a gradient."""
        return self.steps + self.remainder
