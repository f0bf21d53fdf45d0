"""From ids to vectors: what a token is, which segment it belongs to, where it stands."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from stemma.network.adaptive import AdaptiveTokens
from stemma.network.dropout import Dropout
from stemma.network.norm import build_norm
from stemma.network.position import build_position
from stemma.network.streams import Stream
from stemma.schema.network import NetworkSettings


class Embedding(nn.Module):
    """A second part of a network reads by the table of the first (`shared`), with places and a norm of its own."""

    def __init__(self, settings: NetworkSettings, vocabulary: int, shared: Embedding | None = None):
        super().__init__()
        chosen = settings.embedding
        width = chosen.width or settings.width
        self.tokens: AdaptiveTokens | nn.Embedding
        if shared is not None:  # past nn.Module's bookkeeping: the table is stored and counted once
            object.__setattr__(self, "tokens", shared.tokens)
        elif chosen.cutoffs:
            self.tokens = AdaptiveTokens(vocabulary, width, chosen.cutoffs, chosen.shrink)
        else:
            self.tokens = nn.Embedding(vocabulary, width)
        self.segments = nn.Embedding(chosen.segments, width) if chosen.segments else None
        # what a row is read for (ERNIE 2.0, arXiv:1907.12412)
        self.tasks = nn.Embedding(chosen.tasks, width) if chosen.tasks else None
        self.position = build_position(settings, width)
        self.scale = math.sqrt(width) if chosen.scale else 1.0
        self.norm = build_norm(settings.norm, width) if chosen.norm else None
        self.dropout = Dropout(settings.dropout if chosen.dropout is None else chosen.dropout)
        # a narrow table and a map up to the stack's width (ALBERT's factorised embedding, arXiv:1909.11942)
        self.project = nn.Linear(width, settings.width) if width != settings.width else None
        # what stands at a place whose token must not be seen (XLNet's w, arXiv:1906.08237, section 2.3)
        self.query = nn.Parameter(torch.zeros(settings.width)) if chosen.query else None

    def mapped_to(self, width: int) -> Embedding:
        """The same vectors, with a map of their own up to another stack's width: everything but the map is shared, so
        that it is stored, counted and trained once (ELECTRA's generator, arXiv:2003.10555, section 3.2)."""
        twin = copy.copy(self)
        twin._modules = dict(self._modules)
        own = self.tokens.embedding_dim
        twin.project = nn.Linear(own, width) if own != width else None
        return twin

    def forward(self, stream: Stream) -> Tensor:
        x = self.tokens(stream.ids)  # (B, L, width)
        if self.scale != 1.0:
            x = x * self.scale
        if self.segments is not None:
            x = x + (self.segments.weight[0] if stream.segments is None else self.segments(stream.segments))
        if self.tasks is not None:
            x = x + (self.tasks.weight[0] if stream.tasks is None else self.tasks(stream.tasks)[:, None])
        if self.position is not None:
            x = x + self.position(stream.ids, stream.positions)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.project is None else self.project(x)

    def unseen(self, places: Tensor) -> Tensor:
        """(B, P) places -> (B, P, width): the same for all of them; where each stands is attention's to know."""
        assert self.query is not None
        return self.dropout(self.query.expand(*places.shape, -1))
