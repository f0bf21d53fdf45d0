"""The network: an embedding and a body for each part (encoder, decoder), and the heads that the objectives require.

There are no model families here: a recipe's settings select the modules.
"""

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
from stemma.network.head_offsets import initialize_head_offsets
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
    """Parameters that are frozen, unfrozen, re-initialized and scaled in learning rate together."""

    name: str  # "embedding", "encoder.0", "decoder.0", "head.NAME", "generator"
    layer_index: int  # 0: the embedding; then the layers from the bottom; heads and a generator are above them
    parameters: Mapping[str, nn.Parameter]  # by name in the network


class Network(nn.Module):
    """Embeddings, bodies and heads of one model.

    The body of a part is the attribute of its name (`encoder`, `decoder`). Parts after the first have their own
    embedding module (`decoder_embedding`), which shares the token embedding.

    `generator_head_specs`: heads of ELECTRA's generator, a second and smaller network over the same embedding; None:
    no generator. The generator is a complete Network, built with `shared_embedding`."""

    __call__: Callable[..., NetworkOutput]
    embedding: InputEmbedding
    encoder: Body
    decoder: Body | None

    def __init__(self, settings: NetworkSettings, vocab_size: int, head_specs: Mapping[str, HeadSpec],
                 generator_head_specs: Mapping[str, HeadSpec] | None = None,
                 shared_embedding: InputEmbedding | None = None):
        super().__init__()
        self.settings, self.parts = settings, settings.parts()
        self.head_specs, self.decoder = dict(head_specs), None  # set below if there is such a part
        self.first_part, self.last_part = list(self.parts)[0], list(self.parts)[-1]  # the last part generates text
        for name, part in self.parts.items():
            if name == self.first_part:
                self.embedding = InputEmbedding(settings, vocab_size, part, shared_embedding,
                                                share_all=shared_embedding is not None)
            else:
                setattr(self, f"{name}_embedding", InputEmbedding(settings, vocab_size, part, shared=self.embedding))
            setattr(self, name, registry.get("body", part.body.kind).build(settings, part))
            if offsets := settings.initialization.head_offsets:
                initialize_head_offsets(settings, self.embedding_of(name), self.body_of(name),
                                        offsets if name == self.first_part else
                                        [offset for offset in offsets if offset < 0] or offsets)
        self.position = build_position_scheme(settings)
        self.relative_positions = self.position.build_relative_positions()
        self.heads = nn.ModuleDict({name: spec.build(settings, self.embedding) for name, spec in head_specs.items()})
        # assigned last, so that shared parameters are registered under this network's names
        self.generator = None if generator_head_specs is None else \
            Network(settings.generator_network(), vocab_size, generator_head_specs, shared_embedding=self.embedding)
        nn.Module.register_state_dict_post_hook(self, _drop_shared_parameters)
        nn.Module.register_load_state_dict_pre_hook(self, _restore_shared_parameters)

    @property
    def vocab_size(self) -> int:
        return self.embedding.tokens.num_embeddings

    def start_inputs(self, tokenizer: Any, weights: Collection[str] = ()) -> None:
        """Set the data that inputs have before training, such as the spelling of tokens. `weights`: names of weights
        that are loaded from another model; inputs with such weights do not change."""
        for name, settings in self.embedding.input_settings.items():
            loaded = any(weight.startswith(f"embedding.inputs.{name}.") for weight in weights)
            if settings.from_ids or not loaded:
                settings.start(name, self.embedding.module(name), tokenizer)

    def body_of(self, part: str) -> Body:
        body: Body = getattr(self, part)
        return body

    def embedding_of(self, part: str) -> InputEmbedding:
        embedding: InputEmbedding = self.embedding if part == self.first_part else getattr(self, f"{part}_embedding")
        return embedding

    def body_modules(self) -> list[nn.Module]:
        """All modules below the heads."""
        return [*self._input_modules(), *map(self.body_of, self.parts)]

    def _input_modules(self) -> list[nn.Module]:
        """The modules whose output the bodies receive."""
        return [*map(self.embedding_of, self.parts),
                *([] if self.relative_positions is None else [self.relative_positions])]

    @property
    def input_network(self) -> Network:
        """The network that receives the batch first: the generator if there is one (ELECTRA), else this network."""
        return self if self.generator is None else self.generator

    def shared_parameter_names(self) -> dict[str, str]:
        """Further names of shared parameters and buffers (tied embeddings, cross-layer sharing), each mapped to the
        name that they are stored and counted under. A generator is stored separately."""
        stored_names: dict[int, str] = {}
        duplicates: dict[str, str] = {}
        for name, parameter in chain(self.named_parameters(remove_duplicate=False),
                                     self.named_buffers(remove_duplicate=False)):
            if name.startswith(f"{GENERATOR}."):
                continue
            stored_name = stored_names.setdefault(id(parameter), name)
            duplicates |= {name: stored_name} if stored_name != name else {}
        return duplicates

    @property
    def num_layers(self) -> int:
        """Number of layers above the embedding, of all parts; a decoder's layers count above the encoder's."""
        return len(self._named_layers())

    def _named_layers(self) -> list[tuple[str, list[nn.Module]]]:
        return [(f"{part}.{index}", modules) for part in self.parts
                for index, modules in enumerate(self.body_of(part).layer_groups())]

    def parameter_groups(self) -> list[ParameterGroup]:
        """Every parameter once: the embedding, each layer from the bottom, then each head and the generator."""
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        layers = self._named_layers()
        top: list[tuple[str, list[nn.Module]]] = [(f"head.{name}", [head]) for name, head in self.heads.items()]
        if self.generator is not None:
            top.append((GENERATOR, [self.generator]))
        groups = []
        modules_by_group: list[tuple[str, list[nn.Module]]] = [("embedding", self._input_modules()), *layers, *top]
        for depth, (name, modules) in enumerate(modules_by_group):
            parameters = {names.pop(id(parameter)): parameter for module in modules
                          for parameter in module.parameters() if id(parameter) in names}
            groups.append(ParameterGroup(name, min(depth, len(layers) + 1), parameters))
        assert not names, f"parameters without a group: {', '.join(names.values())}"
        return groups

    def forward(self, streams: Mapping[str, Stream], state: State | None = None, keep_hidden_states: bool = False,
                keep_attention_scores: bool = False) -> NetworkOutput:
        """`state`: the state of the previous call, or a new cache for incremental decoding. It belongs to the last
        part; the streams of the other parts are needed in the first call only."""
        keep_hidden_states |= any(getattr(spec, "keep_layers", False) for spec in self.head_specs.values())
        cache = state if isinstance(state, KVCache) else None
        output = NetworkOutput({}, state=cache)
        cross_caches: dict[str, CrossAttentionCache] = {} if cache is None else cache.cross_caches
        for name, part in self.parts.items():
            if name not in streams:
                continue
            stream, cross_cache = streams[name], None
            if part.attends_to is not None:
                assert part.attends_to in cross_caches, f"the {part.attends_to} has no input yet"
                cross_cache = cross_caches[part.attends_to]
            part_state = self._initial_state(state, stream) if name == self.last_part else None
            stack_input = build_stack_input(self, stream, part_state, cross_cache)
            stack_input = replace(stack_input, keep_hidden_states=keep_hidden_states,
                                  keep_attention_scores=keep_attention_scores)
            self._run_part(part, stream, stack_input, output)
            if any(other.attends_to == name for other in self.parts.values()):
                cross_caches[name] = CrossAttentionCache(output[name], cross_attention_mask(stream),
                                                         enabled=cache is not None)
        return output

    def _run_part(self, part: NetworkPart, stream: Stream, stack_input: StackInput, output: NetworkOutput) -> None:
        """Run one part and add its results to `output`."""
        x = self.embedding_of(part.name)(replace(stream, position_ids=stack_input.position_ids))
        if stream.query_positions is not None:
            x = torch.cat([x, self.embedding.query_vectors(stream.query_positions).to(x.dtype)], 1)
        stack_output: StackOutput = self.body_of(part.name)(x, stack_input)
        x = stack_output.last_hidden_state
        if stream.query_positions is None:
            output.last_hidden_states[part.name] = x
        elif stack_input.keep_hidden_states or stack_input.keep_attention_scores:
            output.last_hidden_states |= {part.name: x[:, : stack_input.length], QUERY: x[:, stack_input.length:]}
        else:  # the last layer was computed for the query stream only
            output.last_hidden_states[QUERY] = x
        if stack_output.hidden_states is not None:
            output.hidden_states[part.name] = stack_output.hidden_states
        if part.name == self.last_part:
            output.state = Memory(tuple(stack_output.memory)) if stack_output.memory else stack_input.cache
        name_prefix = "" if len(self.parts) == 1 else f"{part.name}_"  # one part needs no prefix
        output.auxiliary_losses |= {name_prefix + name: loss for name, loss in stack_output.auxiliary_losses.items()}
        output.metrics |= {name_prefix + name: metric for name, metric in stack_output.metrics.items()}
        output.attention_scores |= _attention_scores_by_part(part.name, stack_output)

    def _initial_state(self, state: State | None, stream: Stream) -> State | None:
        """The given state, or a new cache in evaluation of a network that continues, unless nothing is stored in it.

        In training the memory holds hidden states instead (`stack_input.py`)."""
        memory = self.settings.memory
        starts_with_zeros = memory is not None and memory.start == "zeros"
        stores_nothing = stream.reuse_length == 0 and not starts_with_zeros
        if not self.settings.continues or state is not None or self.training or stores_nothing:
            return state
        return self.new_cache()

    def new_cache(self, max_length: int | None = None) -> KVCache:
        """An empty cache for incremental decoding. `max_length`: memory length of a network with memory; None: by its
        settings."""
        memory = self.settings.memory
        return KVCache(None if memory is None else max_length or memory.eval_length or memory.length)

    def head(self, name: str) -> ScoringHead:
        return cast(ScoringHead, self.heads[name])

    def pool(self, hidden: Tensor) -> Tensor:
        return self.head(POOLER)(hidden)

    def own_state_dict(self) -> dict[str, Tensor]:
        """The state dict without the generator, which is saved and counted as a separate network."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(f"{GENERATOR}.")}

    def parameter_count(self, heads: bool = True) -> int:
        """Number of parameters, shared ones once. Without heads, BERT's pooler still counts as part of the body."""
        counts = {group.name: sum(parameter.numel() for parameter in group.parameters.values())
                  for group in self.parameter_groups() if group.name != GENERATOR}
        if heads:
            return sum(counts.values())
        head_parameters = sum(count for name, count in counts.items()
                              if name.startswith("head.") and name != f"head.{POOLER}")
        # task embeddings count as heads: released models come without them
        tasks = self.embedding.module(TASKS)
        task_parameters = 0 if tasks is None else sum(parameter.numel() for parameter in tasks.parameters())
        return sum(counts.values()) - head_parameters - task_parameters


def _attention_scores_by_part(part: str, output: StackOutput) -> dict[str, list[Tensor]]:
    """The scores of every layer: self-attention under the part's name, cross-attention under "cross"."""
    names = {"attention": part, "cross": "cross"}
    return {names[name]: [layer[name] for layer in output.attention_scores] for name in names if output.attention_scores
            and name in output.attention_scores[0]}


def _drop_shared_parameters(network: nn.Module, state: dict[str, object], prefix: str, _: object) -> None:
    assert isinstance(network, Network)
    for name in network.shared_parameter_names():
        state.pop(prefix + name, None)


def _restore_shared_parameters(network: nn.Module, state: dict[str, object], prefix: str, *_: object) -> None:
    assert isinstance(network, Network)
    for name, stored_name in network.shared_parameter_names().items():
        if prefix + stored_name in state:
            state[prefix + name] = state[prefix + stored_name]
