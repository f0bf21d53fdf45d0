"""A family's key table: which of our names is which of Hugging Face's, read in both directions.

Three declarations make a family: where each setting stands in `config.json`, which values the family fixes (a network
that differs is not of this family and is saved under our own name), and which tensors correspond. A tensor of ours may
be several of theirs, joined in order: one product for query, key and value is three matrices over there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stemma.network.heads import HeadSpec


@dataclass(frozen=True)
class Key:
    """One tensor of ours and its parts over there; `{i}` runs over the layers."""

    ours: str
    theirs: tuple[str, ...]

    @classmethod
    def of(cls, ours: str, *theirs: str) -> Key:
        return cls(ours, theirs)

    def expand(self, layers: int) -> Iterator[Key]:
        if "{i}" not in self.ours:
            yield self
            return
        for i in range(layers):
            yield Key(self.ours.format(i=i), tuple(name.format(i=i) for name in self.theirs))


def linear(ours: str, *theirs: str) -> tuple[Key, Key]:
    """A weight and its bias."""
    return (Key(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs)),
            Key(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs)))


@dataclass(frozen=True)
class Setting:
    """One value of the recipe and its name in config.json; `names` translates values that are spelled differently."""

    ours: str
    theirs: str
    names: Mapping[str, str] = field(default_factory=dict)  # theirs -> ours; the first spelling is written

    def read(self, value: Any) -> Any:
        return self.names.get(value, value) if self.names else value

    def write(self, value: Any) -> Any:
        return next((theirs for theirs, ours in self.names.items() if ours == value), value)


@dataclass(frozen=True)
class Family:
    model_type: str
    recipe: str  # the recipe whose values stand where config.json is silent
    prefix: str  # the body's name inside a class with heads ("bert."); absent in the bare model
    settings: tuple[Setting, ...]
    fixed: Mapping[str, Any]
    body: tuple[Key, ...]
    heads: Mapping[str, tuple[Key, ...]]
    specs: Mapping[str, HeadSpec]  # what each of these heads is on our side
    inside: frozenset[str]  # heads that over there belong to the body
    classes: Mapping[frozenset[str], str]  # which class has exactly these heads
    copies: Mapping[str, str] = field(default_factory=dict)  # theirs -> the key of theirs that it repeats
    ignored: tuple[str, ...] = ()  # endings of buffers that carry no weights
    old_names: Mapping[str, str] = field(default_factory=dict)  # spellings of the first releases

    def fits(self, values: Mapping[str, Any], heads: Iterable[str]) -> bool:
        """Is a network with these (flat) values and heads exactly one of this family?"""
        same = all(values.get(key) == value for key, value in self.fixed.items())
        writable = all(not setting.names or values.get(setting.ours) in setting.names.values()
                       for setting in self.settings)
        return same and writable and frozenset(heads) in self.classes

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {setting.theirs: setting.write(values[setting.ours]) for setting in self.settings}

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {setting.ours: setting.read(config[setting.theirs])
                for setting in self.settings if config.get(setting.theirs) is not None}

    def keys(self, heads: Iterable[str], layers: int, bare: bool) -> Iterator[Key]:
        prefix = "" if bare else self.prefix
        chosen = set(heads)
        for part in (self.body, *(self.heads[name] for name in self.heads if name in chosen and name in self.inside)):
            for key in part:
                for one in key.expand(layers):
                    yield Key(one.ours, tuple(prefix + name for name in one.theirs))
        for name in self.heads:
            if name in chosen and name not in self.inside:
                for key in self.heads[name]:
                    yield from key.expand(layers)


def to_theirs(keys: Iterable[Key], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for key in keys:
        for name, part in zip(key.theirs, ours[key.ours].chunk(len(key.theirs)), strict=True):
            made[name] = part.contiguous()
    return made


def to_ours(keys: Iterable[Key], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.ours: theirs[key.theirs[0]] if len(key.theirs) == 1 else torch.cat([theirs[n] for n in key.theirs])
            for key in keys}
