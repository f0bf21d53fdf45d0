"""A network: an embedding, one stack for each part, and the heads that objectives asked for. Parts, no families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from stemma.errors import UserError
from stemma.network.distance import RelativeScores, RelativeSinusoids
from stemma.network.embed import Embedding
from stemma.network.heads import Head, HeadSpec
from stemma.network.recurrent import Halting, RecurrentStack
from stemma.network.stack import Pass, Stack
from stemma.network.state import Cache, Memory, State
from stemma.network.streams import QUERY, Context, Hidden, Stream
from stemma.schema.network import NetworkSettings, RelativePosition
from stemma.visibility import Mask, Others, Padded, Visibility, Window

POOLER = "pooler"


class Network(nn.Module):
    def __init__(self, settings: NetworkSettings, vocabulary: int, heads: Mapping[str, HeadSpec]):
        super().__init__()
        if settings.decoder is not None:
            raise UserError("this recipe has a decoder beside its encoder, and only one-stack networks can be built; "
                            "choose another recipe (`stemma tree`).")
        self.settings = settings
        self.specs = dict(heads)
        self.embedding = Embedding(settings, vocabulary)
        self.encoder = RecurrentStack(settings) if settings.depth.kind == "recurrent" else Stack(settings)
        position = settings.position
        self.distances = (RelativeSinusoids(settings.width, position.clamp, settings.dropout)
                          if isinstance(position, RelativePosition) else None)
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in heads.items()})
        self.initialize()

    @property
    def vocabulary(self) -> int:
        return self.embedding.tokens.num_embeddings

    @property
    def parts(self) -> tuple[str, ...]:
        return ("encoder",)

    def initialize(self) -> None:
        """Small normal weights, zero biases; a norm starts as the identity."""
        spread = self.settings.initialization.scale(self.settings.width)

        def draw(weight: Tensor, by: float = spread) -> None:
            nn.init.trunc_normal_(weight, std=by, a=-2 * by, b=2 * by)

        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
                draw(module.weight)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, RelativeScores):
                for weight in module.parameters(recurse=False):
                    draw(weight)
            if isinstance(module, Halting):
                nn.init.ones_(module.unit.bias)  # as the authors do: at first most places take few steps
        if self.embedding.query is not None:
            draw(self.embedding.query)
        if self.settings.initialization.residual:
            for name, weight in self.encoder.named_parameters():
                if name.endswith(("attention.output.weight", "feedforward.output.weight", "output.point.weight")):
                    draw(weight, spread / math.sqrt(2 * self.settings.layers))

    def forward(self, streams: Mapping[str, Stream], state: State | None = None, keep_layers: bool = False) -> Hidden:
        """`state` is what the call before gave back, or a new Cache where text is to be read bit by bit."""
        stream = streams["encoder"]
        state = self._state(state)
        memory = state if isinstance(state, Memory) else None
        cache = state if isinstance(state, Cache) else None
        way = self._prepare(stream, memory, cache)
        x = self.embedding(replace(stream, positions=way.positions))
        if stream.query is not None:
            x = torch.cat([x, self.embedding.unseen(stream.query).to(x.dtype)], 1)
        if keep_layers:
            way.layers = [x]
        x = self.encoder(x, way)
        if stream.query is None:
            outputs = {"encoder": x}
        else:  # the text itself has been computed to the end only where its layers were asked for
            outputs = {"encoder": x[:, : way.length], QUERY: x[:, way.length:]} if keep_layers else {QUERY: x}
        layers = {"encoder": way.layers} if way.layers is not None else {}
        kept: State | None = Memory(tuple(way.remembered)) if way.remembered else cache
        return Hidden(outputs, layers, kept, way.auxiliary, way.measures)

    def _state(self, state: State | None) -> State | None:
        """A network with a memory always has one: inputs while it is trained, otherwise keys and values."""
        memory = self.settings.memory
        if memory is None or state is not None or self.training:
            return state
        return self.new_cache()

    def new_cache(self) -> Cache:
        """For reading text bit by bit."""
        memory = self.settings.memory
        return Cache(None if memory is None else memory.evaluation or memory.length)

    def _prepare(self, stream: Stream, memory: Memory | None, cache: Cache | None) -> Pass:
        """Who sees whom and how far away, once for all layers."""
        chosen, device = self.settings.memory, stream.ids.device
        batch, length = stream.ids.shape
        sees, blank, keep = stream.sees, 0, None
        if chosen is not None:
            reach = chosen.length if self.training else chosen.evaluation or chosen.length
            if chosen.same_length:
                sees = sees & Window(reach - 1, length)
            if chosen.start == "zeros":
                blank = reach
            if self.training:
                keep = (reach, length if stream.keep is None else stream.keep)
                if memory is None and blank:
                    nothing = torch.zeros(batch, blank, self.settings.width, device=device)
                    memory = Memory((nothing,) * self.settings.layers)
        kept = memory.length if memory is not None else cache.length or blank if cache is not None else 0
        keys = kept + length
        masks = [self._mask(rule, stream, keys) for rule in self._windows(sees)]
        distances = None
        if self.distances is not None:
            distances = self.distances(length, keys, not sees.causal, device, stream.backward, stream.query)
        context = Context(masks[0], distances=distances, apart=self._apart(stream, kept), keep=stream.keep,
                          causal=sees.causal, real=_real(sees, length))
        positions = stream.positions
        if positions is None and cache is not None and cache.length and chosen is None:
            positions = torch.arange(cache.length, cache.length + length, device=device)
        return Pass(context, masks, length, positions, stream.wanted, memory, keep, cache, blank if cache else 0)

    def _windows(self, sees: Visibility) -> list[Visibility]:
        """The rules that the layers take in turn."""
        windows = self.settings.attention.windows
        return [sees & Window(back - 1, 0) if back else sees for back in windows] or [sees]

    def _mask(self, sees: Visibility, stream: Stream, keys: int) -> Mask:
        length, device = stream.ids.shape[1], stream.ids.device
        mask = sees.compile(length, keys, device)
        if stream.query is None:
            return mask
        unseen = (sees & Others()).compile(length, keys, device).at(stream.query, keys)
        assert mask.dense is not None and unseen.dense is not None
        batch = len(stream.query)
        return Mask(dense=torch.cat([mask.dense.expand(batch, 1, length, keys), unseen.dense], 2))

    def _apart(self, stream: Stream, kept: int) -> Tensor | None:
        """(B, 1, Q, K) whether query and key belong to different segments; what was kept counts as segment 0."""
        if not self.settings.attention.segments or stream.segments is None:
            return None
        segments = stream.segments
        keys = torch.nn.functional.pad(segments, (kept, 0))
        asking = segments if stream.query is None else torch.cat([segments, segments.gather(1, stream.query)], 1)
        return (asking[:, :, None] != keys[:, None, :])[:, None]

    def head(self, name: str) -> Head:
        return cast(Head, self.heads[name])

    def pooled(self, hidden: Tensor) -> Tensor:
        return self.heads[POOLER](hidden)

    def parameter_count(self, heads: bool = True) -> int:
        """Every number once; without heads, BERT's pooler still counts as part of the body."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if heads:
            return total
        above = (head for name, head in self.heads.items() if name != POOLER)
        return total - sum(parameter.numel() for head in above for parameter in head.parameters())


def _real(sees: Visibility, length: int) -> Tensor | None:
    """(B, L) False at filling, where there is any."""
    found = next((rule for rule in sees.rules() if isinstance(rule, Padded)), None)
    return None if found is None else found.real[:, found.past:found.past + length]
