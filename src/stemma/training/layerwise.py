"""Layer-wise training: learning-rate decay by depth, freezing, gradual unfreezing (ULMFiT, arXiv:1801.06146, sections
3.2 and 3.3).

Layer 0 is the embedding, then come the layers of the encoder and of the decoder; heads are on top. A tied LM head
belongs to the embedding. Re-initializing the top layers (arXiv:2006.05987) is in `weight_transfer`.
"""

from __future__ import annotations

from torch import nn

from stemma.errors import UserError
from stemma.network.network import Network
from stemma.schema.training import TrainingSettings


def layer_lr_scales(network: Network, decay: float, top: int = 1) -> dict[str, float]:
    """Factor of the learning rate of each parameter: 1 for heads, decay ** top for the highest layer."""
    highest = network.num_layers

    def scale(depth: int) -> float:
        return 1.0 if depth > highest else decay ** (highest - depth + top)

    return {name: scale(group.layer_index) for group in network.parameter_groups() for name in group.parameters}


class LayerFreezing:
    """Freezing and gradual unfreezing of the layers of a network."""

    def __init__(self, network: Network, settings: TrainingSettings):
        self.network, self.unfreeze_every = network, settings.unfreeze
        groups = network.parameter_groups()
        self.top_index = network.num_layers + 1
        self.num_frozen = self.top_index if settings.frozen == "all" else settings.frozen
        depths = [(parameter, group.layer_index) for group in groups for parameter in group.parameters.values()]
        for parameter, depth in depths:
            parameter.requires_grad_(depth >= self.num_frozen)
        # trained at some step: the optimizer holds all of them and skips those without gradient
        self._trainable = [(parameter, depth) for parameter, depth in depths if depth >= self.num_frozen]
        self._lowest_trained = self.num_frozen  # lowest layer trained now
        if isinstance(self.unfreeze_every, str):
            raise UserError("training.unfreeze = epoch goes with the examples of a fine-tune; text has no such epochs: "
                            "give a number of steps.")
        has_heads = any(depth == self.top_index for _, depth in depths)
        if (self.unfreeze_every or self.num_frozen == self.top_index) and not has_heads:
            key = "unfreeze" if self.unfreeze_every else "frozen"
            raise UserError(f"training.{key} trains only the heads, and the LM head of this network is its embedding; "
                            "freeze fewer layers.")

    def unfreeze_for_step(self, step: int) -> None:
        """Unfreeze the layers that are due at this step."""
        if self.unfreeze_every is not None:
            assert isinstance(self.unfreeze_every, int)
            lowest = self.top_index - step // self.unfreeze_every
            if lowest != self._lowest_trained:
                for parameter, depth in self._trainable:
                    parameter.requires_grad_(depth >= lowest)
            self._lowest_trained = lowest

    def set_train_mode(self) -> nn.Module:
        """Put the network into training mode; a frozen body stays in evaluation mode, without dropout."""
        self.network.train()
        if self.num_frozen == self.top_index:
            for module in self.network.body_modules():
                module.eval()
        return self.network

    def num_never_unfrozen(self, steps: float) -> int:
        """Number of layers that are still frozen after `steps` steps."""
        if self.unfreeze_every is None:
            return 0
        assert isinstance(self.unfreeze_every, int)
        return max(0, self.top_index - int(max(steps - 1, 0)) // self.unfreeze_every - self.num_frozen)
