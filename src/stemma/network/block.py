"""A transformer block: self-attention, cross-attention and feed-forward sublayers with norm, dropout and residual.

Post-norm normalizes the sum with the residual (arXiv:1706.03762); pre-norm normalizes the input of the sublayer, which
trains without careful warm-up (arXiv:2002.04745).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.attention.cross_attention import CrossAttention
from stemma.network.attention.self_attention import SelfAttention
from stemma.network.dropout import Dropout
from stemma.network.feedforward import scale_by_depth
from stemma.network.inputs_outputs import LayerContext
from stemma.network.kinds import build_feedforward, build_norm
from stemma.network.module import TensorModule
from stemma.schema.network import NetworkSettings

SHARED_SUBLAYERS: dict[str, tuple[str, ...]] = {
    "none": (), "attention": ("attention", "cross"), "feedforward": ("feedforward",),
    "all": ("attention", "cross", "feedforward")}


class Block(TensorModule):
    """One layer of a stack. `cross_attention`: a decoder block, with cross-attention after self-attention.

    With cross-layer parameter sharing (ALBERT, arXiv:1909.11942) a block uses the shared sublayers and their norms of
    `first_block`.
    """

    attention: SelfAttention  # or a plug-in's attention, which may lack some methods
    attention_norm: nn.Module
    cross: CrossAttention  # with cross-attention only
    feedforward: nn.Module

    def __init__(self, settings: NetworkSettings, cross_attention: bool = False, first_block: Block | None = None,
                 layer_index: int = 0):
        super().__init__()
        builders: dict[str, Callable[[NetworkSettings], nn.Module]] = {
            "attention": registry.get("attention", settings.attention.kind).build, "cross": CrossAttention,
            "feedforward": build_feedforward}
        self.sublayer_names = tuple(name for name in builders if cross_attention or name != "cross")
        for name in self.sublayer_names:
            shared = first_block is not None and name in SHARED_SUBLAYERS[settings.sharing]
            setattr(self, name, getattr(first_block, name) if shared else builders[name](settings))
            setattr(self, f"{name}_norm", getattr(first_block, f"{name}_norm") if shared
                    else build_norm(settings.norm, settings.width))
        shared = first_block is not None and "feedforward" in SHARED_SUBLAYERS[settings.sharing]
        if settings.initialization.feedforward_by_depth and not shared:
            scale_by_depth(self.feedforward, layer_index)
        self.mix = None
        if settings.mix:
            first = layer_index * len(self.sublayer_names)  # number of sublayers below this block
            self.mix = nn.ParameterList(mix_weights(first + index) for index in range(len(self.sublayer_names)))
        if first_block is None and not settings.norm.first:
            self.attention_norm = nn.Identity()
        self.pre_norm = settings.norm.placement == "pre"
        self.dropout = Dropout(settings.dropout)
        output_dropout = settings.attention.output_dropout
        self.attention_dropout = Dropout(settings.dropout if output_dropout is None else output_dropout)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """(B, Q, width) -> (B, Q, width); unpadded, (N, width) -> (N, width). With `context.output_queries`, only these
        queries continue after attention: (B, Q, width) -> (N, width).

        With a mix of earlier sublayers (`context.earlier`) the result has the output first, then the sum after each
        sublayer before it was mixed, which later blocks mix in: (1 + sublayers, ...)."""
        return self._apply_sublayers(x, context, keep_attention_scores=False)[0]

    def forward_with_scores(self, x: Tensor, context: LayerContext) -> tuple[Tensor, dict[str, Tensor]]:
        """The same, and the scores of each attention sublayer before softmax, (B, heads, Q, K), by name."""
        return self._apply_sublayers(x, context, keep_attention_scores=True)

    def _apply_sublayers(self, x: Tensor, context: LayerContext,
                         keep_attention_scores: bool) -> tuple[Tensor, dict[str, Tensor]]:
        context, scores = self._with_normalized_keys(x, context), {}
        earlier = [*context.earlier]
        for name in self.sublayer_names:
            sublayer, norm = getattr(self, name), getattr(self, f"{name}_norm")
            sublayer_input = norm(x) if self.pre_norm else x
            if keep_attention_scores and name != "feedforward":
                y, scores[name] = sublayer.forward_with_scores(sublayer_input, context)
            else:
                y = sublayer(sublayer_input, context)
            y = (self.dropout if name == "feedforward" else self.attention_dropout)(y)
            x = x + y if self.pre_norm else norm(x + y)
            if self.mix is not None:
                earlier.append(x)
                x = mix_states(self.mix[len(earlier) - len(context.earlier) - 1], earlier)
            if name == "attention" and context.output_queries is not None:
                x = x[context.output_queries]
        if self.mix is not None:
            x = torch.stack([x, *earlier[len(context.earlier):]])
        return x, scores

    def _with_normalized_keys(self, x: Tensor, context: LayerContext) -> LayerContext:
        """The context with normalized key states (pre-norm), and with the zero states that a memory starts with."""
        if context.cache is not None and context.zero_memory_length and context.cache.length == 0:
            zeros = x.new_zeros(x.shape[0], context.zero_memory_length, x.shape[2])
            self.attention.fill_cache(context.cache, self.attention_norm(zeros) if self.pre_norm else zeros)
        if context.key_states is None or not self.pre_norm:
            return context
        return replace(context, key_states=self.attention_norm(context.key_states))


def mix_weights(num_below: int) -> nn.Parameter:
    """Weights of the embedding, the `num_below` sublayers below and this one: at first the last one alone."""
    return nn.Parameter(torch.cat([torch.zeros(num_below + 1), torch.ones(1)]))


def mix_states(weights: Tensor, states: Sequence[Tensor]) -> Tensor:
    """The weighted sum of these states, in their precision."""
    mixed = weights[0] * states[0]
    for weight, state in zip(weights[1:], states[1:], strict=True):
        mixed = torch.addcmul(mixed, weight, state)
    return mixed
