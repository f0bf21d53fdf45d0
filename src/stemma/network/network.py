"""A network: an embedding and a body for each part, and the heads that objectives asked for. Parts, no families."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from stemma import registry
from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.embed import Embedding
from stemma.network.heads import Head, HeadSpec
from stemma.network.positions import position_of
from stemma.network.prepare import attended_from_outside, prepare
from stemma.network.state import Across, Cache, Memory, State
from stemma.network.streams import QUERY, Hidden, Stream
from stemma.schema.network import TASKS, NetworkSettings
from stemma.schema.parts import NetworkPart

POOLER = "pooler"
GENERATOR = "generator"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are frozen, thawed, decayed or drawn anew together."""

    name: str  # "embedding", "encoder.0", "decoder.0", "head.NAME", "generator"
    depth: int  # from below: 0 is the embedding, then the layers; heads and a generator stand above them all
    parameters: Mapping[str, nn.Parameter]  # by their names in the network


class Network(nn.Module):
    """The body of a part is the attribute of its name; a part that is not the first has an embedding of its own, beside
    the tokens' (`decoder`, `decoder_embedding`).

    `generator`: the heads of a second, smaller network over the same embedding; None: there is none. It is built by
    the same class with `shared` given, the embedding that it reads by, and is a whole network by itself."""

    __call__: Callable[..., Hidden]
    embedding: Embedding
    encoder: Body
    decoder: Body | None

    def __init__(self, settings: NetworkSettings, vocabulary: int, heads: Mapping[str, HeadSpec],
                 generator: Mapping[str, HeadSpec] | None = None, shared: Embedding | None = None):
        super().__init__()
        self.settings, self.parts = settings, settings.parts()
        self.specs, self.decoder = dict(heads), None  # unless there is such a part
        self.first, self.last = list(self.parts)[0], list(self.parts)[-1]  # the last one writes
        for name, part in self.parts.items():
            if name == self.first:
                self.embedding = Embedding(settings, vocabulary, part, shared, whole=shared is not None)
            else:
                setattr(self, f"{name}_embedding", Embedding(settings, vocabulary, part, shared=self.embedding))
            setattr(self, name, registry.get("body", part.body.kind).build(settings, part))
        self.position = position_of(settings)
        self.distances = self.position.distances()
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in heads.items()})
        # last, so that what is shared has its name in this network
        self.generator = None if generator is None else Network(settings.of_generator(), vocabulary, generator,
                                                                shared=self.embedding)
        nn.Module.register_state_dict_post_hook(self, _without_repeated)
        nn.Module.register_load_state_dict_pre_hook(self, _with_repeated)

    @property
    def vocabulary(self) -> int:
        return self.embedding.tokens.num_embeddings

    def start_inputs(self, tokenizer: Any, weights: Collection[str] = ()) -> None:
        """Tell inputs what they know before training, such as how tokens are spelled. `weights`: the names of those
        that another model lends; what it has learned is not told again."""
        for name, one in self.embedding.reading.items():
            if one.from_ids or not any(weight.startswith(f"embedding.inputs.{name}.") for weight in weights):
                one.start(name, self.embedding.module(name), tokenizer)

    def body_of(self, part: str) -> Body:
        body: Body = getattr(self, part)
        return body

    def embedding_of(self, part: str) -> Embedding:
        embedding: Embedding = self.embedding if part == self.first else getattr(self, f"{part}_embedding")
        return embedding

    def body(self) -> list[nn.Module]:
        """All that heads read the output of."""
        return [*self._below(), *map(self.body_of, self.parts)]

    def _below(self) -> list[nn.Module]:
        """What the bodies read."""
        return [*map(self.embedding_of, self.parts), *([] if self.distances is None else [self.distances])]

    @property
    def reader(self) -> Network:
        """The network that reads the text of a batch as it is: the generator where there is one, whose output the
        network itself then reads."""
        return self if self.generator is None else self.generator

    def repeated(self) -> dict[str, str]:
        """The names under which parameters and buffers stand again (a tied embedding in a head or a decoder, layers
        that share), each with its own name. They are stored and counted once. A generator is stored by itself."""
        first: dict[int, str] = {}
        again: dict[str, str] = {}
        for name, parameter in chain(self.named_parameters(remove_duplicate=False),
                                     self.named_buffers(remove_duplicate=False)):
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
        return [(f"{part}.{number}", modules) for part in self.parts
                for number, modules in enumerate(self.body_of(part).layer_groups())]

    def groups(self) -> list[ParameterGroup]:
        """Every parameter once: the embedding, each layer from below, and on top each head and a generator."""
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        layers = self._layers()
        top: list[tuple[str, list[nn.Module]]] = [(f"head.{name}", [head]) for name, head in self.heads.items()]
        if self.generator is not None:
            top.append((GENERATOR, [self.generator]))
        made = []
        declared: list[tuple[str, list[nn.Module]]] = [("embedding", self._below()), *layers, *top]
        for depth, (name, modules) in enumerate(declared):
            found = {names.pop(id(parameter)): parameter for module in modules for parameter in module.parameters()
                     if id(parameter) in names}
            made.append(ParameterGroup(name, min(depth, len(layers) + 1), found))
        assert not names, f"of no group: {', '.join(names.values())}"
        return made

    def forward(self, streams: Mapping[str, Stream], state: State | None = None, keep_layers: bool = False,
                observe: bool = False) -> Hidden:
        """`state` is what the call before gave back, or a new Cache where text is to be read bit by bit: that of the
        last part; the texts of the parts before it are given once, with the first bit. `observe`: with the scores of
        attention."""
        keep_layers = keep_layers or any(getattr(spec, "keep_layers", False) for spec in self.specs.values())
        cache = state if isinstance(state, Cache) else None
        hidden = Hidden({}, state=cache)
        outputs: dict[str, Across] = {} if cache is None else cache.across
        for name, part in self.parts.items():
            if name not in streams:
                continue
            stream, across = streams[name], None
            if part.attends_to is not None:
                assert part.attends_to in outputs, f"the {part.attends_to} has read nothing yet"
                across = outputs[part.attends_to]
            own = self._state(state, stream) if name == self.last else None
            given = prepare(self, stream, own, across)
            self._run(part, stream, replace(given, keep_layers=keep_layers, observe=observe), hidden)
            if any(other.attends_to == name for other in self.parts.values()):
                outputs[name] = Across(hidden[name], attended_from_outside(stream), keeps=cache is not None)
        return hidden

    def _run(self, part: NetworkPart, stream: Stream, given: StackInput, hidden: Hidden) -> None:
        """One part: what leaves it is added to `hidden`."""
        x = self.embedding_of(part.name)(replace(stream, positions=given.positions))
        if stream.query is not None:
            x = torch.cat([x, self.embedding.unseen(stream.query).to(x.dtype)], 1)
        found: StackOutput = self.body_of(part.name)(x, given)
        x = found.x
        if stream.query is None:
            hidden.outputs[part.name] = x
        elif given.keep_layers or given.observe:
            hidden.outputs |= {part.name: x[:, : given.length], QUERY: x[:, given.length:]}
        else:  # the text itself was not computed to the end
            hidden.outputs[QUERY] = x
        if found.layers is not None:
            hidden.layers[part.name] = found.layers
        if part.name == self.last:
            hidden.state = Memory(tuple(found.remembered)) if found.remembered else given.cache
        of = "" if len(self.parts) == 1 else f"{part.name}_"  # each part tells of itself
        hidden.auxiliary |= {of + name: cost for name, cost in found.auxiliary.items()}
        hidden.measures |= {of + name: measure for name, measure in found.measures.items()}
        hidden.attentions |= _by_part(part.name, found)

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

    def head(self, name: str) -> Head:
        return cast(Head, self.heads[name])

    def pooled(self, hidden: Tensor) -> Tensor:
        return self.head(POOLER)(hidden)

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
        tasks = self.embedding.module(TASKS)
        serving = 0 if tasks is None else sum(parameter.numel() for parameter in tasks.parameters())
        return sum(counted.values()) - above - serving


def _by_part(part: str, found: StackOutput) -> dict[str, list[Tensor]]:
    """The scores of every layer by what they are: a part's attention to its own text, and a decoder's to another."""
    names = {"attention": part, "cross": "cross"}
    return {names[name]: [layer[name] for layer in found.scores] for name in names if found.scores
            and name in found.scores[0]}


def _without_repeated(network: nn.Module, state: dict[str, object], prefix: str, _: object) -> None:
    assert isinstance(network, Network)
    for name in network.repeated():
        state.pop(prefix + name, None)


def _with_repeated(network: nn.Module, state: dict[str, object], prefix: str, *_: object) -> None:
    assert isinstance(network, Network)
    for name, own in network.repeated().items():
        if prefix + own in state:
            state[prefix + name] = state[prefix + own]
