"""Weight initialization. Each module initializes itself (`reset_parameters`) by the initializer it is built with.

Matrices are sampled from a normal distribution, biases are zero, norms are the identity. Output projections of residual
branches start smaller, or at zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stemma.network.bf16_linear import linear
from stemma.schema.network import NetworkSettings


@dataclass(frozen=True)
class Initializer:
    """A normal distribution with mean zero, truncated at two standard deviations or not."""

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
    """The network's initializer; its std is 1 / sqrt(fan_in) if the recipe says so (T5)."""
    initialization = settings.initialization
    by_fan_in = initialization.fan_in and fan_in is not None
    std = fan_in**-0.5 if by_fan_in and fan_in is not None else initialization.std_for(settings.width)
    return Initializer(std, initialization.distribution != "normal")


def output_initializer(settings: NetworkSettings, fan_in: int) -> Initializer:
    """The initializer of output projections, whose result is added to the residual."""
    initialization, default = settings.initialization, default_initializer(settings, fan_in)
    if initialization.zero_output:
        return Initializer(0.0)
    if initialization.residual:  # divided by the square root of the number of residual additions (GPT-2)
        return Initializer(initialization.std_for(settings.width) / math.sqrt(2 * settings.layers), default.truncated)
    return default


class Linear(nn.Linear):
    """nn.Linear with an initializer. If several matrices are stored as one, each can have its own initializer."""

    __call__: Callable[..., Tensor]

    def __init__(self, in_features: int, out_features: int, bias: bool, initializer: Initializer,
                 *further_initializers: Initializer, bias_start: float = 0.0):
        # set before super().__init__, which calls reset_parameters
        self.initializers, self.bias_start = (initializer, *further_initializers), bias_start
        super().__init__(in_features, out_features, bias)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            matrices = self.weight.chunk(len(self.initializers))
            for matrix, initializer in zip(matrices, self.initializers, strict=True):
                initializer(matrix)
            if self.bias is not None:
                nn.init.constant_(self.bias, self.bias_start)


class LookupEmbedding(nn.Embedding):
    """nn.Embedding with an initializer."""

    __call__: Callable[..., Tensor]

    def __init__(self, num_embeddings: int, width: int, initializer: Initializer):
        self.initializer = initializer
        super().__init__(num_embeddings, width)

    def reset_parameters(self) -> None:
        self.initializer(self.weight)


class DepthwiseConv(nn.Conv1d):
    """Depth-wise convolution without bias, with an initializer."""

    __call__: Callable[..., Tensor]

    def __init__(self, width: int, kernel_size: int, initializer: Initializer):
        self.initializer = initializer
        super().__init__(width, width, kernel_size, groups=width, bias=False)

    def reset_parameters(self) -> None:
        self.initializer(self.weight)
