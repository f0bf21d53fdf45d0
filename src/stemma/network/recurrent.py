"""One block applied over and over: the Universal Transformer (arXiv:1807.03819).

Before every step each place is told where it stands and which step this is. With halting, each place has its own
number of steps: a unit looks at the state that enters a step and says how likely this is the last one; once the
probabilities add up, the place's output is fixed, a mean of the states it went through. Its state goes on being
transformed, so that places which still think can look at it (the paper's text says that it is only copied; this is the
listing of its appendix C); and as in that listing, a new state is mixed in as new * p + old * (1 - p).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stemma.network.block import Block
from stemma.network.position import Sinusoidal
from stemma.network.stack import Pass, Stack
from stemma.schema.network import HaltingSettings, NetworkSettings, RecurrentDepth


class RecurrentStack(Stack):
    def __init__(self, settings: NetworkSettings):
        super().__init__(settings.model_copy(update={"layers": 1}))
        assert isinstance(settings.depth, RecurrentDepth)
        self.steps = settings.layers
        self.places = Sinusoidal(settings.width) if settings.position.kind == "sinusoidal" else None
        self.halting = Halting(settings.width, settings.depth.halting) if settings.depth.halting else None

    def forward(self, x: Tensor, way: Pass) -> Tensor:
        block = self.blocks[0]
        assert isinstance(block, Block)
        course = None if self.halting is None else self.halting.begin(x)
        for step in range(self.steps):
            x = x + self.signal(x, way, step)
            if course is not None:
                course.decide(x, last=step == self.steps - 1)
            x = self.apply_block(x, block, self.context(step, x, block, way))
            if course is not None:
                course.mix(x)
            if way.layers is not None:
                way.layers.append(x)
            # what a cache keeps must be complete: a later text may take more steps
            if course is not None and way.cache is None and not course.running():
                break
        if course is not None and self.halting is not None:
            x = course.output
            real = torch.ones_like(course.steps) if way.context.real is None else way.context.real.to(x.dtype)
            way.auxiliary["ponder"] = self.halting.cost * (course.ponder() * real).sum() / real.sum().clamp(min=1)
            way.measures["steps"] = course.steps * real
        return self.finish(x)

    def signal(self, x: Tensor, way: Pass, step: int) -> Tensor:
        """(L, width): sinusoids of the place plus sinusoids of the step, both from 0 as in the authors' code."""
        time = Sinusoidal.encode(torch.tensor([float(step)], device=x.device), x.shape[2])
        if self.places is None:
            return time
        return self.places(x, way.positions) + time


class Halting(nn.Module):
    def __init__(self, width: int, settings: HaltingSettings):
        super().__init__()
        self.threshold, self.cost, self.bias = settings.threshold, settings.cost, settings.bias
        self.full = settings.limit == "full"
        self.unit = nn.Linear(width, 1)

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
