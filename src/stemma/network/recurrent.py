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
from stemma.network.initialization import Linear, draw_of
from stemma.network.kinds import HaltingSettings, RecurrentDepth
from stemma.network.position import Sinusoidal
from stemma.network.positions import position_of
from stemma.network.stack import Stack
from stemma.network.streams import Context
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class RecurrentStack(Stack):
    """Of an encoder; or of a decoder, whose block also attends to the encoder's final output at every step."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__(settings, replace(part, layers=1))
        assert isinstance(part.body, RecurrentDepth)
        self.steps = part.layers
        self.places = position_of(settings).embedding(settings.width) if settings.position.per_step else None
        self.halting = Halting(settings, part.body.halting) if part.body.halting else None

    def layer_groups(self) -> list[list[nn.Module]]:
        (modules,) = super().layer_groups()
        return [modules + ([] if self.halting is None else [self.halting])]

    def forward(self, x: Tensor, given: StackInput) -> StackOutput:
        block, output = self.blocks[0], StackOutput(x, layers=[x] if given.keep_layers else None)
        if given.across is not None:  # keys and values of the other part's output are the same at every step
            across = given.across.for_one_pass()
            across.kept(0, block.cross.keys_and_values)
            given = replace(given, across=across)
        course = None if self.halting is None else self.halting.begin(x)
        for step in range(self.steps):
            x = x + self.signal(x, given, step)
            if course is not None:
                course.decide(x, last=step == self.steps - 1)
            context = self.context(step, x, given)
            output.remembered += self.remembered(step, x, given)
            if given.observe:
                x, scores = block.observe(x, context)
                output.scores.append(scores)
            else:
                x = block(x, context)
            if course is not None:
                course.mix(x)
            if output.layers is not None:
                output.layers.append(x)
            # what a cache keeps must be complete: a later text may take more steps
            if course is not None and given.cache is None and not course.running():
                break
        if course is not None and self.halting is not None:
            x, tokens = course.output, given.counted
            counted = torch.ones_like(course.steps) if tokens is None else tokens.to(x.dtype)
            pondered = (course.ponder() * counted).sum() / counted.sum().clamp(min=1)
            output.auxiliary["ponder"] = self.halting.cost * pondered
            output.measures["steps"] = course.steps if tokens is None else \
                course.steps.masked_fill(~tokens, torch.nan)
        output.x = self.finish(x)
        return output

    def context(self, number: int, x: Tensor, given: StackInput) -> Context:
        """Each step has its own keys and values of the text, and all have the same ones of another part's output."""
        context = super().context(number, x, given)
        return context if given.across is None else replace(context, layer=0)

    def signal(self, x: Tensor, given: StackInput, step: int) -> Tensor:
        """(L, width): sinusoids of the position plus sinusoids of the step, both from 0 as in the authors' code."""
        time = Sinusoidal.encode(torch.tensor([float(step)], device=x.device), x.shape[2])
        if self.places is None:
            return time
        return self.places(x, given.positions) + time


class Halting(nn.Module):
    def __init__(self, network: NetworkSettings, settings: HaltingSettings):
        super().__init__()
        self.threshold, self.cost = settings.threshold, settings.cost
        self.full = settings.limit == "full"
        self.unit = Linear(network.width, 1, True, draw_of(network, network.width), start=settings.bias)

    def begin(self, x: Tensor) -> Course:
        return Course(self, x)


class Course:
    """How far each place has come: adaptive computation time (arXiv:1603.08983), all places at once."""

    def __init__(self, halting: Halting, x: Tensor):
        self.halting = halting
        self.probability = x.new_zeros(x.shape[:2])  # spent so far
        self.remainder = x.new_zeros(x.shape[:2])  # what was left at the last step
        self.steps = x.new_zeros(x.shape[:2])
        self.output = torch.zeros_like(x)
        self.weight = self.probability

    def decide(self, x: Tensor, last: bool) -> None:
        """From the state that enters a step: who goes on, who takes his last step, and how much it weighs."""
        chance = torch.sigmoid(self.halting.unit(x).squeeze(-1).float()).to(x.dtype)
        running = self.probability < 1.0
        spent = self.probability + chance * running
        halts = running & ((spent > self.halting.threshold) | (last and self.halting.full))
        goes_on = running & ~halts
        self.probability = self.probability + chance * goes_on
        self.remainder = self.remainder + halts * (1 - self.probability)
        self.probability = self.probability + halts * self.remainder
        self.steps = self.steps + running
        self.weight = chance * goes_on + self.remainder * halts

    def mix(self, x: Tensor) -> None:
        weight = self.weight[:, :, None]
        self.output = x * weight + self.output * (1 - weight)

    def running(self) -> bool:
        return bool((self.probability < self.halting.threshold).any())

    def ponder(self) -> Tensor:
        """(B, L): steps taken, and what was left at the last one, which alone has a gradient."""
        return self.steps + self.remainder
