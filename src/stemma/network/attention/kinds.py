"""The registered kinds of attention: settings, supported features, and how each is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from stemma.registry import register
from stemma.schema.parts import FEATURES, AttentionSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    from torch import nn

    from stemma.schema.network import NetworkSettings


class FullAttentionSettings(AttentionSettings):
    """Softmax attention over all positions that the attention mask allows (arXiv:1706.03762)."""

    kind: Literal["full"]
    gate: bool | None = None  # multiply the attended values by gelu of a projection of the input (GPT-BERT)
    inner_norm: bool | None = None  # LayerNorm without weights before the output projection (GPT-BERT)
    output_norm: bool | None = None  # LayerNorm with weights after the output projection (LTG-BERT)

    structural_keys: ClassVar[tuple[str, ...]] = (*AttentionSettings.structural_keys, "gate", "inner_norm",
                                                  "output_norm")
    supports: ClassVar[frozenset[str]] = frozenset(FEATURES)

    def flop_counts(self) -> Mapping[object, Callable[..., int]]:
        from stemma.network.attention.flops import CPU_ATTENTION

        return CPU_ATTENTION


@register("attention", "full", FullAttentionSettings)
def build_full_attention(network: NetworkSettings) -> nn.Module:
    from stemma.network.attention.self_attention import SelfAttention

    return SelfAttention(network)
