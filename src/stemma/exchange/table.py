"""A family's table: what Hugging Face calls the values and the tensors of our networks, read in both directions.

Four declarations make a family: where each setting stands in `config.json`, what else `config.json` must say, which
values of ours the family fixes, and which tensors correspond (`keys.py`). A network that differs in anything is not of
this family and is saved under our own name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from stemma.corpus.sides import DECODER, ENCODER
from stemma.errors import did_you_mean
from stemma.exchange.keys import Key
from stemma.exchange.task_class import TaskClass, served_as
from stemma.lineage import recipe
from stemma.network.heads import HeadSpec
from stemma.schema.layers import flatten

Values = Mapping[str, Any]  # of a recipe, by dotted keys
Config = Mapping[str, Any]  # of a config.json

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
               "silu": "silu", "swish": "silu", "tanh": "tanh"}

# What our networks can do and hardly a family over there can; a family's own `fixed` stands on top of it.
ORDINARY: Values = {
    "network.norm.kind": "layer", "network.attention.kind": "full", "network.attention.windows": [],
    "network.attention.bias": True, "network.attention.scale": True, "network.bias": True,
    "network.embedding.width": None, "network.embedding.quiet": False, "network.depth.kind": "stacked",
    "network.decoder.depth.kind": None,  # the encoder's
    "network.transition": "feedforward", "network.sharing": "none",
}


# Dropouts that hardly a family has: one that config.json has no name for is not there. A network of ours with such a
# dropout is of its family all the same, since only training notices.
UNNAMED: Values = {"network.dropout": 0.0, "network.inner_dropout": 0.0, "network.output_dropout": 0.0}


@dataclass(frozen=True)
class Setting:
    """One value of the recipe and its name in config.json."""

    ours: str
    theirs: str
    names: Mapping[str, str] = field(default_factory=dict)  # spelled differently: theirs -> ours; the first is written
    default: Any = None  # where config.json is silent; a function is asked with the rest of it; None: as in the recipe
    reads: Callable[[Any, Config], Any] | None = None  # what is more than another name, and needs the rest to be said
    writes: Callable[[Any, Values], Any] | None = None
    only: Callable[[Config], Any] | None = None  # the value that we can build beside the rest, where not any will do

    def read(self, config: Config) -> Any:
        value = config[self.theirs]
        if self.names:
            return self.names[value]
        reads = self.reads
        return value if reads is None else _asked(lambda told: reads(value, told), config, value)

    def write(self, values: Values) -> Any:
        value = values.get(self.ours)
        if self.writes is not None:
            return self.writes(value, values)
        return next((theirs for theirs, ours in self.names.items() if ours == value), value)


@dataclass(frozen=True)
class Family:
    model_type: str
    recipe: str  # the recipe whose values stand where config.json is silent
    sees: frozenset[str]  # how models of this family read: full, causal or permuted; one of these is learned at least
    prefix: str  # the body's name inside a class with heads ("bert."); absent in the bare model
    settings: tuple[Setting, ...]
    holds: Mapping[str, Any]  # what config.json says, or leaves unsaid, of the networks we can build
    fixed: Mapping[str, Any]  # what a recipe says of the networks they can build
    body: tuple[Key, ...]
    heads: Mapping[str, tuple[Key, ...]]
    specs: Mapping[str, HeadSpec]  # what each of these heads is on our side
    any_classes: frozenset[str] = field(default=frozenset(), kw_only=True)  # heads of ours that may have more or fewer
    classes: Mapping[frozenset[str], str]  # which class has exactly these heads
    tasks: Mapping[str, TaskClass] = field(default_factory=dict)  # by kind: which class answers a task, and how
    also: frozenset[str] = frozenset()  # other ways to read that may be learned besides
    inside: frozenset[str] = frozenset()  # heads that over there belong to the body
    always: frozenset[str] = frozenset()  # heads without weights of their own that even a bare body is used with
    follows: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)  # ours that are not free over there
    repeats: Mapping[str, str] = field(default_factory=dict)  # settings that say again what another says
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of settings
    copies: Mapping[str, str] = field(default_factory=dict)  # a head's -> the key of theirs that it repeats
    shares: Mapping[str, str] = field(default_factory=dict)  # the same within the body
    zeros: tuple[str, ...] = ()  # (1, vocabulary) added to all scores over there, and never anything else
    special: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ids of special tokens that config.json must
    #                                             state, with the roles that serve: defaults are of a large vocabulary
    missing: int | None = None  # what it states where the tokenizer has none of these
    padding: int | None = None  # the number of the padding token, where a network's places are counted by it
    removes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # a head -> what its owner's recipe lacks:
    #                                                                       a generator has no generator of its own
    ignored: tuple[str, ...] = ()  # endings of buffers that carry no weights
    old_names: Mapping[str, str] = field(default_factory=dict)  # spellings of the first releases
    current: Callable[[Config], Config] = lambda config: config  # a config.json of earlier releases by today's keys

    def answering(self, kind: str, name: str, heads: Mapping[str, HeadSpec], stack: str = ENCODER) -> Family | None:
        """This family's table for networks that answer such a task by these heads on this stack, and have no others;
        None if there is no such class over there."""
        task = self.tasks.get(served_as(kind))
        if task is None or task.stack != stack or not task.answers(name, heads):
            return None
        beside = {other: self.heads[other] for other in heads if other != name}
        family = replace(self, heads={**beside, name: task.keys(name)}, specs=heads, zeros=(),
                         prefix=self.prefix if task.prefix is None else task.prefix,
                         classes={frozenset(heads): task.name})
        return family._without_decoder(name) if self.decodes and stack == ENCODER else family

    @property
    def decodes(self) -> bool:
        return any(setting.ours.startswith("network.decoder.") for setting in self.settings)

    def of_class(self, config: Config) -> Family:
        """This table, or that of the encoder alone where config.json names a class that has no decoder."""
        named = config.get("architectures") or ()
        alone = [task for task in self.tasks.values() if task.name in named and task.stack == ENCODER]
        return self._without_decoder("") if self.decodes and alone else self

    def _without_decoder(self, head: str) -> Family:
        """The table of a class that has the encoder alone; its recipe has no objective left, since all of them write
        with the decoder."""
        gone = ("network.decoder", *(f"objective.{name}" for name in recipe(self.recipe).settings.objective))
        return replace(self, removes={**self.removes, head: gone}, holds={**self.holds, "is_encoder_decoder": False},
                       settings=tuple(one for one in self.settings if not one.ours.startswith("network.decoder.")),
                       body=tuple(key for key in self.body if not key.ours[0].startswith(DECODER)))

    # --- ours -> theirs -----------------------------------------------------------------------------------------------

    def fits(self, values: Values, sees: Set[str], specs: Mapping[str, HeadSpec], names: Collection[str]) -> bool:
        """Is a network with these (flat) values, reading, heads and tensors exactly one of this family?"""
        if any(values.get(key) != value for key, value in self.fixed.items()):
            return False
        if any(key.startswith("network.inputs.") for key in values):  # their networks read tokens
            return False
        reading = sees <= self.sees | self.also and bool(sees & self.sees or (not sees and "full" in self.sees))
        following = all(values.get(key) in (None, value(values)) for key, value in self.follows.items())
        known = frozenset(specs) in self.classes and all(
            self.specs[name] == spec or (name in self.any_classes and type(self.specs[name]) is type(spec))
            for name, spec in specs.items())
        spelled = all(not one.names or values.get(one.ours) in one.names.values() for one in self.settings)
        if not (reading and following and known and spelled):
            return False
        return {name for key in self.keys(specs, names, bare=True) for name in key.ours} == set(names)

    def config(self, values: Values) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for setting in self.settings:  # of two that have one name over there, the first is told
            made.setdefault(setting.theirs, setting.write(values))
        made |= {again: made[first] for again, first in self.repeats.items()}
        return made | {key: _asked(value, made) for key, value in self.holds.items()}

    # --- theirs -> ours -----------------------------------------------------------------------------------------------

    def complete(self, config: Config) -> dict[str, Any]:
        """config.json with every setting in it, by its proper name: what it leaves unsaid is this family's default."""
        config = self.current(config)
        stated = {self.aliases.get(key, key): value for key, value in config.items() if value is not None}
        stated |= {key: value for key, value in config.items() if value is not None}
        usual = flatten(recipe(self.recipe).values)
        told: dict[str, Any] = {}
        for setting in self.settings:
            default = setting.write(usual) if setting.default is None else _asked(setting.default, told)
            told[setting.theirs] = stated.get(setting.theirs, default)
        return stated | told

    def values(self, config: Config) -> dict[str, Any]:
        told = self.complete(config)
        values = {**UNNAMED, **{setting.ours: setting.read(told) for setting in self.settings}}
        return values | {key: _asked(value, values) for key, value in self.follows.items()}

    def problems(self, config: Config) -> list[tuple[str, str]]:
        """Why a config.json of this model_type is nevertheless not what we build: (place, reason) each."""
        told = self.complete(config)
        needed = {key: _asked(value, told) for key, value in self.holds.items()}
        needed |= {one.theirs: _asked(one.only, told) for one in self.settings if one.only is not None}
        wrong = [(f"{key} = {told[key]}", f"only {value} is supported")
                 for key, value in needed.items() if told.get(key, value) != value]
        for setting in self.settings:
            value = told[setting.theirs]
            if setting.names and value not in list(setting.names):
                wrong.append((f"{setting.theirs} = {value}", f"is not one of {', '.join(setting.names)}."
                                                             f"{did_you_mean(str(value), setting.names)}"))
        return wrong

    def notices(self, config: Config) -> list[str]:
        """What is said twice over there and differently; here it is said once."""
        told = self.complete(config)
        apart = [pair for pair in self.repeats.items() if told.get(pair[0], told[pair[1]]) != told[pair[1]]]
        return [f"{again} = {told[again]} is left aside: this network has one value for it and for {first}, "
                f"{told[first]}." for again, first in apart]

    def heads_in(self, config: Config, names: Container[str]) -> list[str]:
        """The heads whose tensors are there; of one that has none of its own, the class tells."""
        classes = config.get("architectures") or self.classes.values()
        named = {name for heads, kind in self.classes.items() if kind in classes for name in heads}
        repeated = any(copy in names for copy in self.copies)
        found = []
        for name, table in self.heads.items():
            tensors = [part.format(i=0) for key in table for part in key.theirs]
            if any(part in names or self.prefix + part in names for part in tensors) \
                    or (not tensors and (name in named | self.always or repeated)):
                found.append(name)
        return found

    # --- both ---------------------------------------------------------------------------------------------------------

    def keys(self, heads: Iterable[str], names: Container[str], bare: bool) -> list[Key]:
        """The tensors of the body and these heads, for a network that has the tensors `names`."""
        chosen = set(heads)
        prefix = "" if bare else self.prefix
        tables = [(prefix, self.body), *((prefix if name in self.inside else "", table)
                                         for name, table in self.heads.items() if name in chosen)]
        return [one.under(place) for place, table in tables for key in table for one in key.expand(names)]

    def copied(self, expected: Container[str], bare: bool) -> Iterator[tuple[str, str]]:
        """Names that may be there besides the `expected` ones, each with the one that it repeats."""
        shared = {again if bare else self.prefix + again: first for again, first in self.shares.items()}
        for copy, original in {**self.copies, **shared}.items():
            for i in count():
                again, first = copy.format(i=i), original.format(i=i)
                first = first if bare or first in expected else self.prefix + first
                if first in expected and again not in expected:
                    yield again, first
                if "{i}" not in copy or first not in expected:
                    break


def _asked(value: object, told: Mapping[str, object], otherwise: object = None) -> Any:
    """A value, or the answer of a function. A size of the wrong kind is not its business: that is told by its name."""
    try:
        return value(told) if callable(value) else value
    except (TypeError, ZeroDivisionError):
        return otherwise
