"""One block applied over and over: the Universal Transformer (arXiv:1807.03819).

Before every step each place is told where it stands and which step this is. With halting, each place has its own
number of steps: a unit looks at the state that enters a step and says how likely this is the last one; once the
probabilities add up, the place's output is fixed, a mean of the states it went through. Its state goes on being
transformed, so that places which still think can look at it (the paper's text says that it is only copied; this is the
listing of its appendix C); and as in that listing, a new state is mixed in as new * p + old * (1 - p).
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
    """Of an encoder; or of a decoder, whose block also attends to the encoder's final output at every step."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__(settings, replace(part, layers=1))
        assert isinstance(part.body, RecurrentBodySettings)
        self.steps = part.layers
        self.position_embedding = build_position_scheme(settings).build_embedding(settings.width) if settings.position.addable_per_step else None
        self.halting = Halting(settings, part.body.halting) if part.body.halting else None

    def layer_groups(self) -> list[list[nn.Module]]:
        (modules,) = super().layer_groups()
        return [modules + ([] if self.halting is None else [self.halting])]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        block, output = self.blocks[0], StackOutput(x, hidden_states=[x] if stack_input.keep_hidden_states else None)
        if stack_input.cross_cache is not None:  # keys and values of the other part's output are the same at every step
            across = stack_input.cross_cache.for_one_pass()
            across.keys_and_values(0, block.cross.keys_and_values)
            stack_input = replace(stack_input, cross_cache=across)
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
            # what a cache keeps must be complete: a later text may take more steps
            if halting_state is not None and stack_input.cache is None and not halting_state.any_running():
                break
        if halting_state is not None and self.halting is not None:
            x, tokens = halting_state.output, stack_input.token_mask
            counted = torch.ones_like(halting_state.steps) if tokens is None else tokens.to(x.dtype)
            ponder_mean = (halting_state.ponder() * counted).sum() / counted.sum().clamp(min=1)
            output.auxiliary_losses["ponder"] = self.halting.cost * ponder_mean
            output.metrics["steps"] = halting_state.steps if tokens is None else \
                halting_state.steps.masked_fill(~tokens, torch.nan)
        output.last_hidden_state = self.finish(x)
        return output

    def layer_context(self, layer_index: int, x: Tensor, stack_input: StackInput) -> LayerContext:
        """Each step has its own keys and values of the text, and all have the same ones of another part's output."""
        context = super().layer_context(layer_index, x, stack_input)
        return context if stack_input.cross_cache is None else replace(context, layer_index=0)

    def timing_signal(self, x: Tensor, stack_input: StackInput, step: int) -> Tensor:
        """(L, width): sinusoids of the position plus sinusoids of the step, both from 0 as in the authors' code."""
        time = SinusoidalPositionEmbedding.encode(torch.tensor([float(step)], device=x.device), x.shape[2])
        if self.position_embedding is None:
            return time
        return self.position_embedding(x, stack_input.position_ids) + time


class Halting(nn.Module):
    def __init__(self, network: NetworkSettings, settings: HaltingSettings):
        super().__init__()
        self.threshold, self.cost = settings.threshold, settings.cost
        self.assign_remainder = settings.limit == "full"
        self.unit = Linear(network.width, 1, True, default_initializer(network, network.width),
                           bias_start=settings.bias)

    def start(self, x: Tensor) -> HaltingState:
        return HaltingState(self, x)


class HaltingState:
    """How far each place has come: adaptive computation time (arXiv:1603.08983), all places at once."""

    def __init__(self, halting: Halting, x: Tensor):
        self.halting = halting
        self.probability = x.new_zeros(x.shape[:2])  # spent so far
        self.remainder = x.new_zeros(x.shape[:2])  # what was left at the last step
        self.steps = x.new_zeros(x.shape[:2])
        self.output = torch.zeros_like(x)
        self.weight = self.probability

    def update(self, x: Tensor, last: bool) -> None:
        """From the state that enters a step: who goes on, who takes his last step, and how much it weighs."""
        halting_probability = torch.sigmoid(self.halting.unit(x).squeeze(-1).float()).to(x.dtype)
        running = self.probability < 1.0
        spent = self.probability + halting_probability * running
        halts = running & ((spent > self.halting.threshold) | (last and self.halting.assign_remainder))
        goes_on = running & ~halts
        self.probability = self.probability + halting_probability * goes_on
        self.remainder = self.remainder + halts * (1 - self.probability)
        self.probability = self.probability + halts * self.remainder
        self.steps = self.steps + running
        self.weight = halting_probability * goes_on + self.remainder * halts

    def accumulate(self, x: Tensor) -> None:
        weight = self.weight[:, :, None]
        self.output = x * weight + self.output * (1 - weight)

    def any_running(self) -> bool:
        return bool((self.probability < self.halting.threshold).any())

    def ponder(self) -> Tensor:
        """(B, L): steps taken, and what was left at the last one, which alone has a gradient."""
        return self.steps + self.remainder
