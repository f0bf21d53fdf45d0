"""Layers need not learn alike: low ones know what all text has in common, high ones what a task is about.

Layer by layer lower rates and thawing from the top are ULMFiT's (arXiv:1801.06146, sections 3.2 and 3.3); drawing the
highest layers anew is of arXiv:2006.05987. Counted from below, the embedding is layer 0, then come the encoder's, then
a decoder's; heads stand above all. A matrix that guesses tokens by the embedding is the embedding.
"""

from __future__ import annotations

from torch import nn

from stemma.errors import UserError
from stemma.network.network import Network
from stemma.schema.training import TrainingSettings


def layer_lr_scales(network: Network, decay: float, top: int = 1) -> dict[str, float]:
    """By parameter, the share of the learning rate that it learns with: all of it for heads, decay ** top for the
    highest layer."""
    highest = network.num_layers

    def share(depth: int) -> float:
        return 1.0 if depth > highest else decay ** (highest - depth + top)

    return {name: share(group.layer_index) for group in network.parameter_groups() for name in group.parameters}


class LayerFreezing:
    """Which layers of a network learn, at each step of its training."""

    def __init__(self, network: Network, settings: TrainingSettings):
        self.network, self.unfreeze_every = network, settings.unfreeze
        groups = network.parameter_groups()
        self.top_index = network.num_layers + 1
        self.num_frozen = self.top_index if settings.frozen == "all" else settings.frozen
        depths = [(parameter, group.layer_index) for group in groups for parameter in group.parameters.values()]
        for parameter, depth in depths:
            parameter.requires_grad_(depth >= self.num_frozen)
        # what will learn at some time: an optimizer takes all of it, and does nothing where there is no gradient
        self._trainable = [(parameter, depth) for parameter, depth in depths if depth >= self.num_frozen]
        self._lowest_trained = self.num_frozen  # that learns now
        if isinstance(self.unfreeze_every, str):
            raise UserError("training.unfreeze = epoch goes with the examples of a fine-tune; text has no such epochs: "
                            "give a number of steps.")
        if (self.unfreeze_every or self.num_frozen == self.top_index) and not any(depth == self.top_index for _,
                                                                                  depth in depths):
            raise UserError(f"training.{'unfreeze' if self.unfreeze_every else 'frozen'} lets heads alone learn, and this "
                            "network guesses by its embedding; freeze fewer layers.")

    def unfreeze_for_step(self, step: int) -> None:
        """Let those learn whose turn it is at this step."""
        if self.unfreeze_every is not None:
            assert isinstance(self.unfreeze_every, int)
            lowest = self.top_index - step // self.unfreeze_every
            if lowest != self._lowest_trained:
                for parameter, depth in self._trainable:
                    parameter.requires_grad_(depth >= lowest)
            self._lowest_trained = lowest

    def set_train_mode(self) -> nn.Module:
        """The network in the state to be trained. A body that does not learn gives fixed features: nothing of them is
        dropped."""
        self.network.train()
        if self.num_frozen == self.top_index:
            for part in self.network.body_modules():
                part.eval()
        return self.network

    def num_never_unfrozen(self, steps: float) -> int:
        """How many layers have no turn in so many steps."""
        if self.unfreeze_every is None:
            return 0
        assert isinstance(self.unfreeze_every, int)
        return max(0, self.top_index - int(max(steps - 1, 0)) // self.unfreeze_every - self.num_frozen)
