"""From what a stream holds to vectors: what a token is, which segment it belongs to, where it stands, and what other
inputs tell of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.adaptive import AdaptiveTokens
from stemma.network.dropout import Dropout
from stemma.network.initialization import Draw, Linear, LookupEmbedding, draw_of
from stemma.network.kinds import build_norm
from stemma.network.module import TensorModule
from stemma.network.positions import position_of
from stemma.network.streams import Stream
from stemma.schema.network import TOKENS, NetworkSettings
from stemma.schema.parts import NetworkPart


class Sum(TensorModule):
    def forward(self, read: Mapping[str, Tensor]) -> Tensor:
        """(B, L, width) each, by name -> (B, L, width)"""
        first, *others = read.values()
        for other in others:
            first = first + other
        return first


class Embedding(TensorModule):
    """Sums of what is known of each token that a part of a network reads. `shared`: a decoder reads by the encoder's
    token embedding, with positions and a norm of its own; with `whole`, all is another embedding's but the map up to
    the stack's width, so that it is stored, counted and trained once (ELECTRA's generator, arXiv:2003.10555, section
    3.2)."""

    def __init__(self, settings: NetworkSettings, vocabulary: int, part: NetworkPart,
                 shared: Embedding | None = None, whole: bool = False):
        super().__init__()
        self.settings: NetworkSettings = shared.settings if shared is not None and whole else settings
        own, chosen = self.settings, self.settings.embedding
        width, usual = chosen.width or own.width, draw_of(own)

        def made(name: str, build: Callable[[], Any], there: object = True) -> Any:
            return getattr(shared, name) if whole else build() if there else None

        self.tokens: AdaptiveTokens | LookupEmbedding = self._tokens(vocabulary) if shared is None else shared.tokens
        self.segments: LookupEmbedding | None = made(
            "segments", lambda: LookupEmbedding(chosen.segments, width, usual), chosen.segments)
        # what a row is read for (ERNIE 2.0, arXiv:1907.12412)
        self.tasks: LookupEmbedding | None = made(
            "tasks", lambda: LookupEmbedding(chosen.tasks, width, usual), chosen.tasks)
        # recurrent depth adds positions before each step
        self.position: TensorModule | None = made(
            "position", lambda: position_of(own).embedding(width), not part.body.adds_positions)
        self.scale = math.sqrt(width) if chosen.scale else 1.0
        self.norm: TensorModule | None = made("norm", lambda: build_norm(own.norm, width), chosen.norm)
        self.dropout = Dropout(own.dropout if chosen.dropout is None else chosen.dropout)
        # a narrow embedding and a map up to the stack's width (ALBERT's factorised embedding, arXiv:1909.11942)
        self.project = None if width == settings.width else Linear(width, settings.width, True,
                                                                   draw_of(settings, width))
        # what stands at a position whose token must not be seen (XLNet's w, arXiv:1906.08237, section 2.3)
        self.query: nn.Parameter | None = made("query", lambda: nn.Parameter(torch.empty(own.width)), chosen.query)
        # what else is read of each position; a decoder's text is tokens alone
        asked = own.inputs if part.attends_to is None else {}
        self.inputs: nn.ModuleDict | None = made("inputs", lambda: nn.ModuleDict(
            {name: registry.get("input", one.kind).build(one, own, width) for name, one in asked.items()}), asked)
        self.fusion: TensorModule | None = made("fusion", lambda: registry.get("fusion", chosen.fusion or "sum").build(
            own, width, list(asked)), asked)
        if not whole:
            self.reset_parameters()

    def _tokens(self, vocabulary: int) -> AdaptiveTokens | LookupEmbedding:
        chosen, usual = self.settings.embedding, draw_of(self.settings)
        width, std = chosen.width or self.settings.width, self.settings.initialization.embedding
        if chosen.cutoffs:
            return AdaptiveTokens(vocabulary, width, self.settings)
        return LookupEmbedding(vocabulary, width, usual if std is None else Draw(std, usual.truncated))

    def reset_parameters(self) -> None:
        if self.query is not None:
            draw_of(self.settings)(self.query)

    def forward(self, stream: Stream) -> Tensor:
        x = self._read(stream)  # (B, L, width)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if stream.segments is None else self.segments(stream.segments))
        if self.tasks is not None:
            x = x + (self.tasks.weight[0] if stream.tasks is None else self.tasks(stream.tasks)[:, None])
        if self.position is not None:
            x = x + self.position(x if stream.ids is None else stream.ids, stream.positions)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.project is None else self.project(x)

    def _read(self, stream: Stream) -> Tensor:
        """Tokens and other inputs as one vector a position."""
        read: dict[str, Tensor] = {}
        if stream.ids is not None:
            x = self.tokens(stream.ids)
            read[TOKENS] = x if self.scale == 1.0 else x * self.scale
        if self.inputs is not None:
            read |= {name: module(stream.inputs[name]) for name, module in self.inputs.items() if name in stream.inputs}
        unread = stream.inputs.keys() - read.keys()
        assert read and not unread, f"the network has no input for {', '.join(unread) or 'an empty stream'}"
        if self.fusion is None:
            return read[TOKENS]
        return self.fusion(read)

    def unseen(self, places: Tensor) -> Tensor:
        """(B, P) positions -> (B, P, width): the same for all of them; where each stands is attention's to know."""
        assert self.query is not None
        return self.dropout(self.query.expand(*places.shape, -1))

