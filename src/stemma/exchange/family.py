"""A Hugging Face model family as a table: config.json keys and tensor names, used for reading and for writing.

Four declarations make a family: the config.json key of each recipe value, what else config.json must contain, which
recipe values the family requires, and which tensors correspond (`tensor_map.py`). A network that differs in anything
is saved with `model_type: stemma` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import did_you_mean
from stemma.exchange.hf_task_class import HFTaskClass, hf_kind
from stemma.exchange.tensor_map import TensorKey
from stemma.network.heads import HeadSpec
from stemma.recipe_loading import recipe
from stemma.schema.overrides import flatten

Values = Mapping[str, Any]  # of a recipe, by dotted keys
Config = Mapping[str, Any]  # of a config.json

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
               "silu": "silu", "swish": "silu", "tanh": "tanh"}

# Values that most Hugging Face families require; a family adds its own in `required_recipe`.
DEFAULT_ARCHITECTURE: Values = {
    "network.norm.kind": "layer", "network.attention.kind": "full", "network.attention.windows": [],
    "network.attention.bias": True, "network.attention.scale": True, "network.bias": True,
    "network.embedding.width": None, "network.embedding.quiet": False, "network.depth.kind": "stacked",
    "network.decoder.depth.kind": None,  # None: as in the encoder
    "network.transition": "feedforward", "network.sharing": "none",
}


# Dropouts that most families lack: without a config.json key they are 0. A network with such a dropout still belongs to
# its family, since inference does not depend on it.
ABSENT_DROPOUTS: Values = {"network.dropout": 0.0, "network.inner_dropout": 0.0, "network.output_dropout": 0.0}


@dataclass(frozen=True)
class ConfigSetting:
    """A recipe value and its key in config.json."""

    recipe_key: str
    hf_key: str
    value_map: Mapping[str, str] = field(default_factory=dict)  # spelled differently: theirs -> ours; the first is
    #                                                             written
    default: Any = None  # where config.json is silent; a function is asked with the rest of it; None: as in the recipe
    from_hf: Callable[[Any, Config], Any] | None = None  # what is more than another name, and needs the rest to be said
    to_hf: Callable[[Any, Values], Any] | None = None
    required_value: Callable[[Config], Any] | None = None  # the value that we can build beside the rest, where not any
    #                                                        will do

    def read(self, config: Config) -> Any:
        value = config[self.hf_key]
        if self.value_map:
            return self.value_map[value]
        reads = self.from_hf
        return value if reads is None else _evaluate(lambda told: reads(value, told), config, value)

    def write(self, values: Values) -> Any:
        value = values.get(self.recipe_key)
        if self.to_hf is not None:
            return self.to_hf(value, values)
        return next((theirs for theirs, ours in self.value_map.items() if ours == value), value)


@dataclass(frozen=True)
class Family:
    model_type: str
    recipe: str  # the recipe whose values stand where config.json is silent
    visibility: frozenset[str]  # how models of this family read: full, causal or permuted; one of these is learned at
    #                             least
    prefix: str  # the body's name inside a class with heads ("bert."); absent in the bare model
    settings: tuple[ConfigSetting, ...]
    required_config: Mapping[str, Any]  # what config.json says, or leaves unsaid, of the networks we can build
    required_recipe: Mapping[str, Any]  # what a recipe says of the networks they can build
    body_keys: tuple[TensorKey, ...]
    head_keys: Mapping[str, tuple[TensorKey, ...]]
    head_specs: Mapping[str, HeadSpec]  # what each of these heads is on our side
    variable_class_heads: frozenset[str] = field(default=frozenset(), kw_only=True)  # heads of ours that may have more
    #                                                                                  or fewer
    architectures: Mapping[frozenset[str], str]  # which class has exactly these heads
    task_classes: Mapping[str, HFTaskClass] = field(default_factory=dict)  # by kind: which class answers a task, and
    #                                                                        how
    extra_visibility: frozenset[str] = frozenset()  # other ways to read that may be learned besides
    body_heads: frozenset[str] = frozenset()  # heads that over there belong to the body
    implicit_heads: frozenset[str] = frozenset()  # heads without weights of their own that even a bare body is used
    #                                               with
    # ours that are not free over there
    derived_values: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    duplicate_settings: Mapping[str, str] = field(default_factory=dict)  # settings that say again what another says
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of settings
    tied_head_tensors: Mapping[str, str] = field(default_factory=dict)  # a head's -> the key of theirs that it repeats
    tied_body_tensors: Mapping[str, str] = field(default_factory=dict)  # the same within the body
    zero_tensors: tuple[str, ...] = ()  # (1, vocabulary) added to all scores over there, and never anything else
    special_token_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # ids of special tokens that
    #                                             config.json must state, with the roles that serve: defaults are of a
    #                                             large vocabulary
    missing_token_id: int | None = None  # what it states where the tokenizer has none of these
    pad_token_id: int | None = None  # the number of the padding token, where a network's places are counted by it
    removed_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # a head -> what its owner's recipe
    #                                                                       lacks: a generator has no generator of its
    #                                                                       own
    ignored_buffers: tuple[str, ...] = ()  # endings of buffers that carry no weights
    legacy_names: Mapping[str, str] = field(default_factory=dict)  # spellings of the first releases
    upgrade_config: Callable[[Config], Config] = lambda config: config  # a config.json of earlier releases by today's
    #                                                                     keys

    def with_task_head(self, kind: str, name: str, heads: Mapping[str, HeadSpec],
                       stack: str = ENCODER) -> Family | None:
        """This family's table for networks that answer such a task by these heads on this stack, and have no others;
        None if there is no such class over there."""
        task = self.task_classes.get(hf_kind(kind))
        if task is None or task.stack != stack or not task.matches(name, heads):
            return None
        beside = {other: self.head_keys[other] for other in heads if other != name}
        family = replace(self, head_keys={**beside, name: task.tensor_keys(name)}, head_specs=heads, zero_tensors=(),
                         prefix=self.prefix if task.prefix is None else task.prefix,
                         architectures={frozenset(heads): task.name})
        return family._without_decoder(name) if self.is_encoder_decoder and stack == ENCODER else family

    @property
    def is_encoder_decoder(self) -> bool:
        return any(setting.recipe_key.startswith("network.decoder.") for setting in self.settings)

    def for_config(self, config: Config) -> Family:
        """This table, or that of the encoder alone where config.json names a class that has no decoder."""
        named = config.get("architectures") or ()
        alone = [task for task in self.task_classes.values() if task.name in named and task.stack == ENCODER]
        return self._without_decoder("") if self.is_encoder_decoder and alone else self

    def _without_decoder(self, head: str) -> Family:
        """The table of a class that has the encoder alone; its recipe has no objective left, since all of them write
        with the decoder."""
        gone = ("network.decoder", *(f"objective.{name}" for name in recipe(self.recipe).settings.objective))
        return replace(self, removed_keys={**self.removed_keys, head: gone},
                       required_config={**self.required_config, "is_encoder_decoder": False},
                       settings=tuple(one for one in self.settings
                                      if not one.recipe_key.startswith("network.decoder.")),
                       body_keys=tuple(key for key in self.body_keys if not key.names[0].startswith(DECODER)))

    # --- ours -> theirs -----------------------------------------------------------------------------------------------

    def matches(self, values: Values, visibility: Set[str], head_specs: Mapping[str, HeadSpec],
                tensor_names: Collection[str]) -> bool:
        """Is a network with these (flat) values, reading, heads and tensors exactly one of this family?"""
        if any(values.get(key) != value for key, value in self.required_recipe.items()):
            return False
        if any(key.startswith("network.inputs.") for key in values):  # their networks read tokens
            return False
        visibility_matches = visibility <= self.visibility | self.extra_visibility and bool(visibility
            & self.visibility or (not visibility and "full" in self.visibility))
        derived_match = all(values.get(key) in (None, value(values)) for key, value in self.derived_values.items())
        heads_match = frozenset(head_specs) in self.architectures and all(
            self.head_specs[name] == spec or (name in self.variable_class_heads and type(self.head_specs[name])
                                              is type(spec))
            for name, spec in head_specs.items())
        values_match = all(not one.value_map or values.get(one.recipe_key) in one.value_map.values()
                           for one in self.settings)
        if not (visibility_matches and derived_match and heads_match and values_match):
            return False
        return {name for key in self.tensor_keys(head_specs, tensor_names,
                                                 bare=True) for name in key.names} == set(tensor_names)

    def to_hf_config(self, values: Values) -> dict[str, Any]:
        config: dict[str, Any] = {}
        for setting in self.settings:  # of two that have one name over there, the first is told
            config.setdefault(setting.hf_key, setting.write(values))
        config |= {again: config[first] for again, first in self.duplicate_settings.items()}
        return config | {key: _evaluate(value, config) for key, value in self.required_config.items()}

    # --- theirs -> ours -----------------------------------------------------------------------------------------------

    def with_defaults(self, config: Config) -> dict[str, Any]:
        """config.json with every setting in it, by its proper name: what it leaves unsaid is this family's default."""
        config = self.upgrade_config(config)
        stated = {self.aliases.get(key, key): value for key, value in config.items() if value is not None}
        stated |= {key: value for key, value in config.items() if value is not None}
        defaults = flatten(recipe(self.recipe).values)
        completed: dict[str, Any] = {}
        for setting in self.settings:
            default = setting.write(defaults) if setting.default is None else _evaluate(setting.default, completed)
            completed[setting.hf_key] = stated.get(setting.hf_key, default)
        return stated | completed

    def to_recipe_values(self, config: Config) -> dict[str, Any]:
        completed = self.with_defaults(config)
        values = {**ABSENT_DROPOUTS, **{setting.recipe_key: setting.read(completed) for setting in self.settings}}
        return values | {key: _evaluate(value, values) for key, value in self.derived_values.items()}

    def problems(self, config: Config) -> list[tuple[str, str]]:
        """Why a config.json of this model_type is nevertheless not what we build: (place, reason) each."""
        completed = self.with_defaults(config)
        needed = {key: _evaluate(value, completed) for key, value in self.required_config.items()}
        needed |= {one.hf_key: _evaluate(one.required_value, completed) for one in self.settings if one.required_value
                   is not None}
        problems = [(f"{key} = {completed[key]}", f"only {value} is supported")
                 for key, value in needed.items() if completed.get(key, value) != value]
        for setting in self.settings:
            value = completed[setting.hf_key]
            if setting.value_map and value not in list(setting.value_map):
                problems.append((f"{setting.hf_key} = {value}", f"is not one of {', '.join(setting.value_map)}."
                                                             f"{did_you_mean(str(value), setting.value_map)}"))
        return problems

    def config_warnings(self, config: Config) -> list[str]:
        """What is said twice over there and differently; here it is said once."""
        completed = self.with_defaults(config)
        differing = [pair for pair in self.duplicate_settings.items() if completed.get(pair[0],
            completed[pair[1]]) != completed[pair[1]]]
        return [f"{again} = {completed[again]} is left aside: this network has one value for it and for {first}, "
                f"{completed[first]}." for again, first in differing]

    def detect_heads(self, config: Config, tensor_names: Container[str]) -> list[str]:
        """The heads whose tensors are there; of one that has none of its own, the class tells."""
        classes = config.get("architectures") or self.architectures.values()
        named = {name for heads, kind in self.architectures.items() if kind in classes for name in heads}
        repeated = any(copy in tensor_names for copy in self.tied_head_tensors)
        detected = []
        for name, table in self.head_keys.items():
            tensors = [part.format(i=0) for key in table for part in key.hf_names]
            if any(part in tensor_names or self.prefix + part in tensor_names for part in tensors) \
                    or (not tensors and (name in named | self.implicit_heads or repeated)):
                detected.append(name)
        return detected

    # --- both ---------------------------------------------------------------------------------------------------------

    def tensor_keys(self, heads: Iterable[str], tensor_names: Container[str], bare: bool) -> list[TensorKey]:
        """The tensors of the body and these heads, for a network that has the tensors `names`."""
        chosen = set(heads)
        prefix = "" if bare else self.prefix
        tables = [(prefix, self.body_keys), *((prefix if name in self.body_heads else "", table)
                                         for name, table in self.head_keys.items() if name in chosen)]
        return [one.with_prefix(place) for place, table in tables for key in table for one in key.expand(tensor_names)]

    def tied_names(self, expected: Container[str], bare: bool) -> Iterator[tuple[str, str]]:
        """Names that may be there besides the `expected` ones, each with the one that it repeats."""
        shared = {again if bare else self.prefix + again: first for again, first in self.tied_body_tensors.items()}
        for copy, original in {**self.tied_head_tensors, **shared}.items():
            for i in count():
                again, first = copy.format(i=i), original.format(i=i)
                first = first if bare or first in expected else self.prefix + first
                if first in expected and again not in expected:
                    yield again, first
                if "{i}" not in copy or first not in expected:
                    break


def _evaluate(value: object, config: Mapping[str, object], default: object = None) -> Any:
    """A value, or the answer of a function. A size of the wrong kind is not its business: that is told by its name."""
    try:
        return value(config) if callable(value) else value
    except (TypeError, ZeroDivisionError):
        return default
