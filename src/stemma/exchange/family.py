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
               "relu2": "relu2", "silu": "silu", "swish": "silu", "tanh": "tanh"}

# Values that most Hugging Face families require; a family adds its own in `required_recipe`.
DEFAULT_ARCHITECTURE: Values = {
    "network.norm.kind": "layer", "network.attention.kind": "full", "network.attention.windows": [],
    "network.attention.bias": True, "network.attention.scale": True, "network.bias": True,
    "network.attention.qk_norm": "none", "network.embedding.tied": True, "network.embedding.logit_softcap": None,
    "network.embedding.width": None, "network.embedding.scale_logits": False, "network.depth.kind": "stacked",
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
    value_map: Mapping[str, str] = field(default_factory=dict)  # Hugging Face value -> recipe value; writing uses the
    #                                                             first match
    default: Any = None  # if config.json lacks the key: a value, or a function of it; None: as in the recipe
    from_hf: Callable[[Any, Config], Any] | None = None  # conversions that need more than `value_map`
    to_hf: Callable[[Any, Values], Any] | None = None
    required_value: Callable[[Config], Any] | None = None  # the only supported value, given the rest of config.json

    def read(self, config: Config) -> Any:
        value = config[self.hf_key]
        if self.value_map:
            return self.value_map[value]
        convert = self.from_hf
        return value if convert is None else _evaluate(lambda config: convert(value, config), config, value)

    def write(self, values: Values) -> Any:
        value = values.get(self.recipe_key)
        if self.to_hf is not None:
            return self.to_hf(value, values)
        return next((hf_value for hf_value, recipe_value in self.value_map.items() if recipe_value == value), value)


@dataclass(frozen=True)
class Family:
    model_type: str
    recipe: str  # the recipe that gives defaults for keys that config.json lacks
    visibility: frozenset[str]  # attention masks of the family: full, causal or permuted; a model has at least one
    prefix: str  # of the body's tensors in a class with heads ("bert."); the bare model has none
    settings: tuple[ConfigSetting, ...]
    required_config: Mapping[str, Any]  # values that config.json must have, or leave out
    required_recipe: Mapping[str, Any]  # values that a recipe must have
    body_keys: tuple[TensorKey, ...]
    head_keys: Mapping[str, tuple[TensorKey, ...]]
    head_specs: Mapping[str, HeadSpec]
    variable_class_heads: frozenset[str] = field(default=frozenset(), kw_only=True)  # heads with any number of classes
    architectures: Mapping[frozenset[str], str]  # set of heads -> Hugging Face class
    task_classes: Mapping[str, HFTaskClass] = field(default_factory=dict)  # by kind of task
    extra_visibility: frozenset[str] = frozenset()  # attention masks that a model may have in addition
    body_heads: frozenset[str] = frozenset()  # heads that belong to the body in Hugging Face
    implicit_heads: frozenset[str] = frozenset()  # heads without weights of their own, which even a bare body has
    derived_values: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)  # recipe values that follow
    #                                                                                      from others
    duplicate_settings: Mapping[str, str] = field(default_factory=dict)  # config.json key -> key with the same meaning
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of config.json keys
    tied_head_tensors: Mapping[str, str] = field(default_factory=dict)  # tensor of a head -> the tensor it is tied to
    tied_body_tensors: Mapping[str, str] = field(default_factory=dict)  # the same within the body
    zero_tensors: tuple[str, ...] = ()  # (1, vocabulary) biases of all logits, which must be zero
    special_token_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # config.json key -> special tokens,
    #                                  the first that exists; transformers' defaults are ids of the published vocabulary
    missing_token_id: int | None = None  # written if the tokenizer has none of these tokens
    pad_token_id: int | None = None  # the required id of the padding token, if positions are counted from it
    removed_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # head -> recipe keys that a model with
    #                                                                            it lacks, such as network.generator
    ignored_buffers: tuple[str, ...] = ()  # suffixes of stored buffers that are no weights
    legacy_names: Mapping[str, str] = field(default_factory=dict)  # tensor names of early releases
    upgrade_config: Callable[[Config], Config] = lambda config: config  # converts config.json of earlier releases

    def with_task_head(self, kind: str, name: str, heads: Mapping[str, HeadSpec],
                       stack: str = ENCODER) -> Family | None:
        """This family's table for networks with exactly these task heads on this stack; None if Hugging Face has no
        such class."""
        task = self.task_classes.get(hf_kind(kind))
        if task is None or task.stack != stack or not task.matches(name, heads):
            return None
        other_heads = {other: self.head_keys[other] for other in heads if other != name}
        family = replace(self, head_keys={**other_heads, name: task.tensor_keys(name)}, head_specs=heads,
                         zero_tensors=(),
                         prefix=self.prefix if task.prefix is None else task.prefix,
                         architectures={frozenset(heads): task.name})
        return family._without_decoder(name) if self.is_encoder_decoder and stack == ENCODER else family

    @property
    def is_encoder_decoder(self) -> bool:
        return any(setting.recipe_key.startswith("network.decoder.") for setting in self.settings)

    def for_config(self, config: Config) -> Family:
        """This table, or that of the encoder alone if the class in config.json has no decoder."""
        classes = config.get("architectures") or ()
        encoder_only = any(task.name in classes and task.stack == ENCODER for task in self.task_classes.values())
        return self._without_decoder("") if self.is_encoder_decoder and encoder_only else self

    def _without_decoder(self, head: str) -> Family:
        """The table of an encoder-only class. Its recipe has no objectives, since all of them need the decoder."""
        removed = ("network.decoder", *(f"objective.{name}" for name in recipe(self.recipe).settings.objective))
        return replace(self, removed_keys={**self.removed_keys, head: removed},
                       required_config={**self.required_config, "is_encoder_decoder": False},
                       settings=tuple(setting for setting in self.settings
                                      if not setting.recipe_key.startswith("network.decoder.")),
                       body_keys=tuple(key for key in self.body_keys if not key.names[0].startswith(DECODER)))

    # --- recipe -> Hugging Face ---------------------------------------------------------------------------------------

    def matches(self, values: Values, visibility: Set[str], head_specs: Mapping[str, HeadSpec],
                tensor_names: Collection[str]) -> bool:
        """Whether a network with these (flat) values, attention masks, heads and tensors belongs to this family."""
        if any(values.get(key) != value for key, value in self.required_recipe.items()):
            return False
        if any(key.startswith("network.inputs.") for key in values):  # no family has inputs besides tokens
            return False
        has_family_mask = bool(visibility & self.visibility) or (not visibility and "full" in self.visibility)
        visibility_matches = visibility <= self.visibility | self.extra_visibility and has_family_mask
        derived_match = all(values.get(key) in (None, value(values)) for key, value in self.derived_values.items())
        heads_match = frozenset(head_specs) in self.architectures and all(
            self.head_specs[name] == spec
            or (name in self.variable_class_heads and type(self.head_specs[name]) is type(spec))
            for name, spec in head_specs.items())
        values_match = all(not setting.value_map or values.get(setting.recipe_key) in setting.value_map.values()
                           for setting in self.settings)
        if not (visibility_matches and derived_match and heads_match and values_match):
            return False
        keys = self.tensor_keys(head_specs, tensor_names, bare=True)
        return {name for key in keys for name in key.names} == set(tensor_names)

    def to_hf_config(self, values: Values) -> dict[str, Any]:
        config: dict[str, Any] = {}
        for setting in self.settings:  # of two settings with one config.json key, the first is written
            config.setdefault(setting.hf_key, setting.write(values))
        config |= {key: config[original] for key, original in self.duplicate_settings.items()}
        return config | {key: _evaluate(value, config) for key, value in self.required_config.items()}

    # --- Hugging Face -> recipe ---------------------------------------------------------------------------------------

    def with_defaults(self, config: Config) -> dict[str, Any]:
        """config.json with all settings under their main keys, and this family's defaults for those it lacks."""
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
        """Why this config.json is not supported: (where, reason) pairs."""
        completed = self.with_defaults(config)
        required = {key: _evaluate(value, completed) for key, value in self.required_config.items()}
        required |= {setting.hf_key: _evaluate(setting.required_value, completed) for setting in self.settings
                     if setting.required_value is not None}
        problems = [(f"{key} = {completed[key]}", f"only {value} is supported")
                    for key, value in required.items() if completed.get(key, value) != value]
        for setting in self.settings:
            value = completed[setting.hf_key]
            if setting.value_map and value not in list(setting.value_map):
                problems.append((f"{setting.hf_key} = {value}", f"is not one of {', '.join(setting.value_map)}."
                                                                f"{did_you_mean(str(value), setting.value_map)}"))
        return problems

    def config_warnings(self, config: Config) -> list[str]:
        """Warnings about config.json keys that contradict each other where this network has one value."""
        completed = self.with_defaults(config)
        differing = [(key, original) for key, original in self.duplicate_settings.items()
                     if completed.get(key, completed[original]) != completed[original]]
        return [f"{key} = {completed[key]} is ignored: this network has one value for it and for {original}, "
                f"{completed[original]}." for key, original in differing]

    def detect_heads(self, config: Config, tensor_names: Container[str]) -> list[str]:
        """The heads whose tensors are stored. A head without tensors is detected by the class in config.json."""
        classes = config.get("architectures") or self.architectures.values()
        class_heads = {name for heads, kind in self.architectures.items() if kind in classes for name in heads}
        has_tied = any(name in tensor_names for name in self.tied_head_tensors)
        detected = []
        for name, keys in self.head_keys.items():
            tensors = [tensor.format(i=0) for key in keys for tensor in key.hf_names]
            if any(tensor in tensor_names or self.prefix + tensor in tensor_names for tensor in tensors) \
                    or (not tensors and (name in class_heads | self.implicit_heads or has_tied)):
                detected.append(name)
        return detected

    # --- both directions ----------------------------------------------------------------------------------------------

    def tensor_keys(self, heads: Iterable[str], tensor_names: Container[str], bare: bool) -> list[TensorKey]:
        """The keys of the body and these heads, for a network with these (native) tensor names."""
        selected = set(heads)
        prefix = "" if bare else self.prefix
        tables = [(prefix, self.body_keys), *((prefix if name in self.body_heads else "", keys)
                                              for name, keys in self.head_keys.items() if name in selected)]
        return [expanded.with_prefix(table_prefix) for table_prefix, keys in tables for key in keys
                for expanded in key.expand(tensor_names)]

    def tied_names(self, expected: Container[str], bare: bool) -> Iterator[tuple[str, str]]:
        """(copy, original) names of tied tensors that may be stored besides the `expected` ones."""
        body = {copy if bare else self.prefix + copy: original for copy, original in self.tied_body_tensors.items()}
        for copy_pattern, original_pattern in {**self.tied_head_tensors, **body}.items():
            for i in count():
                copy, original = copy_pattern.format(i=i), original_pattern.format(i=i)
                original = original if bare or original in expected else self.prefix + original
                if original in expected and copy not in expected:
                    yield copy, original
                if "{i}" not in copy_pattern or original not in expected:
                    break


def _evaluate(value: object, config: Mapping[str, object], default: object = None) -> Any:
    """The value, or the result of the function. A value of the wrong type is reported under its own key, not here."""
    try:
        return value(config) if callable(value) else value
    except (TypeError, ZeroDivisionError):
        return default
