"""A network: an embedding, one stack for each part, and the heads that objectives asked for. Parts, no families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.embed import Embedding
from stemma.network.heads import Head, HeadSpec
from stemma.network.positions import position_of
from stemma.network.rotary import Rotation
from stemma.network.stack import Stack, StackInput, StackOutput
from stemma.network.state import Across, Cache, Memory, State
from stemma.network.streams import QUERY, Context, Hidden, Stream
from stemma.schema.network import NetworkSettings
from stemma.visibility import Full, Mask, Others, Padded, Visibility, Window

POOLER = "pooler"
GENERATOR = "generator"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are frozen, thawed, decayed or drawn anew together."""

    name: str  # "embedding", "encoder.0", "decoder.0", "head.NAME", "generator"
    depth: int  # from below: 0 is the embedding, then the layers; heads and a generator stand above them all
    parameters: Mapping[str, nn.Parameter]  # by their names in the network


class Network(nn.Module):
    """`generator`: the heads of a second, smaller network over the same embedding; None: there is none. It is built by
    the same class with `shared` given, the embedding that it reads by, and is a whole network by itself."""

    def __init__(self, settings: NetworkSettings, vocabulary: int, heads: Mapping[str, HeadSpec],
                 generator: Mapping[str, HeadSpec] | None = None, shared: Embedding | None = None):
        super().__init__()
        self.settings = settings
        self.specs = dict(heads)
        self.embedding = Embedding(settings, vocabulary, shared, whole=shared is not None)
        self.encoder: Stack = registry.get("body", settings.depth.kind).build(settings)
        self.decoder_embedding, self.decoder = None, None
        if settings.decoder is not None:
            self.decoder_embedding = Embedding(settings, vocabulary, shared=self.embedding)
            self.decoder = Stack(settings, crossed=True, layers=settings.decoder.layers)
        self.position = position_of(settings)
        self.distances = self.position.distances()
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in heads.items()})
        # last, so that what is shared has its name in this network
        self.generator = None if generator is None else Network(settings.of_generator(), vocabulary, generator,
                                                                shared=self.embedding)
        self.register_state_dict_post_hook(_without_repeated)
        self.register_load_state_dict_pre_hook(_with_repeated)

    @property
    def vocabulary(self) -> int:
        return self.embedding.tokens.num_embeddings

    @property
    def parts(self) -> tuple[str, ...]:
        return ("encoder",) if self.decoder is None else ("encoder", "decoder")

    def body(self) -> list[nn.Module]:
        """All that heads read the output of."""
        parts = (self.embedding, self.decoder_embedding, self.distances, self.encoder, self.decoder)
        return [part for part in parts if part is not None]

    @property
    def reader(self) -> Network:
        """The network that reads the text of a batch as it is: the generator where there is one, whose output the
        network itself then reads."""
        return self if self.generator is None else self.generator

    def repeated(self) -> dict[str, str]:
        """The names under which parameters stand again (a tied embedding in a head or a decoder, layers that share),
        each with the parameter's own name. They are stored and counted once. A generator is stored by itself."""
        first: dict[int, str] = {}
        again: dict[str, str] = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if name.startswith(f"{GENERATOR}."):
                continue
            own = first.setdefault(id(parameter), name)
            again |= {name: own} if own != name else {}
        return again

    @property
    def height(self) -> int:
        """How many layers there are from the embedding up, a decoder's above the encoder's: the depth of the
        highest."""
        return len(self._layers())

    def _layers(self) -> list[tuple[str, list[nn.Module]]]:
        stacks = {"encoder": self.encoder, **({} if self.decoder is None else {"decoder": self.decoder})}
        return [(f"{part}.{number}", modules) for part, stack in stacks.items()
                for number, modules in enumerate(stack.layer_groups())]

    def groups(self) -> list[ParameterGroup]:
        """Every parameter once: the embedding, each layer from below, and on top each head and a generator."""
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        bottom: list[nn.Module] = [part for part in self.body() if not isinstance(part, Stack)]
        layers = self._layers()
        top: list[tuple[str, list[nn.Module]]] = [(f"head.{name}", [head]) for name, head in self.heads.items()]
        if self.generator is not None:
            top.append((GENERATOR, [self.generator]))
        made = []
        declared: list[tuple[str, list[nn.Module]]] = [("embedding", bottom), *layers, *top]
        for depth, (name, modules) in enumerate(declared):
            found = {names.pop(id(parameter)): parameter for module in modules for parameter in module.parameters()
                     if id(parameter) in names}
            made.append(ParameterGroup(name, min(depth, len(layers) + 1), found))
        assert not names, f"of no group: {', '.join(names.values())}"
        return made

    def forward(self, streams: Mapping[str, Stream], state: State | None = None, keep_layers: bool = False,
                observe: bool = False) -> Hidden:
        """`state` is what the call before gave back, or a new Cache where text is to be read bit by bit: a decoder's
        text; the encoder's is given once, with the first bit. `observe`: with the scores of attention."""
        keep_layers = keep_layers or any(getattr(spec, "keep_layers", False) for spec in self.specs.values())
        if self.decoder is None:
            return self._encode(streams["encoder"], self._state(state, streams["encoder"]), keep_layers, observe)
        cache = state if isinstance(state, Cache) else None
        if "encoder" in streams:
            hidden = self._encode(streams["encoder"], None, keep_layers, observe)
            output = hidden["encoder"]
            across = Across(output, self._filled(streams["encoder"]), keeps=cache is not None)
            if cache is not None:
                cache.across = across
        else:
            assert cache is not None and cache.across is not None, "the encoder has read nothing yet"
            hidden, across = Hidden({}), cache.across
        hidden.state = cache
        if "decoder" in streams:
            self._decode(streams["decoder"], across, cache, hidden, keep_layers, observe)
        return hidden

    def _encode(self, stream: Stream, state: State | None, keep_layers: bool, observe: bool) -> Hidden:
        memory = state if isinstance(state, Memory) else None
        cache = state if isinstance(state, Cache) else None
        given = replace(self._prepare(stream, memory, cache), keep_layers=keep_layers, observe=observe)
        x = self.embedding(replace(stream, positions=given.positions))
        if stream.query is not None:
            x = torch.cat([x, self.embedding.unseen(stream.query).to(x.dtype)], 1)
        found: StackOutput = self.encoder(x, given)
        x, behind = found.x, found.x[:, given.length:]
        if stream.query is None:
            outputs = {"encoder": x}
        elif keep_layers or observe:
            outputs = {"encoder": x[:, : given.length], QUERY: behind}
        else:  # the text itself was not computed to the end
            outputs = {QUERY: x}
        kept: State | None = Memory(tuple(found.remembered)) if found.remembered else cache
        return Hidden(outputs, {} if found.layers is None else {"encoder": found.layers}, kept, found.auxiliary,
                      found.measures, attentions=_by_part("encoder", found))

    def _decode(self, stream: Stream, across: Across, cache: Cache | None, hidden: Hidden,
                keep_layers: bool, observe: bool) -> None:
        assert self.decoder is not None and self.decoder_embedding is not None
        given = replace(self._prepare(stream, None, cache), across=across, keep_layers=keep_layers, observe=observe)
        found: StackOutput = self.decoder(self.decoder_embedding(replace(stream, positions=given.positions)), given)
        hidden.outputs["decoder"] = found.x
        hidden.attentions |= _by_part("decoder", found)
        if found.layers is not None:
            hidden.layers["decoder"] = found.layers

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

    def _prepare(self, stream: Stream, memory: Memory | None, cache: Cache | None) -> StackInput:
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
        return StackInput(context, masks, length, keys, positions, self._rotations(stream, positions), stream.wanted,
                          memory, keep, cache, blank if cache else 0, skips_filling=stream.skips_filling)

    def _rotations(self, stream: Stream, positions: Tensor | None) -> list[Rotation]:
        """What turns queries and keys in the layers, in turn; nothing where positions are not rotary."""
        if "rotation" not in self.settings.position.needs:
            return []
        if positions is None:
            positions = torch.arange(stream.ids.shape[1], device=stream.ids.device)
        windows = self.settings.attention.windows or [0]
        made = {local: self.position.rotation(local, positions, stream.query)
                for local in {bool(window) for window in windows}}
        return [turn for window in windows if (turn := made[bool(window)]) is not None]

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
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(f"{GENERATOR}.")}

    def parameter_count(self, heads: bool = True) -> int:
        """Every number once; without heads, BERT's pooler still counts as part of the body."""
        counted = {group.name: sum(parameter.numel() for parameter in group.parameters.values())
                   for group in self.groups() if group.name != GENERATOR}
        if heads:
            return sum(counted.values())
        above = sum(count for name, count in counted.items() if name.startswith("head.") and name != f"head.{POOLER}")
        # task embeddings serve the tasks alone, as heads do: releases come without them
        tasks = 0 if self.embedding.tasks is None else self.embedding.tasks.weight.numel()
        return sum(counted.values()) - above - tasks


def _by_part(part: str, found: StackOutput) -> dict[str, list[Tensor]]:
    """The scores of every layer by what they are: a part's attention to its own text, and a decoder's to another."""
    names = {"attention": part, "cross": "cross"}
    return {names[name]: [layer[name] for layer in found.scores] for name in names if found.scores
            and name in found.scores[0]}


def _without_repeated(network: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    assert isinstance(network, Network)
    for name in network.repeated():
        state.pop(prefix + name, None)


def _with_repeated(network: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    assert isinstance(network, Network)
    for name, own in network.repeated().items():
        if prefix + own in state:
            state[prefix + name] = state[prefix + own]
