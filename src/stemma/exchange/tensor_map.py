"""Which tensor of ours is which of Hugging Face's, and how it lies there: read in both directions.

A tensor of ours may be several of theirs, joined in order: one product for query, key and value is three matrices over
there. Where `{i}` stands on our side alone, it is the other way round: all of ours joined are one of theirs. Which
tensors there are is the network's to say; a key only names them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import NamedTuple

import torch
from torch import Tensor


class TensorTransform(NamedTuple):
    """How one tensor lies over there; what is parted by heads there needs their number to be written."""

    from_hf: Callable[[Tensor], Tensor]
    to_hf: Callable[[Tensor, int], Tensor]


IDENTITY = TensorTransform(lambda theirs: theirs, lambda ours, heads: ours)
TRANSPOSED = TensorTransform(lambda theirs: theirs.T, lambda ours, heads: ours.T)


@dataclass(frozen=True)
class TensorKey:
    """Tensors of ours and their parts over there; `{i}` runs over the layers."""

    names: tuple[str, ...]
    hf_names: tuple[str, ...]
    transform: TensorTransform = IDENTITY
    if_present: str | None = None  # only for networks that have a tensor of this name
    if_absent: str | None = None  # only for networks that have none of this name

    @classmethod
    def of(cls, name: str, *hf_names: str, transform: TensorTransform = IDENTITY, if_present: str | None = None,
           if_absent: str | None = None) -> TensorKey:
        return cls((name,), hf_names, transform, if_present, if_absent)

    def expand(self, tensor_names: Container[str]) -> Iterator[TensorKey]:
        """One key for each layer that the network has; the key itself, which then fits no name, if it has none."""
        if (self.if_present is not None and self.if_present not in tensor_names) or (self.if_absent is not None
            and self.if_absent in tensor_names):
            return
        (ours,) = self.names
        layers = []
        if "{i}" in ours:  # the first layer may lack it
            start = 0 if ours.format(i=0) in tensor_names else 1
            layers = [*takewhile(lambda i: ours.format(i=i) in tensor_names, count(start))]
        if not layers:
            yield self
        elif "{i}" not in self.hf_names[0]:
            yield replace(self, names=tuple(ours.format(i=i) for i in layers))
        else:
            for i in layers:
                yield replace(self, names=(ours.format(i=i),),
                              hf_names=tuple(name.format(i=i) for name in self.hf_names))

    def with_prefix(self, prefix: str) -> TensorKey:
        return replace(self, hf_names=tuple(prefix + name for name in self.hf_names))


def linear_keys(layer: str, *hf_names: str, transform: TensorTransform = IDENTITY) -> tuple[TensorKey, TensorKey]:
    """A weight and its bias."""
    return (TensorKey.of(f"{layer}.weight", *(f"{name}.weight" for name in hf_names), transform=transform),
            TensorKey.of(f"{layer}.bias", *(f"{name}.bias" for name in hf_names)))


def to_hf(keys: Iterable[TensorKey], tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for key in keys:
        whole = _concatenate([tensors[name] for name in key.names])
        for name, part in zip(key.hf_names, whole.chunk(len(key.hf_names)), strict=True):
            made[name] = key.transform.to_hf(part, heads).contiguous()
    return made


def from_hf(keys: Iterable[TensorKey], tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`like` has tensors of our shapes, which say where to part what is one of theirs."""
    made: dict[str, Tensor] = {}
    for key in keys:
        whole = _concatenate([key.transform.from_hf(tensors[name]) for name in key.hf_names]).contiguous()
        parts = torch.split(whole, [len(like[name]) for name in key.names]) if len(key.names) > 1 else [whole]
        for name, part in zip(key.names, parts, strict=True):
            made[name] = part if part is whole else part.clone()  # tensors that share memory cannot be saved
    return made


def _concatenate(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
