"""A network: an embedding, one stack for each part, and the heads that objectives asked for. Parts, no families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from stemma.network.attention.cross import CrossAttention
from stemma.network.attention.full import FullAttention
from stemma.network.distance import RelativeScores, RelativeSinusoids
from stemma.network.embed import Embedding
from stemma.network.heads import Head, HeadSpec
from stemma.network.recurrent import RecurrentStack
from stemma.network.rotary import Rotation, rotation
from stemma.network.stack import Pass, Stack
from stemma.network.state import Across, Cache, Memory, State
from stemma.network.streams import QUERY, Context, Hidden, Stream
from stemma.schema.network import NetworkSettings, RelativePosition, RotaryPosition
from stemma.visibility import Full, Mask, Others, Padded, Visibility, Window

POOLER = "pooler"


class Network(nn.Module):
    """`generator`: the heads of a second, smaller network over the same embedding; None: there is none. It is built by
    the same class with `embedding` given, and is a whole network by itself."""

    def __init__(self, settings: NetworkSettings, vocabulary: int, heads: Mapping[str, HeadSpec],
                 generator: Mapping[str, HeadSpec] | None = None, embedding: Embedding | None = None):
        super().__init__()
        self.settings = settings
        self.specs = dict(heads)
        self.embedding = Embedding(settings, vocabulary) if embedding is None else embedding
        self.encoder = RecurrentStack(settings) if settings.depth.kind == "recurrent" else Stack(settings)
        self.decoder_embedding, self.decoder = None, None
        if settings.decoder is not None:
            self.decoder_embedding = Embedding(settings, vocabulary, shared=self.embedding)
            self.decoder = Stack(settings.model_copy(update={"layers": settings.decoder.layers}), crossed=True)
        position = settings.position
        self.distances = (RelativeSinusoids(settings.width, position.clamp, settings.dropout)
                          if isinstance(position, RelativePosition) else None)
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in heads.items()})
        smaller = None if generator is None else self._smaller(vocabulary, generator)
        self.initialize()
        self.generator = smaller  # last: what is shared keeps this network's names, and was drawn by its measure

    def _smaller(self, vocabulary: int, heads: Mapping[str, HeadSpec]) -> Network:
        settings = self.settings.of_generator()
        return Network(settings, vocabulary, heads, embedding=self.embedding.mapped_to(settings.width))

    @property
    def vocabulary(self) -> int:
        return self.embedding.tokens.num_embeddings

    @property
    def parts(self) -> tuple[str, ...]:
        return ("encoder",) if self.decoder is None else ("encoder", "decoder")

    def initialize(self) -> None:
        """Small normal weights, zero biases; a norm starts as the identity."""
        spread = self.settings.initialization.scale(self.settings.width)

        chosen = self.settings.initialization

        def draw(weight: Tensor, by: float = spread) -> None:
            if chosen.distribution == "normal":
                nn.init.normal_(weight, std=by)
            else:
                nn.init.trunc_normal_(weight, std=by, a=-2 * by, b=2 * by)

        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
                by_input = chosen.by_input and isinstance(module, nn.Linear)
                draw(module.weight, module.weight.shape[1] ** -0.5 if by_input else spread)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, RelativeScores):
                for weight in module.parameters(recurse=False):
                    draw(weight)
        if isinstance(self.encoder, RecurrentStack) and self.encoder.halting is not None:
            nn.init.constant_(self.encoder.halting.unit.bias, self.encoder.halting.bias)
        for module in self.modules():  # once more: a module comes before the matrices in it, which are drawn by now
            if isinstance(module, FullAttention | CrossAttention) and module.scale is not None:
                # scores are not scaled down, so that queries must be
                query = module.input.weight[: len(module.input.weight) // 3] if isinstance(module, FullAttention) \
                    else module.query.weight
                query.data.mul_(module.head_width**-0.5)
        if chosen.embedding is not None and isinstance(self.embedding.tokens, nn.Embedding):
            draw(self.embedding.tokens.weight, chosen.embedding)
        if self.embedding.query is not None:
            draw(self.embedding.query)
        for name, weight in self.named_parameters():
            if name.endswith((".attention.output.weight", ".cross.output.weight", ".feedforward.output.weight",
                              "output.point.weight")):
                if chosen.zero_output:
                    nn.init.zeros_(weight)
                elif chosen.residual:
                    draw(weight, spread / math.sqrt(2 * self.settings.layers))

    def forward(self, streams: Mapping[str, Stream], state: State | None = None, keep_layers: bool = False) -> Hidden:
        """`state` is what the call before gave back, or a new Cache where text is to be read bit by bit: a decoder's
        text; the encoder's is given once, with the first bit."""
        keep_layers = keep_layers or any(getattr(spec, "keep_layers", False) for spec in self.specs.values())
        if self.decoder is None:
            return self._encode(streams["encoder"], self._state(state, streams["encoder"]), keep_layers)
        cache = state if isinstance(state, Cache) else None
        if "encoder" in streams:
            hidden = self._encode(streams["encoder"], None, keep_layers)
            output = hidden["encoder"]
            across = Across(output, self._filled(streams["encoder"]), keeps=cache is not None)
            if cache is not None:
                cache.across = across
        else:
            assert cache is not None and cache.across is not None, "the encoder has read nothing yet"
            hidden, across = Hidden({}), cache.across
        hidden.state = cache
        if "decoder" in streams:
            self._decode(streams["decoder"], across, cache, hidden, keep_layers)
        return hidden

    def _encode(self, stream: Stream, state: State | None, keep_layers: bool) -> Hidden:
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

    def _decode(self, stream: Stream, across: Across, cache: Cache | None, hidden: Hidden, keep_layers: bool) -> None:
        assert self.decoder is not None and self.decoder_embedding is not None
        way = self._prepare(stream, None, cache)
        way.across = across
        x = self.decoder_embedding(replace(stream, positions=way.positions))
        if keep_layers:
            way.layers = hidden.layers["decoder"] = [x]
        hidden.outputs["decoder"] = self.decoder(x, way)

    def _filled(self, stream: Stream) -> Mask:
        """Which places of a text can be looked at from outside: all but filling."""
        length = stream.ids.shape[1]
        real = next((rule for rule in stream.sees.rules() if isinstance(rule, Padded)), Full())
        return real.compile(length, length, stream.ids.device)

    def _state(self, state: State | None, stream: Stream) -> State | None:
        """A network with a memory always has one, unless nothing is to be kept: inputs while it is trained, otherwise
        keys and values."""
        memory = self.settings.memory
        blank = memory is not None and memory.start == "zeros"
        if memory is None or state is not None or self.training or (stream.keep == 0 and not blank):
            return state
        return self.new_cache()

    def new_cache(self, limit: int | None = None) -> Cache:
        """For reading text bit by bit. `limit`: how many positions a network with a memory keeps, if not as many as its
        settings say."""
        memory = self.settings.memory
        return Cache(None if memory is None else limit or memory.evaluation or memory.length)

    def _prepare(self, stream: Stream, memory: Memory | None, cache: Cache | None) -> Pass:
        """Who sees whom and how far away, once for all layers."""
        chosen, device = self.settings.memory, stream.ids.device
        batch, length = stream.ids.shape
        sees, blank, keep = stream.sees, 0, None
        if chosen is not None:
            reach = cache.limit if cache is not None and cache.limit is not None else \
                chosen.length if self.training else chosen.evaluation or chosen.length
            if chosen.same_length:
                sees = sees & Window(reach - 1, length)
            if chosen.start == "zeros":
                blank = reach
            if self.training:
                keep = None if stream.keep == 0 else (reach, length if stream.keep is None else stream.keep)
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
                          causal=sees.causal, real=stream.real())
        positions = stream.positions
        if positions is None and cache is not None and cache.length and chosen is None:
            positions = torch.arange(cache.length, cache.length + length, device=device)
        return Pass(context, masks, length, keys, positions, self._rotations(stream, positions), stream.wanted, memory,
                    keep, cache, blank if cache else 0, skips_filling=stream.skips_filling)

    def _rotations(self, stream: Stream, positions: Tensor | None) -> list[Rotation]:
        """What turns queries and keys in the layers, in turn; nothing where positions are not rotary."""
        chosen, attention = self.settings.position, self.settings.attention
        if not isinstance(chosen, RotaryPosition):
            return []
        width = attention.head_width or self.settings.width // self.settings.heads
        if positions is None:
            positions = torch.arange(stream.ids.shape[1], device=stream.ids.device)
        made = {local: rotation(chosen, local, width, positions, stream.query)
                for local in {bool(window) for window in attention.windows or [0]}}
        return [made[bool(window)] for window in attention.windows or [0]]

    def _windows(self, sees: Visibility) -> list[Visibility]:
        """The rules that the layers take in turn: a window lies behind a place, itself included, where text is read
        from one end, and on both sides of it otherwise."""
        windows = [Full() if not size else Window(size - 1, 0) if sees.causal else Window(size, size)
                   for size in self.settings.attention.windows]
        return [sees & window for window in windows] or [sees]

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

    def kept(self) -> dict[str, Tensor]:
        """The tensors that are this network's alone: a generator is saved and counted as a network of its own."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("generator.")}

    def parameter_count(self, heads: bool = True) -> int:
        """Every number once; without heads, BERT's pooler still counts as part of the body."""
        total = sum(parameter.numel() for name, parameter in self.named_parameters()
                    if not name.startswith("generator."))
        if heads:
            return total
        above = [head for name, head in self.heads.items() if name != POOLER]
        if self.embedding.tasks is not None:  # they serve the tasks alone, as heads do: releases come without them
            above.append(self.embedding.tasks)
        return total - sum(parameter.numel() for part in above for parameter in part.parameters())
