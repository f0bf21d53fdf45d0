"""The body of static word vectors: it passes on the vector of each token."""

from __future__ import annotations

from torch import Tensor, nn

from stemma.network.body import Body, StackInput, StackOutput


class StaticBody(Body):
    def layer_groups(self) -> list[list[nn.Module]]:
        return []

    def forward(self, x: Tensor, stack_input: StackInput) -> StackOutput:
        return StackOutput(x, hidden_states=[x] if stack_input.keep_hidden_states else None)
