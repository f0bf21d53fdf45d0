"""context2vec (Melamud, Goldberger & Dagan, CoNLL 2016): a vector for the context of a word, without the word.

An LSTM reads the words before a position, another the words after it, each with an embedding of its own: the first and
the second half of the embedding's dimensions. A network with one hidden layer joins both states. So the output at a
position does not depend on the token there, and predicts it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.network.activation import ACTIVATIONS
from stemma.network.body import Body, StackInput, StackOutput
from stemma.network.dropout import Dropout
from stemma.network.initialization import Initializer, Linear
from stemma.network.lstm_layer import LSTMLayer
from stemma.network.module import ModuleSequence
from stemma.network.opposite_kinds import Context2vecSettings
from stemma.network.tokens_first import TokensFirst
from stemma.schema.network import NetworkSettings
from stemma.schema.parts import NetworkPart


class ContextBody(Body):
    """Both LSTMs, and the layers on them. Matrices start with a standard deviation of 1 / sqrt(input width)."""

    def __init__(self, settings: NetworkSettings, part: NetworkPart):
        super().__init__()
        assert isinstance(part.body, Context2vecSettings)
        self.word_width = (settings.embedding.width or settings.width) // 2
        hidden, initializer = part.body.hidden or settings.width, Initializer(self.word_width**-0.5, False)
        self.directions = ModuleSequence[LSTMLayer](
            [LSTMLayer(self.word_width, hidden, initializer, forget_bias=1.0) for _ in range(2)])
        inner = Initializer((2 * hidden)**-0.5, False)
        self.join, self.output = Linear(2 * hidden, 2 * hidden, True, inner), Linear(2 * hidden, settings.width, True,
                                                                                     inner)
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = Dropout(settings.dropout)

    def layer_groups(self) -> list[list[nn.Module]]:
        return [[self]]

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        with torch.autocast(x.device.type, enabled=False):  # the recurrence needs full precision
            x = x.float()
            padded = TokensFirst.of(stack_input.token_mask)
            words = x if padded is None else padded.gather(x)
            lengths = None if padded is None else padded.lengths
            before, after = (layer(part, None, lengths, bool(index))[0] for index, (layer, part) in
                             enumerate(zip(self.directions, words.split(self.word_width, -1), strict=True)))
            # the state before a position, and that after it; the output at padding is zero
            context = torch.cat([functional.pad(before, (0, 0, 1, -1)), functional.pad(after, (0, 0, -1, 1))], -1)
            joined = self.output(self.dropout(self.activation(self.join(self.dropout(context)))))
            joined = joined if padded is None else padded.restore(joined)
            return StackOutput(joined, hidden_states=[x, joined] if stack_input.keep_hidden_states else None)
