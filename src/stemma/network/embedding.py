"""From what a stream holds to vectors: the sum of its inputs, or what a fusion makes of them, and of positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.adaptive import AdaptiveInput
from stemma.network.dropout import Dropout
from stemma.network.initialization import Linear, default_initializer
from stemma.network.inputs_outputs import Stream
from stemma.network.kinds import build_norm
from stemma.network.module import TensorModule
from stemma.network.position_kinds import build_position_scheme
from stemma.schema.network import TEXT_INPUTS, TOKENS, NetworkSettings
from stemma.schema.parts import InputSettings, NetworkPart


class InputEmbedding(TensorModule):
    """What a part of a network reads of each position, as one vector. `shared`: a decoder reads by the encoder's
    token embedding, with positions and a norm of its own; with `whole`, all is another embedding's but the map up to
    the stack's width, so that it is stored, counted and trained once (ELECTRA's generator, arXiv:2003.10555, section
    3.2)."""

    tokens: AdaptiveInput | nn.Embedding
    segments: nn.Embedding | None
    tasks: nn.Embedding | None

    def __init__(self, settings: NetworkSettings, vocab_size: int, part: NetworkPart,
                 shared: InputEmbedding | None = None, share_all: bool = False):
        super().__init__()
        self.settings: NetworkSettings = shared.settings if shared is not None and share_all else settings
        own, chosen = self.settings, self.settings.embedding
        width = chosen.width or own.width

        def made(name: str, build: Callable[[], Any], there: object = True) -> Any:
            return getattr(shared, name) if share_all else build() if there else None

        self.reading: dict[str, InputSettings] = made("reading", lambda: own.inputs_of(part))
        for name in TEXT_INPUTS:
            setattr(self, name, self._built(name, vocab_size, width, shared,
                                            share_all) if name in self.reading else None)
        # recurrent depth adds positions before each step
        self.position: TensorModule | None = made(
            "position", lambda: build_position_scheme(own).build_embedding(width), not part.body.adds_positions)
        self.scale = math.sqrt(width) if chosen.scale else 1.0
        self.norm: TensorModule | None = made("norm", lambda: build_norm(own.norm, width), chosen.norm)
        self.dropout = Dropout(own.dropout if chosen.dropout is None else chosen.dropout)
        # a narrow embedding and a map up to the stack's width (ALBERT's factorised embedding, arXiv:1909.11942)
        self.project = None if width == settings.width else Linear(width, settings.width, True,
                                                                   default_initializer(settings, width))
        # what stands at a position whose token must not be seen (XLNet's w, arXiv:1906.08237, section 2.3)
        self.query: nn.Parameter | None = made("query", lambda: nn.Parameter(torch.empty(own.width)), chosen.query)
        # what else is read of each position
        declared = [name for name in self.reading if name not in TEXT_INPUTS]
        self.inputs: nn.ModuleDict | None = made("inputs", lambda: nn.ModuleDict(
            {name: self._built(name, vocab_size, width, shared, share_all) for name in declared}), declared)
        self.fusion: TensorModule | None = made("fusion", lambda: registry.get("fusion", chosen.fusion or "sum").build(
            own, width, [name for name in declared if self.reading[name].fused]), declared)
        if not share_all:
            self.reset_parameters()

    def _built(self, name: str, vocabulary: int, width: int, shared: InputEmbedding | None, whole: bool) -> nn.Module:
        """The module of an input. What is made from token ids alone is the same in all parts."""
        chosen = self.reading[name]
        if shared is not None and (whole or chosen.from_ids):
            found = shared.module(name)
            assert found is not None
            return found
        built: nn.Module = registry.get("input", chosen.kind).build(chosen, self.settings, width, vocabulary)
        return built

    def module(self, name: str) -> nn.Module | None:
        """What reads the input of this name; None: nothing does."""
        if name in TEXT_INPUTS:
            return cast("nn.Module | None", getattr(self, name))
        return self.inputs[name] if self.inputs is not None and name in self.inputs else None

    def reset_parameters(self) -> None:
        if self.query is not None:
            default_initializer(self.settings)(self.query)

    def forward(self, stream: Stream) -> Tensor:
        unread = [name for name in stream.inputs if name not in self.reading and name not in TEXT_INPUTS]
        fused = {name: read for name, one in self.reading.items()
                 if one.fused and (read := self._embed_inputs(name, stream)) is not None}
        assert fused and not unread, f"the network has no input for {', '.join(unread) or 'an empty stream'}"
        x: Tensor = fused[TOKENS] if self.fusion is None else self.fusion(fused)  # (B, L, width)
        for name, one in self.reading.items():
            if not one.fused and (added := self._embed_inputs(name, stream)) is not None:
                x = x + added
        if self.position is not None:
            x = x + self.position(x if stream.input_ids is None else stream.input_ids, stream.position_ids)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.project is None else self.project(x)

    def _embed_inputs(self, name: str, stream: Stream) -> Tensor | None:
        """(B, L, width), or what is the same for many positions; None where the stream does not have it."""
        chosen = self.reading[name]
        given = stream.input_ids if chosen.from_ids else stream.inputs.get(name)
        module = self.module(name)
        assert module is not None
        if given is None and not chosen.always:
            return None
        read: Tensor = module(given)
        return read * self.scale if name == TOKENS and self.scale != 1.0 else read

    def query_vectors(self, positions: Tensor) -> Tensor:
        """(B, P) positions -> (B, P, width): the same for all of them; where each stands is attention's to know."""
        assert self.query is not None
        return self.dropout(self.query.expand(*positions.shape, -1))

