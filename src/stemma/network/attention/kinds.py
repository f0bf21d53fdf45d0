"""The kinds of attention: settings with what each supports, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from stemma.registry import register
from stemma.schema.parts import FEATURES, AttentionSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    from torch import nn

    from stemma.schema.network import NetworkSettings


class FullAttentionSettings(AttentionSettings):
    """Every position attends to every position that it may see (arXiv:1706.03762)."""

    kind: Literal["full"]

    supports: ClassVar[frozenset[str]] = frozenset(FEATURES)

    def flop_counts(self) -> Mapping[object, Callable[..., int]]:
        from stemma.network.attention.flops import CPU_ATTENTION

        return CPU_ATTENTION


@register("attention", "full", FullAttentionSettings)
def build_full_attention(network: NetworkSettings) -> nn.Module:
    from stemma.network.attention.self_attention import SelfAttention

    return SelfAttention(network)
