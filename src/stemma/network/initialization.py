"""How weights start. A module draws its own (`reset_parameters`), by what it is given when it is built: matrices from
small normals, biases at zero, norms as the identity; and smaller, or zero, where the output is added to a residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stemma.schema.network import NetworkSettings


@dataclass(frozen=True)
class Draw:
    """A normal distribution around zero, cut off at two standard deviations or not."""

    std: float
    truncated: bool = True

    def __call__(self, weight: Tensor) -> None:
        if self.std == 0.0:
            nn.init.zeros_(weight)
        elif self.truncated:
            nn.init.trunc_normal_(weight, std=self.std, a=-2 * self.std, b=2 * self.std)
        else:
            nn.init.normal_(weight, std=self.std)

    def times(self, factor: float) -> Draw:
        return Draw(self.std * factor, self.truncated)


def draw_of(settings: NetworkSettings, inputs: int | None = None) -> Draw:
    """The network's usual one; of a matrix with so many `inputs`, where these decide (T5)."""
    chosen = settings.initialization
    std = inputs**-0.5 if chosen.by_input and inputs is not None else chosen.scale(settings.width)
    return Draw(std, chosen.distribution != "normal")


def output_draw(settings: NetworkSettings, inputs: int) -> Draw:
    """Of a matrix whose product is added to the residual."""
    chosen, usual = settings.initialization, draw_of(settings, inputs)
    if chosen.zero_output:
        return Draw(0.0)
    if chosen.residual:  # smaller by the root of how many are added (GPT-2)
        return Draw(chosen.scale(settings.width) / math.sqrt(2 * settings.layers), usual.truncated)
    return usual


class Linear(nn.Linear):
    """A linear map that starts by a `Draw`; `parts` of them stand row upon row where each has its own."""

    __call__: Callable[..., Tensor]

    def __init__(self, inputs: int, outputs: int, bias: bool, draw: Draw, *parts: Draw, start: float = 0.0):
        self.draws, self.start = (draw, *parts), start  # before the base class, which resets
        super().__init__(inputs, outputs, bias)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for part, draw in zip(self.weight.chunk(len(self.draws)), self.draws, strict=True):
                draw(part)
            if self.bias is not None:
                nn.init.constant_(self.bias, self.start)


class LookupEmbedding(nn.Embedding):
    """An embedding that starts by a `Draw`."""

    __call__: Callable[..., Tensor]

    def __init__(self, rows: int, width: int, draw: Draw):
        self.draw = draw
        super().__init__(rows, width)

    def reset_parameters(self) -> None:
        self.draw(self.weight)


class Convolution(nn.Conv1d):
    """A depth-wise convolution without a bias that starts by a `Draw`."""

    __call__: Callable[..., Tensor]

    def __init__(self, width: int, kernel: int, draw: Draw):
        self.draw = draw
        super().__init__(width, width, kernel, groups=width, bias=False)

    def reset_parameters(self) -> None:
        self.draw(self.weight)
