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


class Form(NamedTuple):
    """How one tensor lies over there; what is parted by heads there needs their number to be written."""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor, int], Tensor]


PLAIN = Form(lambda theirs: theirs, lambda ours, heads: ours)
TURNED = Form(lambda theirs: theirs.T, lambda ours, heads: ours.T)


@dataclass(frozen=True)
class Key:
    """Tensors of ours and their parts over there; `{i}` runs over the layers."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    form: Form = PLAIN
    given: str | None = None  # only for networks that have a tensor of this name
    unless: str | None = None  # only for networks that have none of this name

    @classmethod
    def of(cls, ours: str, *theirs: str, form: Form = PLAIN, given: str | None = None,
           unless: str | None = None) -> Key:
        return cls((ours,), theirs, form, given, unless)

    def expand(self, names: Container[str]) -> Iterator[Key]:
        """One key for each layer that the network has; the key itself, which then fits no name, if it has none."""
        if (self.given is not None and self.given not in names) or (self.unless is not None and self.unless in names):
            return
        (ours,) = self.ours
        layers = []
        if "{i}" in ours:  # the first layer may lack it
            start = 0 if ours.format(i=0) in names else 1
            layers = [*takewhile(lambda i: ours.format(i=i) in names, count(start))]
        if not layers:
            yield self
        elif "{i}" not in self.theirs[0]:
            yield replace(self, ours=tuple(ours.format(i=i) for i in layers))
        else:
            for i in layers:
                yield replace(self, ours=(ours.format(i=i),), theirs=tuple(name.format(i=i) for name in self.theirs))

    def under(self, prefix: str) -> Key:
        return replace(self, theirs=tuple(prefix + name for name in self.theirs))


def linear(ours: str, *theirs: str, form: Form = PLAIN) -> tuple[Key, Key]:
    """A weight and its bias."""
    return (Key.of(f"{ours}.weight", *(f"{name}.weight" for name in theirs), form=form),
            Key.of(f"{ours}.bias", *(f"{name}.bias" for name in theirs)))


def to_theirs(keys: Iterable[Key], ours: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for key in keys:
        whole = _joined([ours[name] for name in key.ours])
        for name, part in zip(key.theirs, whole.chunk(len(key.theirs)), strict=True):
            made[name] = key.form.to_theirs(part, heads).contiguous()
    return made


def to_ours(keys: Iterable[Key], theirs: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`like` has tensors of our shapes, which say where to part what is one of theirs."""
    made: dict[str, Tensor] = {}
    for key in keys:
        whole = _joined([key.form.to_ours(theirs[name]) for name in key.theirs]).contiguous()
        parts = torch.split(whole, [len(like[name]) for name in key.ours]) if len(key.ours) > 1 else [whole]
        for name, part in zip(key.ours, parts, strict=True):
            made[name] = part if part is whole else part.clone()  # tensors that share memory cannot be saved
    return made


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
