"""A second network object over the same parameters, for inference.

Inference changes nothing about a network: other threads may be using it, and a training loop may own it. Where it needs
other modules (packed weights) or another mode (no dropout), it makes a view: every module is copied shallowly, every
parameter and buffer is the original's. That takes about a millisecond and no memory to speak of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)
ModuleReplacement = Callable[[nn.Module], nn.Module | None]


def eval_view(network: AnyModule) -> AnyModule:
    """The network in eval mode: itself, if it is in eval mode throughout."""
    return inference_view(network) if any(module.training for module in network.modules()) else network


def inference_view(network: AnyModule, replace: ModuleReplacement = lambda module: None) -> AnyModule:
    """The network in eval mode, over the same parameters; `replace` is given the copy of each module and may return
    another module for it. A module that is used in several places stays one module, however it is referred to."""
    copies: dict[int, nn.Module] = {}

    def copied(module: nn.Module) -> nn.Module:
        if id(module) in copies:
            return copies[id(module)]
        twin = object.__new__(type(module))
        copies[id(module)] = twin  # before its attributes are looked at: a child may refer to its parent
        twin.__dict__.update({name: with_copies(value) for name, value in vars(module).items()}, training=False)
        if (other := replace(twin)) is not None:
            copies[id(module)] = other
        return copies[id(module)]

    def with_copies(value: Any) -> Any:
        """Children (`_modules`) and plain references alike: heads keep a tuple with the embedding they are tied to."""
        if isinstance(value, nn.Module):
            return copied(value)
        if type(value) in (list, tuple) and any(isinstance(one, nn.Module) for one in value):
            return type(value)(with_copies(one) for one in value)
        if isinstance(value, dict) and any(isinstance(one, nn.Module) for one in value.values()):
            return type(value)((name, with_copies(one)) for name, one in value.items())
        return value

    found: AnyModule = with_copies(network)  # a copy has the type of what it is copied from
    return found
