"""A neural n-gram model (Bengio et al. 2003, "A Neural Probabilistic Language Model").

The logits are b + W x + U tanh(d + H x), where x are the embeddings of the last n - 1 tokens side by side, the oldest
first. The body returns tanh(d + H x), and x beside it if there are direct connections W: the LM head holds [U W].

The last n - 2 embeddings are carried to the next call, so that no context is cut at the start of a contiguous row.
Before the first token of a text they are zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.dropout import Dropout
from stemma.network.initialization import Linear, default_initializer
from stemma.network.tokens_first import TokensFirst
from stemma.network.window_kinds import WindowBodySettings
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class WindowBody(Body):
    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        body = part.body
        assert isinstance(body, WindowBodySettings)
        self.num_earlier, self.direct = body.order - 2, body.direct
        width = body.context_width(settings)
        self.hidden = Linear(width, body.hidden_width(settings), True, default_initializer(settings, width))
        self.output_dropout = Dropout(settings.output_dropout)

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        """(B, L, embedding width) -> (B, L, width)"""
        rows = TokensFirst.of(stack_input.token_mask)
        x = x if rows is None else rows.gather(x)
        inputs = torch.cat([self._earlier(x, stack_input), x], 1)
        windows = inputs.unfold(1, self.num_earlier + 1, 1).transpose(2, 3).flatten(2)  # (B, L, (n - 1) x width)
        y = torch.tanh(self.hidden(windows))
        y = self.output_dropout(torch.cat([y, windows.to(y.dtype)], -1) if self.direct else y)
        y = y if rows is None else rows.restore(y)
        output = StackOutput(y, hidden_states=[x, y] if stack_input.keep_hidden_states else None)
        stored = stack_input.layer_context.reuse_length
        stored = x.shape[1] if stored is None else stored
        if stored and stack_input.cache is not None:
            stack_input.cache[0].store_states(stored, earlier=inputs[:, stored:stored + self.num_earlier])
        elif stored and self.training:
            output.memory = [inputs[:, stored:stored + self.num_earlier].detach().clone()]
        return output

    def _earlier(self, x: Tensor, stack_input: StackInput) -> Tensor:
        """(B, n - 2, width): the embeddings before the first position."""
        if stack_input.memory is not None:
            return stack_input.memory.hidden_states[0].to(x.dtype)
        stored = {} if stack_input.cache is None else stack_input.cache[0].sublayer_states
        return stored["earlier"] if stored else x.new_zeros(len(x), self.num_earlier, x.shape[2])
