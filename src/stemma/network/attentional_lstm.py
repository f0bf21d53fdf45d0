"""An LSTM decoder with attention: the translators before the Transformer.

- RNNsearch (arXiv:1409.0473): the previous state scores the source positions, and the weighted sum of their states is
  an input of the step. The readout is a maxout layer over the previous state, the previous token and the context
  (appendix A.2.2).
- Luong et al. (arXiv:1508.04025): the new state scores the source. The readout is tanh(W [context; state]). With input
  feeding it is an input of the next step.

With feedback a step needs the result of the one before, so steps run one after the other, vectorized over the batch.
The share of the token in the gates and the projection of the source are computed for all positions at once. Without
feedback the whole text is one call of the fused LSTM, and attention is two matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.cache import CrossAttentionCache, LayerKVCache
from stemma.network.dropout import Dropout
from stemma.network.initialization import Initializer, Linear, default_initializer
from stemma.network.lstm_layer import LSTMLayer, LSTMState
from stemma.network.module import ModuleSequence, TensorModule
from stemma.network.translator_kinds import AttentionalLSTMSettings
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class SourceAttention(nn.Module):
    """Attention of decoder states to source positions, with one head."""

    def __init__(self, settings: NetworkSettings, score: str, hidden: int, source: int):
        super().__init__()
        self.score = score
        self.query = self.key = self.weight = None
        if score == "additive":
            self.query = _linear(settings, hidden, hidden, bias=False)
            self.key = _linear(settings, source, hidden, bias=True)
            self.weight = nn.Parameter(torch.empty(hidden))
            with torch.no_grad():
                default_initializer(settings, hidden)(self.weight)
        elif score == "general":
            self.key = _linear(settings, source, hidden, bias=False)

    def keys(self, source: Tensor) -> Tensor:
        """(B, S, source width) -> (B, S, hidden): what does not depend on the decoder."""
        return source if self.key is None else self.key(source)

    def forward(self, query: Tensor, keys: Tensor, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, Q, hidden) states -> (B, Q, source width) contexts, (B, Q, S) scores. `mask`: (B, 1, S) False at
        padding."""
        if self.weight is not None and self.query is not None:
            scores = torch.tanh(self.query(query)[:, :, None] + keys[:, None]) @ self.weight
        else:
            scores = query @ keys.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ source, scores


@dataclass
class Source:
    """The encoder's output, as the decoder uses it."""

    states: Tensor  # (B, S, source width)
    keys: Tensor  # (B, S, hidden)
    mask: Tensor | None  # (B, 1, S) False at padding


@dataclass
class Steps:
    """Results of the steps of a call, each (B, ...), in order."""

    queries: list[Tensor] = field(default_factory=list)
    contexts: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    residuals: list[Tensor] = field(default_factory=list)


class AttentionalLSTM(Body):
    """The decoder of a recurrent translator."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        body = part.body
        assert isinstance(body, AttentionalLSTMSettings)
        width, source = settings.embedding.width or settings.width, settings.width
        hidden, self.readout_width = body.hidden or settings.width, body.output_width(settings.width)
        self.feeding, self.residual, self.token_width = body.feeding, body.residual, width
        fed = {"context": source, "output": self.readout_width, "none": 0}[body.feeding]
        initializer = default_initializer(settings, hidden)
        self.layers = ModuleSequence[LSTMLayer]([LSTMLayer(width + fed if index == 0 else hidden, hidden, initializer)
                                                 for index in range(part.layers)])
        self.attention = SourceAttention(settings, body.score, hidden, source)
        self.start = FirstState(settings, source, hidden, part.layers) if body.start == "first" else None
        inputs, outputs = source + hidden, self.readout_width
        if body.feeding == "context":
            inputs, outputs = inputs + width, 2 * outputs
        self.readout = _linear(settings, inputs, outputs, bias=True)
        self.dropout = Dropout(settings.dropout)

    def layer_groups(self) -> list[list[nn.Module]]:
        """The first state belongs to the lowest layer, attention and readout to the highest."""
        groups: list[list[nn.Module]] = [[layer] for layer in self.layers]
        groups[0] += [] if self.start is None else [self.start]
        groups[-1] += [self.attention, self.readout]
        return groups

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        assert stack_input.cross_cache is not None
        with torch.autocast(x.device.type, enabled=False):  # a recurrent state needs full precision
            return self._forward(x.float(), stack_input, stack_input.cross_cache)

    def _forward(self, x: Tensor, stack_input: StackInput, cross_cache: CrossAttentionCache) -> StackOutput:
        states = cross_cache.encoder_output.float()
        (keys,) = cross_cache.keys_and_values(0, lambda source: (self.attention.keys(source.float()),))
        dense = cross_cache.mask.dense
        mask = None if dense is None else dense[:, 0, :1].expand(len(states), 1, states.shape[1])
        source, cache = Source(states, keys, mask), None if stack_input.cache is None else stack_input.cache[0]
        layer_states, fed = self._initial(x, cross_cache, cache)
        if self.feeding == "none":
            y, layer_states, scores = self._all_at_once(x, source, layer_states)
        else:
            y, layer_states, fed, scores = self._step_by_step(x, source, layer_states, fed)
        if cache is not None:
            tensors = {f"{name}{index}": tensor for index, state in enumerate(layer_states)
                       for name, tensor in (("output", state.output), ("cell", state.cell))}
            cache.store_states(x.shape[1], **tensors, **({} if fed is None else {"fed": fed}))
        output = StackOutput(y, hidden_states=[x, y] if stack_input.keep_hidden_states else None)
        if stack_input.keep_attention_scores:
            output.attention_scores = [{"cross": scores[:, None]}]
        return output

    def _initial(self, x: Tensor, cross_cache: CrossAttentionCache,
                 cache: LayerKVCache | None) -> tuple[list[LSTMState], Tensor | None]:
        """The state before the first position of this call, and with input feeding the last readout."""
        if cache is not None and cache.sublayer_states:
            stored = cache.sublayer_states
            return [LSTMState(stored[f"output{index}"], stored[f"cell{index}"]) for index in range(len(self.layers))], \
                stored.get("fed")
        if self.start is not None:
            states = self.start(cross_cache.encoder_output.float())
        else:
            assert cross_cache.final_states is not None, "the encoder returns no final states"
            states = [LSTMState(output.float(), cell.float()) for output, cell in cross_cache.final_states]
        return states, x.new_zeros(len(x), self.readout_width) if self.feeding == "output" else None

    def _all_at_once(self, x: Tensor, source: Source,
                     states: list[LSTMState]) -> tuple[Tensor, list[LSTMState], Tensor]:
        """All positions by the fused LSTM, then attention."""
        outputs, new_states = self._run_layers(x, states)
        contexts, scores = self.attention(outputs[-1], source.keys, source.states, source.mask)
        y = torch.tanh(self.readout(torch.cat([contexts, outputs[-1]], -1)))
        if self.residual:
            y = y + outputs[self.residual - 1]
        return self.dropout(y), new_states, scores

    def _run_layers(self, x: Tensor, states: Sequence[LSTMState | None]) -> tuple[list[Tensor], list[LSTMState]]:
        """(B, L, hidden) of each layer, and the last states. `x`: what the first layer reads."""
        outputs, new_states = [x], []
        for layer, state in zip(self.layers, states, strict=False):
            y, new_state = layer(outputs[-1] if len(outputs) == 1 else self.dropout(outputs[-1]), state)
            outputs.append(y)
            new_states.append(new_state)
        return outputs[1:], new_states

    def language_model(self, x: Tensor) -> Tensor:
        """(B, L, token width) -> (B, L, hidden): the output of the residual layer without a source, for the output
        layer of a language model."""
        assert self.residual and self.feeding == "none"
        with torch.autocast(x.device.type, enabled=False):
            return self.dropout(self._run_layers(x.float(), [None] * self.residual)[0][-1])

    def _step_by_step(self, x: Tensor, source: Source, states: list[LSTMState],
                      fed: Tensor | None) -> tuple[Tensor, list[LSTMState], Tensor | None, Tensor]:
        """One position after the other."""
        first = self.layers[0]
        from_tokens = functional.linear(x, first.input[:, :self.token_width], first.bias)  # (B, L, 4 x hidden)
        from_fed = first.input[:, self.token_width:]
        recurrent = [layer.recurrent for layer in self.layers]
        steps = Steps()
        for gates in from_tokens.unbind(1):
            query = self._top(states)
            if self.feeding == "context":
                fed = self._attend(query, source, steps)
            assert fed is not None
            states = self._advance(gates + functional.linear(fed, from_fed), states, recurrent)
            steps.residuals.append(states[self.residual - 1].output)
            if self.feeding == "output":
                context = self._attend(self._top(states), source, steps)
                fed = torch.tanh(self.readout(torch.cat([context, self._top(states)], -1)))
                fed = self.dropout(fed + states[self.residual - 1].output if self.residual else fed)
                steps.outputs.append(fed)
        scores = torch.stack(steps.scores, 1)
        if self.feeding == "output":
            return torch.stack(steps.outputs, 1), states, fed, scores
        queries, contexts = torch.stack(steps.queries, 1), torch.stack(steps.contexts, 1)
        y = self.readout(torch.cat([contexts, queries, x], -1)).unflatten(-1, (self.readout_width, 2)).amax(-1)
        if self.residual:
            y = y + torch.stack(steps.residuals, 1)
        return self.dropout(y), states, None, scores

    def _attend(self, query: Tensor, source: Source, steps: Steps) -> Tensor:
        context, scores = self.attention(query[:, None], source.keys, source.states, source.mask)
        steps.queries.append(query)
        steps.contexts.append(context[:, 0])
        steps.scores.append(scores[:, 0])
        return steps.contexts[-1]

    def _top(self, states: list[LSTMState]) -> Tensor:
        """(B, hidden): the state that attends and that is read out."""
        return states[-1].output

    def _advance(self, gates: Tensor, states: list[LSTMState], recurrent: Sequence[Tensor]) -> list[LSTMState]:
        """One step of all layers. `gates`: the inputs' share in the gates of the first layer."""
        new_states: list[LSTMState] = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            if index:
                gates = functional.linear(self.dropout(new_states[-1].output), layer.input, layer.bias)
            write, forget, candidate, expose = (gates + functional.linear(state.output, recurrent[index])).chunk(4, 1)
            cell = forget.sigmoid() * state.cell + write.sigmoid() * candidate.tanh()
            new_states.append(LSTMState(expose.sigmoid() * cell.tanh(), cell))
        return new_states


class FirstState(nn.Module):
    """The decoder's first state, tanh(W h) with the output h of the encoder's backward direction at the first position,
    where it has read the whole text."""

    def __init__(self, settings: NetworkSettings, source: int, hidden: int, layers: int):
        super().__init__()
        self.backward_start = source // 2
        self.maps: ModuleSequence[TensorModule] = ModuleSequence(
            _linear(settings, source - self.backward_start, hidden, bias=True) for _ in range(layers))

    def forward(self, source: Tensor) -> list[LSTMState]:
        """(B, S, source width) -> each layer's state; cells start at 0."""
        outputs = [torch.tanh(linear(source[:, 0, self.backward_start:])) for linear in self.maps]
        return [LSTMState(output, torch.zeros_like(output)) for output in outputs]


def _linear(settings: NetworkSettings, inputs: int, outputs: int, bias: bool) -> Linear:
    initializer: Initializer = default_initializer(settings, inputs)
    return Linear(inputs, outputs, bias, initializer)
