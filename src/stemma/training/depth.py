"""Layers need not learn alike: low ones know what all text has in common, high ones what a task is about.

Layer by layer lower rates and thawing from the top are ULMFiT's (arXiv:1801.06146, sections 3.2 and 3.3); drawing the
highest layers anew is of arXiv:2006.05987. Counted from below, the embedding is layer 0, then come the encoder's, then
a decoder's; heads stand above all. A matrix that guesses tokens by the embedding is the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from stemma.errors import UserError
from stemma.network.network import POOLER, Network
from stemma.schema.network import NetworkSettings
from stemma.schema.training import TrainingSettings

BODY = ("embedding", "decoder_embedding", "distances", "encoder", "decoder")


def height(settings: NetworkSettings) -> int:
    """How many layers there are, the embedding not counted: the number of the highest."""
    return settings.layers + (settings.decoder.layers if settings.decoder is not None else 0)


def depth_of(name: str, settings: NetworkSettings) -> int:
    """The layer that a parameter belongs to; height + 1 is a head."""
    part, *rest = name.split(".")
    if part not in BODY:
        return height(settings) + 1
    if part not in ("encoder", "decoder"):
        return 0
    below, highest = (0, settings.layers) if part == "encoder" else (settings.layers, height(settings))
    if rest[0] == "blocks":
        return below + 1 + int(rest[1])
    return below + 1 if rest[0] == "near" else highest  # distances serve all layers; a norm ends the stack


def rates(network: Network, decay: float, top: int = 1) -> dict[str, float]:
    """By parameter, the share of the learning rate that it learns with: all of it for heads, decay ** top for the
    highest layer."""
    highest = height(network.settings)

    def share(depth: int) -> float:
        return 1.0 if depth > highest else decay ** (highest - depth + top)

    return {name: share(depth_of(name, network.settings)) for name, _ in network.named_parameters()}


def without_top(weights: Mapping[str, Tensor], settings: NetworkSettings, fresh: int) -> dict[str, Tensor]:
    """The weights without those of the `fresh` highest layers, and of the pooler that was fitted to them."""
    highest = height(settings)
    left_out = [name for name in weights if highest - fresh < depth_of(name, settings) <= highest
                or fresh and name.startswith(f"heads.{POOLER}.")]
    return {name: tensor for name, tensor in weights.items() if name not in left_out}


class Layers:
    """Which layers of a network learn, at each step of its training."""

    def __init__(self, network: Network, settings: TrainingSettings):
        self.network, self.every = network, settings.unfreeze
        self.top = height(network.settings) + 1
        self.frozen = self.top if settings.frozen == "all" else settings.frozen
        depths = [(parameter, depth_of(name, network.settings)) for name, parameter in network.named_parameters()]
        for parameter, depth in depths:
            parameter.requires_grad_(depth >= self.frozen)
        # what will learn at some time: an optimizer takes all of it, and does nothing where there is no gradient
        self._thawing = [(parameter, depth) for parameter, depth in depths if depth >= self.frozen]
        if isinstance(self.every, str):
            raise UserError("training.unfreeze = epoch goes with the examples of a fine-tune; text has no such epochs: "
                            "give a number of steps.")
        if (self.every or self.frozen == self.top) and not any(depth == self.top for _, depth in depths):
            raise UserError(f"training.{'unfreeze' if self.every else 'frozen'} lets heads alone learn, and this "
                            "network guesses by its embedding; freeze fewer layers.")

    def learn(self, step: int) -> None:
        """Let those learn whose turn it is at this step."""
        if self.every is not None:
            assert isinstance(self.every, int)
            for parameter, depth in self._thawing:
                parameter.requires_grad_(depth >= self.top - step // self.every)

    def train(self) -> nn.Module:
        """The network in the state to be trained. A body that does not learn gives fixed features: nothing of them is
        dropped."""
        self.network.train()
        if self.frozen == self.top:
            for name, part in self.network.named_children():
                part.train(name not in BODY)
        return self.network

    def never(self, steps: float) -> int:
        """How many layers have no turn in so many steps."""
        if self.every is None:
            return 0
        assert isinstance(self.every, int)
        return max(0, self.top - int(max(steps - 1, 0)) // self.every - self.frozen)
