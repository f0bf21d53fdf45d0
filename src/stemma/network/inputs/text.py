"""Token, segment and task embeddings. Their sizes come from the vocabulary and [network.embedding], so these kinds do
not occur in [network.inputs.NAME]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stemma.network.kinds import CountingBodySettings
from stemma.registry import register
from stemma.schema.base import Count
from stemma.schema.parts import InputSettings

if TYPE_CHECKING:  # recipes are checked without importing torch
    from torch import nn

    from stemma.schema.network import NetworkSettings


class TokenSettings(InputSettings):
    kind: Literal["tokens"]

    enabled_by = "tokenizer.vocab_size"
    from_ids = True


@register("input", "tokens", TokenSettings)
def tokens(settings: TokenSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    """The token embedding, which language-modeling heads share."""
    from stemma.network.adaptive import AdaptiveInput
    from stemma.network.fixed_embedding import FixedVectorEmbedding
    from stemma.network.initialization import Initializer, LookupEmbedding, default_initializer

    if isinstance(network.depth, CountingBodySettings):
        return network.depth.build_table(vocab_size)
    if network.embedding.cutoffs:
        return AdaptiveInput(vocab_size, width, network)
    default, std = default_initializer(network), network.initialization.embedding_std
    kind = FixedVectorEmbedding if network.embedding.fixed else LookupEmbedding
    return kind(vocab_size, width, default if std is None else Initializer(std, default.truncated))


class _IdSettings(InputSettings):
    """An embedding of ids from 0 to `count` - 1; a stream without ids has id 0."""

    count: Count

    always = True
    fused = False


class SegmentSettings(_IdSettings):
    kind: Literal["segments"]

    enabled_by = "network.embedding.segments"


@register("input", "segments", SegmentSettings)
def segments(settings: SegmentSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    """The segment embedding (BERT)."""
    from stemma.network.initialization import default_initializer
    from stemma.network.inputs.modules import Segments

    return Segments(settings.count, width, default_initializer(network))


class TaskSettings(_IdSettings):
    kind: Literal["tasks"]

    enabled_by = "network.embedding.tasks"


@register("input", "tasks", TaskSettings)
def tasks(settings: TaskSettings, network: NetworkSettings, width: int, vocab_size: int) -> nn.Module:
    """The task embedding (ERNIE 2.0, arXiv:1907.12412)."""
    from stemma.network.initialization import default_initializer
    from stemma.network.inputs.modules import Tasks

    return Tasks(settings.count, width, default_initializer(network))
