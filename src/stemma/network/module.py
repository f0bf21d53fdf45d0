"""Modules with types. torch says of the call of any module, and of what a list of modules holds, that it may be
anything; what holds for ours is said here, and nothing is computed otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import torch
from torch import Tensor, nn

Member = TypeVar("Member", bound=nn.Module)


class TensorModule(nn.Module):
    """A module whose output is one tensor."""

    __call__: Callable[..., Tensor]


class TensorFunction(torch.autograd.Function):
    """A function with a backward pass of its own, whose output is one tensor."""

    if TYPE_CHECKING:
        @classmethod
        def apply(cls, *given: object) -> Tensor: ...


class ModuleSequence(nn.ModuleList, Generic[Member]):
    """A list of modules of one class."""

    if TYPE_CHECKING:
        def __iter__(self) -> Iterator[Member]: ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleSequence[Member]: ...

        @overload
        def __getitem__(self, idx: int) -> Member: ...

        def __getitem__(self, idx: int | slice) -> Member | ModuleSequence[Member]: ...
