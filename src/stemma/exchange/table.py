"""A family's key table: which of our names is which of Hugging Face's, read in both directions.

Four declarations make a family: where each setting stands in `config.json`, what else `config.json` must say, which
values of ours the family fixes, and which tensors correspond. A network that differs in anything is not of this family
and is saved under our own name. A tensor of ours may be several of theirs, joined in order: one product for query, key
and value is three matrices over there. Which tensors there are is the network's to say; the table only names them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from stemma.errors import did_you_mean
from stemma.network.heads import HeadSpec


@dataclass(frozen=True)
class Key:
    """One tensor of ours and its parts over there; `{i}` runs over the layers."""

    ours: str
    theirs: tuple[str, ...]

    @classmethod
    def of(cls, ours: str, *theirs: str) -> Key:
        return cls(ours, theirs)

    def expand(self, names: Container[str]) -> Iterator[Key]:
        """One key for each layer that the network has; the key itself, which then fits no name, if it has none."""
        if "{i}" not in self.ours or self.ours.format(i=0) not in names:
            yield self
            return
        for i in count():
            ours = self.ours.format(i=i)
            if ours not in names:
                return
            yield Key(ours, tuple(name.format(i=i) for name in self.theirs))

    def under(self, prefix: str) -> Key:
        return Key(self.ours, tuple(prefix + name for name in self.theirs))


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
        return self.names[value] if self.names else value

    def write(self, value: Any) -> Any:
        return next((theirs for theirs, ours in self.names.items() if ours == value), value)


@dataclass(frozen=True)
class Family:
    model_type: str
    recipe: str  # the recipe whose values stand where config.json is silent
    prefix: str  # the body's name inside a class with heads ("bert."); absent in the bare model
    settings: tuple[Setting, ...]
    holds: Mapping[str, Any]  # what config.json says, or leaves unsaid, of the networks we can build
    fixed: Mapping[str, Any]  # what a recipe says of the networks they can build
    body: tuple[Key, ...]
    heads: Mapping[str, tuple[Key, ...]]
    specs: Mapping[str, HeadSpec]  # what each of these heads is on our side
    inside: frozenset[str]  # heads that over there belong to the body
    classes: Mapping[frozenset[str], str]  # which class has exactly these heads
    copies: Mapping[str, str] = field(default_factory=dict)  # theirs -> the key of theirs that it repeats
    ignored: tuple[str, ...] = ()  # endings of buffers that carry no weights
    old_names: Mapping[str, str] = field(default_factory=dict)  # spellings of the first releases

    def fits(self, values: Mapping[str, Any], specs: Mapping[str, HeadSpec], names: Iterable[str]) -> bool:
        """Is a network with these (flat) values, heads and tensors exactly one of this family?"""
        same = all(values.get(key) == value for key, value in self.fixed.items())
        writable = all(not setting.names or values.get(setting.ours) in setting.names.values()
                       for setting in self.settings)
        known = frozenset(specs) in self.classes and all(self.specs[name] == spec for name, spec in specs.items())
        tensors = set(names)
        return same and writable and known and {key.ours for key in self.keys(specs, tensors, bare=True)} == tensors

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**{setting.theirs: setting.write(values[setting.ours]) for setting in self.settings}, **self.holds}

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {setting.ours: setting.read(config[setting.theirs])
                for setting in self.settings if config.get(setting.theirs) is not None}

    def problems(self, config: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Why a config.json of this model_type is nevertheless not what we build: (place, reason) each."""
        stated = {key: value for key, value in config.items() if value is not None}
        wrong = [(f"{key} = {stated[key]}", f"only {value} is supported")
                 for key, value in self.holds.items() if stated.get(key, value) != value]
        for setting in self.settings:
            value = stated.get(setting.theirs)
            if setting.names and value is not None and value not in list(setting.names):
                wrong.append((f"{setting.theirs} = {value}", f"is not one of {', '.join(setting.names)}."
                                                             f"{did_you_mean(str(value), setting.names)}"))
        return wrong

    def keys(self, heads: Iterable[str], names: Container[str], bare: bool) -> list[Key]:
        """The tensors of the body and these heads, for a network that has the tensors `names`."""
        chosen = set(heads)
        prefix = "" if bare else self.prefix
        tables = [(prefix, self.body), *((prefix if name in self.inside else "", table)
                                         for name, table in self.heads.items() if name in chosen)]
        return [one.under(place) for place, table in tables for key in table for one in key.expand(names)]


def to_theirs(keys: Iterable[Key], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for key in keys:
        for name, part in zip(key.theirs, ours[key.ours].chunk(len(key.theirs)), strict=True):
            made[name] = part.contiguous()
    return made


def to_ours(keys: Iterable[Key], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.ours: theirs[key.theirs[0]] if len(key.theirs) == 1 else torch.cat([theirs[n] for n in key.theirs])
            for key in keys}
