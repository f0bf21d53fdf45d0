"""Input embeddings: tokens and further inputs, summed or fused, plus segments, tasks and positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.adaptive import AdaptiveInput
from stemma.network.dropout import Dropout, VariationalDropout, dropout_mask
from stemma.network.initialization import Linear, default_initializer
from stemma.network.inputs_outputs import Stream
from stemma.network.kinds import build_norm
from stemma.network.module import TensorModule
from stemma.network.ngram_tables import CountingTable
from stemma.network.position_kinds import build_position_scheme
from stemma.schema.network import TEXT_INPUTS, TOKENS, NetworkSettings
from stemma.schema.parts import InputSettings, NetworkPart


class NoTokens(nn.Module):
    """Stands for a missing token embedding: the sizes that it would have."""

    def __init__(self, num_embeddings: int, embedding_dim: int):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim


class InputEmbedding(TensorModule):
    """The input of a part as one vector per position.

    `shared`: a decoder uses the encoder's token embedding, with its own positions and norm. With `share_all`, only the
    projection to the stack's width is new (ELECTRA's generator, arXiv:2003.10555, section 3.2)."""

    tokens: AdaptiveInput | CountingTable | nn.Embedding | NoTokens
    segments: nn.Embedding | None
    tasks: nn.Embedding | None

    def __init__(self, settings: NetworkSettings, vocab_size: int, part: NetworkPart,
                 shared: InputEmbedding | None = None, share_all: bool = False):
        super().__init__()
        self.settings: NetworkSettings = shared.settings if shared is not None and share_all else settings
        network, embedding = self.settings, self.settings.embedding
        width = embedding.width or network.width

        def share_or_build(name: str, build: Callable[[], Any], needed: object = True) -> Any:
            return getattr(shared, name) if share_all else build() if needed else None

        def build_fusion() -> nn.Module:
            fused = [name for name in further_inputs if self.input_settings[name].fused]
            fusion: nn.Module = registry.get("fusion", embedding.fusion or "sum").build(network, width, fused)
            return fusion

        self.input_settings: dict[str, InputSettings] = share_or_build(
            "input_settings", lambda: network.inputs_of(part))
        for name in TEXT_INPUTS:
            has_input = name in self.input_settings
            setattr(self, name, self._input_module(name, vocab_size, width, shared, share_all) if has_input else None)
        if TOKENS not in self.input_settings:
            self.tokens = NoTokens(vocab_size, width)
        # a recurrent body adds positions itself, before each step
        self.position: TensorModule | None = share_or_build(
            "position", lambda: build_position_scheme(network).build_embedding(width), not part.body.adds_positions)
        self.scale = math.sqrt(width) if embedding.scale else 1.0
        self.norm: TensorModule | None = share_or_build("norm", lambda: build_norm(network.norm, width), embedding.norm)
        dropout = VariationalDropout if embedding.variational else Dropout
        self.dropout: TensorModule = dropout(network.dropout if embedding.dropout is None else embedding.dropout)
        self.word_dropout = embedding.word_dropout or 0.0
        # factorized embedding: a small embedding and a projection to the stack's width (ALBERT, arXiv:1909.11942)
        self.project = None if width == settings.width or part.body.reads_embedding else \
            Linear(width, settings.width, True, default_initializer(settings, width))
        # initial vector of XLNet's query stream (w in arXiv:1906.08237, section 2.3)
        self.query: nn.Parameter | None = share_or_build(
            "query", lambda: nn.Parameter(torch.empty(network.width)), embedding.query)
        further_inputs = [name for name in self.input_settings if name not in TEXT_INPUTS]
        self.inputs: nn.ModuleDict | None = share_or_build("inputs", lambda: nn.ModuleDict(
            {name: self._input_module(name, vocab_size, width, shared, share_all) for name in further_inputs}),
            further_inputs)
        self.fusion: TensorModule | None = share_or_build("fusion", build_fusion, further_inputs)
        if not share_all:
            self.reset_parameters()

    def _input_module(self, name: str, vocab_size: int, width: int, shared: InputEmbedding | None,
                      share_all: bool) -> nn.Module:
        """The module of an input. Inputs computed from token ids are shared by all parts."""
        settings = self.input_settings[name]
        decoder = self.settings.decoder
        owned = name == TOKENS and decoder is not None and bool(decoder.own_embedding)
        if shared is not None and (share_all or settings.from_ids and not owned):
            shared_module = shared.module(name)
            assert shared_module is not None
            return shared_module
        module: nn.Module = registry.get("input", settings.kind).build(settings, self.settings, width, vocab_size)
        return module

    def module(self, name: str) -> nn.Module | None:
        """The module of the input of this name; None: there is none."""
        if name in TEXT_INPUTS:
            return cast("nn.Module | None", getattr(self, name))
        return self.inputs[name] if self.inputs is not None and name in self.inputs else None

    def reset_parameters(self) -> None:
        if self.query is not None:
            default_initializer(self.settings)(self.query)

    def forward(self, stream: Stream) -> Tensor:
        """(B, L, width of the stack)"""
        unknown = [name for name in stream.inputs if name not in self.input_settings and name not in TEXT_INPUTS]
        fused = {name: embedded for name, settings in self.input_settings.items()
                 if settings.fused and (embedded := self._embed_input(name, stream)) is not None}
        assert fused and not unknown, f"the network has no input for {', '.join(unknown) or 'an empty stream'}"
        x: Tensor = fused[TOKENS] if self.fusion is None else self.fusion(fused)  # (B, L, width)
        for name, settings in self.input_settings.items():
            if not settings.fused and (embedded := self._embed_input(name, stream)) is not None:
                x = x + embedded
        if self.position is not None:
            x = x + self.position(x if stream.input_ids is None else stream.input_ids, stream.position_ids)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.project is None else self.project(x)

    def _embed_input(self, name: str, stream: Stream) -> Tensor | None:
        """(B, L, width) or broadcastable to it; None if the stream lacks this input."""
        settings = self.input_settings[name]
        values = stream.input_ids if settings.from_ids else stream.inputs.get(name)
        module = self.module(name)
        assert module is not None
        if values is None and not settings.always:
            return None
        further = [stream.inputs[name]] if settings.reads_text and name in stream.inputs else []
        embedded: Tensor = module(values, *further)
        if name != TOKENS:
            return embedded
        if self.training and self.word_dropout and values is not None:
            mask = dropout_mask(torch.Size([self.tokens.num_embeddings]), self.word_dropout, embedded.dtype,
                                embedded.device)
            embedded = embedded * mask[values][..., None]
        return embedded * self.scale if self.scale != 1.0 else embedded

    def static(self, stream: Stream) -> Tensor:
        """(B, L, embedding width): what is made of the token ids alone, before segments, positions and norm. It is the
        same wherever a token is."""
        fused = {name: embedded for name, settings in self.input_settings.items() if settings.fused
                 and settings.from_ids and (embedded := self._embed_input(name, stream)) is not None}
        return fused[TOKENS] if self.fusion is None else self.fusion(fused)

    def query_vectors(self, positions: Tensor) -> Tensor:
        """(B, P) positions -> (B, P, width): the same learned vector; relative attention adds the position."""
        assert self.query is not None
        return self.dropout(self.query.expand(*positions.shape, -1))

