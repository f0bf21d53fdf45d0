"""What every text has: token ids, the segment of each token, the task that a row is read for. [network.embedding] and
the vocabulary say how many of each there are, so that no [network.inputs.NAME] names these kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stemma.registry import register
from stemma.schema.base import Count
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    from torch import nn

    from stemma.schema.network import NetworkSettings


class TokenSettings(InputSettings):
    kind: Literal["tokens"]

    told_by = "tokenizer.vocab_size"
    from_ids = True


@register("input", "tokens", TokenSettings)
def tokens(chosen: TokenSettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    """Heads score tokens by the same matrix."""
    from stemma.network.adaptive import AdaptiveInput
    from stemma.network.initialization import Initializer, LookupEmbedding, default_initializer

    if network.embedding.cutoffs:
        return AdaptiveInput(vocabulary, width, network)
    usual, std = default_initializer(network), network.initialization.embedding
    return LookupEmbedding(vocabulary, width, usual if std is None else Initializer(std, usual.truncated))


class SegmentSettings(InputSettings):
    kind: Literal["segments"]
    count: Count

    told_by = "network.embedding.segments"
    always = True
    fused = False


@register("input", "segments", SegmentSettings)
def segments(chosen: SegmentSettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    from stemma.network.initialization import default_initializer
    from stemma.network.inputs.modules import Segments

    return Segments(chosen.count, width, default_initializer(network))


class TaskSettings(InputSettings):
    kind: Literal["tasks"]
    count: Count

    told_by = "network.embedding.tasks"
    always = True
    fused = False


@register("input", "tasks", TaskSettings)
def tasks(chosen: TaskSettings, network: NetworkSettings, width: int, vocabulary: int) -> nn.Module:
    """What a row is read for (ERNIE 2.0, arXiv:1907.12412)."""
    from stemma.network.initialization import default_initializer
    from stemma.network.inputs.modules import Tasks

    return Tasks(chosen.count, width, default_initializer(network))
