"""Inference views: a second network object over the same parameters.

Inference must not change a network, which other threads or a training loop may be using. If it needs eval mode or other
modules (prepacked weights), it makes a view: a shallow copy of every module that shares all parameters and buffers.
This takes about a millisecond and almost no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)
ModuleReplacement = Callable[[nn.Module], nn.Module | None]


def eval_view(network: AnyModule) -> AnyModule:
    """The network in eval mode: the network itself if all its modules are in eval mode, otherwise a view."""
    return inference_view(network) if any(module.training for module in network.modules()) else network


def inference_view(network: AnyModule, replace: ModuleReplacement = lambda module: None) -> AnyModule:
    """A view of the network in eval mode. `replace` is called with the copy of each module and may return another
    module for it. A module that is referenced several times is copied once."""
    copies: dict[int, nn.Module] = {}

    def copy_module(module: nn.Module) -> nn.Module:
        if id(module) in copies:
            return copies[id(module)]
        copy = object.__new__(type(module))
        copies[id(module)] = copy  # before its attributes are copied: a child may refer to its parent
        copy.__dict__.update({name: with_copies(value) for name, value in vars(module).items()}, training=False)
        if (replacement := replace(copy)) is not None:
            copies[id(module)] = replacement
        return copies[id(module)]

    def with_copies(value: Any) -> Any:
        """Copies children (`_modules`) and plain references to modules, such as a head's tied embedding."""
        if isinstance(value, nn.Module):
            return copy_module(value)
        if type(value) in (list, tuple) and any(isinstance(item, nn.Module) for item in value):
            return type(value)(with_copies(item) for item in value)
        if isinstance(value, dict) and any(isinstance(item, nn.Module) for item in value.values()):
            return type(value)((name, with_copies(item)) for name, item in value.items())
        return value

    view: AnyModule = with_copies(network)  # a copy has the class of its original
    return view
