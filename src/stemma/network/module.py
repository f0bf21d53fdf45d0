"""Typed base classes of modules. torch types a module's call and the members of a module list as Any; these classes
state the types and change nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import torch
from torch import Tensor, nn

Member = TypeVar("Member", bound=nn.Module)


class TensorModule(nn.Module):
    """A module that returns one tensor."""

    __call__: Callable[..., Tensor]


class TensorFunction(torch.autograd.Function):
    """An autograd function that returns one tensor."""

    if TYPE_CHECKING:
        @classmethod
        def apply(cls, *arguments: object) -> Tensor: ...


class ModuleSequence(nn.ModuleList, Generic[Member]):
    """An nn.ModuleList of one class."""

    if TYPE_CHECKING:
        def __iter__(self) -> Iterator[Member]: ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleSequence[Member]: ...

        @overload
        def __getitem__(self, idx: int) -> Member: ...

        def __getitem__(self, idx: int | slice) -> Member | ModuleSequence[Member]: ...
