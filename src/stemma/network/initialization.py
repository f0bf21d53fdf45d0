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
class Initializer:
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

    def scaled(self, factor: float) -> Initializer:
        return Initializer(self.std * factor, self.truncated)


def default_initializer(settings: NetworkSettings, fan_in: int | None = None) -> Initializer:
    """The network's usual one; of a matrix with so many `inputs`, where these decide (T5)."""
    chosen = settings.initialization
    std = fan_in**-0.5 if chosen.by_input and fan_in is not None else chosen.std_for(settings.width)
    return Initializer(std, chosen.distribution != "normal")


def output_initializer(settings: NetworkSettings, fan_in: int) -> Initializer:
    """Of a matrix whose product is added to the residual."""
    chosen, usual = settings.initialization, default_initializer(settings, fan_in)
    if chosen.zero_output:
        return Initializer(0.0)
    if chosen.residual:  # smaller by the root of how many are added (GPT-2)
        return Initializer(chosen.std_for(settings.width) / math.sqrt(2 * settings.layers), usual.truncated)
    return usual


class Linear(nn.Linear):
    """A linear map that starts by a `Initializer`; `parts` of them stand row upon row where each has its own."""

    __call__: Callable[..., Tensor]

    def __init__(self, in_features: int, out_features: int, bias: bool, initializer: Initializer,
                 *further_initializers: Initializer, bias_start: float = 0.0):
        # before the base class, which resets
        self.initializers, self.bias_start = (initializer, *further_initializers), bias_start
        super().__init__(in_features, out_features, bias)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for part, draw in zip(self.weight.chunk(len(self.initializers)), self.initializers, strict=True):
                draw(part)
            if self.bias is not None:
                nn.init.constant_(self.bias, self.bias_start)


class LookupEmbedding(nn.Embedding):
    """An embedding that starts by a `Initializer`."""

    __call__: Callable[..., Tensor]

    def __init__(self, num_embeddings: int, width: int, initializer: Initializer):
        self.initializer = initializer
        super().__init__(num_embeddings, width)

    def reset_parameters(self) -> None:
        self.initializer(self.weight)


class DepthwiseConv(nn.Conv1d):
    """A depth-wise convolution without a bias that starts by a `Initializer`."""

    __call__: Callable[..., Tensor]

    def __init__(self, width: int, kernel_size: int, initializer: Initializer):
        self.initializer = initializer
        super().__init__(width, width, kernel_size, groups=width, bias=False)

    def reset_parameters(self) -> None:
        self.initializer(self.weight)
