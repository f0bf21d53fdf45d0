"""Two depth-wise separable convolutions with an activation between them: the Universal Transformer's alternative to
the feed-forward layer (arXiv:1807.03819, section 2.1; kernel sizes 3 and 5 as in the authors' code)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.activation import ACTIVATIONS
from stemma.network.initialization import DepthwiseConv, Initializer, Linear, default_initializer, output_initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings

KERNELS = (3, 5)


class SeparableConvolution(TensorModule):
    """A convolution of each channel (depth-wise), then a linear layer at each position (point-wise)."""

    def __init__(self, width: int, output: int, kernel_size: int, depthwise_initializer: Initializer,
                 pointwise_initializer: Initializer):
        super().__init__()
        self.kernel_size = kernel_size
        self.depth = DepthwiseConv(width, kernel_size, depthwise_initializer)
        self.point = Linear(width, output, True, pointwise_initializer)

    def forward(self, x: Tensor, context: LayerContext, name: str) -> Tensor:
        if context.attention_token_mask is not None:
            x = x * context.attention_token_mask[:, :, None]  # padding must equal the zeros beyond the end of a row
        reach = self.kernel_size - 1
        if context.causal and context.cache is not None:
            previous = context.cache.sublayer_states.get(name, x.new_zeros(x.shape[0], reach, x.shape[2]))
            x = torch.cat([previous, x], 1)
            context.cache.sublayer_states[name] = x[:, x.shape[1] - reach:]
        else:
            left = reach if context.causal else reach // 2
            x = functional.pad(x, (0, 0, left, reach - left))
        return self.point(self.depth(x.transpose(1, 2)).transpose(1, 2))


class ConvolutionFeedForward(TensorModule):
    """Convolution, activation, convolution."""

    def __init__(self, settings: NetworkSettings):
        super().__init__()
        width, inner, initializer = settings.width, settings.feedforward, default_initializer(settings)
        self.input = SeparableConvolution(width, inner, KERNELS[0], initializer, default_initializer(settings, width))
        self.output = SeparableConvolution(inner, width, KERNELS[1], initializer, output_initializer(settings, inner))
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        return self.output(self.activation(self.input(x, context, "input")), context, "output")
