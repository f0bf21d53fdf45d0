"""The mapping between native tensors and those of Hugging Face, used in both directions.

One native tensor may be several Hugging Face tensors, concatenated in order: the fused query, key and value matrix is
three matrices there. If `{i}` is in the native name alone, it is the reverse: all layers concatenated are one Hugging
Face tensor. A key only names tensors; the network decides which exist.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import NamedTuple

import torch
from torch import Tensor


class TensorTransform(NamedTuple):
    """The conversion of one tensor; `to_hf` also gets the number of attention heads."""

    from_hf: Callable[[Tensor], Tensor]
    to_hf: Callable[[Tensor, int], Tensor]


IDENTITY = TensorTransform(lambda tensor: tensor, lambda tensor, heads: tensor)
TRANSPOSED = TensorTransform(lambda tensor: tensor.T, lambda tensor, heads: tensor.T)


@dataclass(frozen=True)
class TensorKey:
    """Native tensors and their Hugging Face counterparts; `{i}` is the layer index."""

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
        """One key for each layer of the network. Without any, the key itself, which then matches no tensor."""
        if self.if_present is not None and self.if_present not in tensor_names:
            return
        if self.if_absent is not None and self.if_absent in tensor_names:
            return
        (pattern,) = self.names
        layers = []
        if "{i}" in pattern:  # the first layer may lack the tensor
            start = 0 if pattern.format(i=0) in tensor_names else 1
            layers = [*takewhile(lambda i: pattern.format(i=i) in tensor_names, count(start))]
        if not layers:
            yield self
        elif "{i}" not in self.hf_names[0]:
            yield replace(self, names=tuple(pattern.format(i=i) for i in layers))
        else:
            for i in layers:
                yield replace(self, names=(pattern.format(i=i),),
                              hf_names=tuple(name.format(i=i) for name in self.hf_names))

    def with_prefix(self, prefix: str) -> TensorKey:
        return replace(self, hf_names=tuple(prefix + name for name in self.hf_names))


def linear_keys(layer: str, *hf_names: str, transform: TensorTransform = IDENTITY) -> tuple[TensorKey, TensorKey]:
    """The keys of a linear layer: weight and bias."""
    return (TensorKey.of(f"{layer}.weight", *(f"{name}.weight" for name in hf_names), transform=transform),
            TensorKey.of(f"{layer}.bias", *(f"{name}.bias" for name in hf_names)))


def to_hf(keys: Iterable[TensorKey], tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Native tensors -> Hugging Face tensors."""
    converted: dict[str, Tensor] = {}
    for key in keys:
        joined = _concatenate([tensors[name] for name in key.names])
        for name, part in zip(key.hf_names, joined.chunk(len(key.hf_names)), strict=True):
            converted[name] = key.transform.to_hf(part, heads).contiguous()
    return converted


def from_hf(keys: Iterable[TensorKey], tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face tensors -> native tensors. `like` has the native shapes, by which concatenated tensors are split."""
    converted: dict[str, Tensor] = {}
    for key in keys:
        joined = _concatenate([key.transform.from_hf(tensors[name]) for name in key.hf_names]).contiguous()
        parts = torch.split(joined, [len(like[name]) for name in key.names]) if len(key.names) > 1 else [joined]
        for name, part in zip(key.names, parts, strict=True):
            converted[name] = part if part is joined else part.clone()  # tensors that share memory cannot be saved
    return converted


def _concatenate(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
