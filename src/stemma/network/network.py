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
from stemma.network.cache import CrossAttentionCache, KVCache, Memory, State
from stemma.network.embedding import InputEmbedding
from stemma.network.heads import HeadSpec, ScoringHead
from stemma.network.inputs_outputs import QUERY, NetworkOutput, Stream
from stemma.network.position_kinds import build_position_scheme
from stemma.network.stack_input import build_stack_input, cross_attention_mask
from stemma.schema.network import TASKS, NetworkSettings
from stemma.schema.parts import NetworkPart

POOLER = "pooler"
GENERATOR = "generator"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are frozen, thawed, decayed or drawn anew together."""

    name: str  # "embedding", "encoder.0", "decoder.0", "head.NAME", "generator"
    layer_index: int  # from below: 0 is the embedding, then the layers; heads and a generator stand above them all
    parameters: Mapping[str, nn.Parameter]  # by their names in the network


class Network(nn.Module):
    """The body of a part is the attribute of its name; a part that is not the first has an embedding of its own, beside
    the tokens' (`decoder`, `decoder_embedding`).

    `generator`: the heads of a second, smaller network over the same embedding; None: there is none. It is built by
    the same class with `shared` given, the embedding that it reads by, and is a whole network by itself."""

    __call__: Callable[..., NetworkOutput]
    embedding: InputEmbedding
    encoder: Body
    decoder: Body | None

    def __init__(self, settings: NetworkSettings, vocab_size: int, head_specs: Mapping[str, HeadSpec],
                 generator_head_specs: Mapping[str, HeadSpec] | None = None,
                 shared_embedding: InputEmbedding | None = None):
        super().__init__()
        self.settings, self.parts = settings, settings.parts()
        self.head_specs, self.decoder = dict(head_specs), None  # unless there is such a part
        self.first_part, self.last_part = list(self.parts)[0], list(self.parts)[-1]  # the last one writes
        for name, part in self.parts.items():
            if name == self.first_part:
                self.embedding = InputEmbedding(settings, vocab_size, part, shared_embedding,
                                                share_all=shared_embedding is not None)
            else:
                setattr(self, f"{name}_embedding", InputEmbedding(settings, vocab_size, part, shared=self.embedding))
            setattr(self, name, registry.get("body", part.body.kind).build(settings, part))
        self.position = build_position_scheme(settings)
        self.relative_positions = self.position.build_relative_positions()
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in head_specs.items()})
        # last, so that what is shared has its name in this network
        self.generator = None if generator_head_specs is None else Network(settings.generator_network(), vocab_size,
                                                                           generator_head_specs,
                                                                shared_embedding=self.embedding)
        nn.Module.register_state_dict_post_hook(self, _drop_shared_parameters)
        nn.Module.register_load_state_dict_pre_hook(self, _restore_shared_parameters)

    @property
    def vocab_size(self) -> int:
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

    def embedding_of(self, part: str) -> InputEmbedding:
        embedding: InputEmbedding = self.embedding if part == self.first_part else getattr(self, f"{part}_embedding")
        return embedding

    def body_modules(self) -> list[nn.Module]:
        """All that heads read the output of."""
        return [*self._input_modules(), *map(self.body_of, self.parts)]

    def _input_modules(self) -> list[nn.Module]:
        """What the bodies read."""
        return [*map(self.embedding_of, self.parts),
                *([] if self.relative_positions is None else [self.relative_positions])]

    @property
    def input_network(self) -> Network:
        """The network that reads the text of a batch as it is: the generator where there is one, whose output the
        network itself then reads."""
        return self if self.generator is None else self.generator

    def shared_parameter_names(self) -> dict[str, str]:
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
    def num_layers(self) -> int:
        """How many layers there are from the embedding up, a decoder's above the encoder's: the depth of the
        highest."""
        return len(self._named_layers())

    def _named_layers(self) -> list[tuple[str, list[nn.Module]]]:
        return [(f"{part}.{number}", modules) for part in self.parts
                for number, modules in enumerate(self.body_of(part).layer_groups())]

    def parameter_groups(self) -> list[ParameterGroup]:
        """Every parameter once: the embedding, each layer from below, and on top each head and a generator."""
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        layers = self._named_layers()
        top: list[tuple[str, list[nn.Module]]] = [(f"head.{name}", [head]) for name, head in self.heads.items()]
        if self.generator is not None:
            top.append((GENERATOR, [self.generator]))
        groups = []
        modules_by_group: list[tuple[str, list[nn.Module]]] = [("embedding", self._input_modules()), *layers, *top]
        for depth, (name, modules) in enumerate(modules_by_group):
            parameters = {names.pop(id(parameter)): parameter for module in modules for parameter in module.parameters()
                     if id(parameter) in names}
            groups.append(ParameterGroup(name, min(depth, len(layers) + 1), parameters))
        assert not names, f"of no group: {', '.join(names.values())}"
        return groups

    def forward(self, streams: Mapping[str, Stream], state: State | None = None, keep_hidden_states: bool = False,
                keep_attention_scores: bool = False) -> NetworkOutput:
        """`state` is what the call before gave back, or a new Cache where text is to be read bit by bit: that of the
        last part; the texts of the parts before it are given once, with the first bit. `observe`: with the scores of
        attention."""
        keep_hidden_states = keep_hidden_states or any(getattr(spec, "keep_layers",
                                                               False) for spec in self.head_specs.values())
        cache = state if isinstance(state, KVCache) else None
        output = NetworkOutput({}, state=cache)
        outputs: dict[str, CrossAttentionCache] = {} if cache is None else cache.cross_caches
        for name, part in self.parts.items():
            if name not in streams:
                continue
            stream, cross_cache = streams[name], None
            if part.attends_to is not None:
                assert part.attends_to in outputs, f"the {part.attends_to} has read nothing yet"
                cross_cache = outputs[part.attends_to]
            own = self._initial_state(state, stream) if name == self.last_part else None
            given = build_stack_input(self, stream, own, cross_cache)
            self._run_part(part, stream, replace(given, keep_hidden_states=keep_hidden_states,
                                                 keep_attention_scores=keep_attention_scores), output)
            if any(other.attends_to == name for other in self.parts.values()):
                outputs[name] = CrossAttentionCache(output[name], cross_attention_mask(stream),
                                                    enabled=cache is not None)
        return output

    def _run_part(self, part: NetworkPart, stream: Stream, stack_input: StackInput, output: NetworkOutput) -> None:
        """One part: what leaves it is added to `hidden`."""
        x = self.embedding_of(part.name)(replace(stream, position_ids=stack_input.position_ids))
        if stream.query_positions is not None:
            x = torch.cat([x, self.embedding.query_vectors(stream.query_positions).to(x.dtype)], 1)
        stack_output: StackOutput = self.body_of(part.name)(x, stack_input)
        x = stack_output.last_hidden_state
        if stream.query_positions is None:
            output.last_hidden_states[part.name] = x
        elif stack_input.keep_hidden_states or stack_input.keep_attention_scores:
            output.last_hidden_states |= {part.name: x[:, : stack_input.length], QUERY: x[:, stack_input.length:]}
        else:  # the text itself was not computed to the end
            output.last_hidden_states[QUERY] = x
        if stack_output.hidden_states is not None:
            output.hidden_states[part.name] = stack_output.hidden_states
        if part.name == self.last_part:
            output.state = Memory(tuple(stack_output.memory)) if stack_output.memory else stack_input.cache
        name_prefix = "" if len(self.parts) == 1 else f"{part.name}_"  # each part tells of itself
        output.auxiliary_losses |= {name_prefix + name: cost for name, cost in stack_output.auxiliary_losses.items()}
        output.metrics |= {name_prefix + name: measure for name, measure in stack_output.metrics.items()}
        output.attention_scores |= _attention_scores_by_part(part.name, stack_output)

    def _initial_state(self, state: State | None, stream: Stream) -> State | None:
        """A network with a memory always has one, unless nothing is to be kept: inputs while it is trained, otherwise
        keys and values."""
        memory = self.settings.memory
        blank = memory is not None and memory.start == "zeros"
        if memory is None or state is not None or self.training or (stream.reuse_length == 0 and not blank):
            return state
        return self.new_cache()

    def new_cache(self, max_length: int | None = None) -> KVCache:
        """For reading text bit by bit. `limit`: how many positions a network with a memory keeps, if not as many as its
        settings say."""
        memory = self.settings.memory
        return KVCache(None if memory is None else max_length or memory.evaluation or memory.length)

    def head(self, name: str) -> ScoringHead:
        return cast(ScoringHead, self.heads[name])

    def pool(self, hidden: Tensor) -> Tensor:
        return self.head(POOLER)(hidden)

    def own_state_dict(self) -> dict[str, Tensor]:
        """The tensors that are this network's alone: a generator is saved and counted as a network of its own."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(f"{GENERATOR}.")}

    def parameter_count(self, heads: bool = True) -> int:
        """Every number once; without heads, BERT's pooler still counts as part of the body."""
        counted = {group.name: sum(parameter.numel() for parameter in group.parameters.values())
                   for group in self.parameter_groups() if group.name != GENERATOR}
        if heads:
            return sum(counted.values())
        head_parameters = sum(count for name, count in counted.items() if name.startswith("head.") and name
                              != f"head.{POOLER}")
        # task embeddings serve the tasks alone, as heads do: releases come without them
        tasks = self.embedding.module(TASKS)
        serving = 0 if tasks is None else sum(parameter.numel() for parameter in tasks.parameters())
        return sum(counted.values()) - head_parameters - serving


def _attention_scores_by_part(part: str, output: StackOutput) -> dict[str, list[Tensor]]:
    """The scores of every layer by what they are: a part's attention to its own text, and a decoder's to another."""
    names = {"attention": part, "cross": "cross"}
    return {names[name]: [layer[name] for layer in output.attention_scores] for name in names if output.attention_scores
            and name in output.attention_scores[0]}


def _drop_shared_parameters(network: nn.Module, state: dict[str, object], prefix: str, _: object) -> None:
    assert isinstance(network, Network)
    for name in network.shared_parameter_names():
        state.pop(prefix + name, None)


def _restore_shared_parameters(network: nn.Module, state: dict[str, object], prefix: str, *_: object) -> None:
    assert isinstance(network, Network)
    for name, own in network.shared_parameter_names().items():
        if prefix + own in state:
            state[prefix + name] = state[prefix + own]
