"""Base class of all recipe tables: closed set of keys, strict types, and conflicts between keys.

A slot with several kinds (position, optimizer, objective...) accepts every registered kind (`registry.py`), looked up
by the key `kind` when a recipe is validated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainValidator,
    SerializationInfo,
)
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from stemma import registry


class ConflictKey(NamedTuple):
    """A key that takes part in a conflict, and the message for it."""

    key: str
    message: str


Conflict = tuple[ConflictKey, ...]
"""All keys of one conflict; the error names the key that the user changed."""


class Settings(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    # A size may set only these keys; other changes need a recipe.
    size_keys: ClassVar[tuple[str, ...]] = ()
    laptop_keys: ClassVar[tuple[str, ...]] = ()  # a laptop size may also set these, with all keys below them
    one_decision: ClassVar[tuple[tuple[str, ...], ...]] = ()  # groups of keys that change together in an ablation
    structural_keys: ClassVar[tuple[str, ...]] = ()  # networks that differ in one of these cannot share weights
    adjustable_keys: ClassVar[tuple[str, ...]] = ()  # may change when training continues from a model
    later_keys: ClassVar[tuple[str, ...]] = ()  # newer than some labs: a lab cell's hash leaves them out at their
    #                                             default, so that older labs can be resumed

    def has_key(self, key: str) -> bool:
        """Whether this table has the key."""
        return key in type(self).model_fields

    def flop_counts(self) -> Mapping[object, Callable[..., int]]:
        """FLOP formulas, from argument shapes, for operators of this part that torch's FLOP counter lacks."""
        return {}

    def conflicts(self) -> Iterator[Conflict]:
        """Values that are valid alone but not together; keys are relative to this table."""
        yield from ()

    def all_conflicts(self) -> Iterator[Conflict]:
        """The conflicts of this table and of every table inside it."""
        yield from self.conflicts()
        for path, table in self.subtables():
            for conflict in table.all_conflicts():
                yield tuple(ConflictKey(f"{path}.{part.key}", part.message) for part in conflict)

    def subtables(self) -> Iterator[tuple[str, Settings]]:
        """The tables inside this one, each with its key."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            for key, table in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(table, Settings):
                    yield f"{name}.{key}" if key else name, table

    def collect_keys(self, attribute: str) -> Iterator[str]:
        """All keys that this table and its subtables list in an attribute, such as `structural_keys`."""
        yield from getattr(self, attribute)
        for path, table in self.subtables():
            yield from (f"{path}.{key}" for key in table.collect_keys(attribute))

    def later_defaults(self) -> Iterator[str]:
        """Keys of `later_keys`, here and in subtables, that have their default value."""
        yield from (key for key in self.later_keys
                    if getattr(self, key) == type(self).model_fields[key].get_default(call_default_factory=True))
        for path, table in self.subtables():
            yield from (f"{path}.{key}" for key in table.later_defaults())

    def key_groups(self, prefix: str = "") -> Iterator[tuple[str, ...]]:
        """The groups in `one_decision` of this table and its subtables."""
        yield from (tuple(prefix + key for key in group) for group in self.one_decision)
        for path, table in self.subtables():
            yield from table.key_groups(f"{prefix}{path}.")


class KindField:
    """Marks a field with the settings of any kind registered in this slot; `optional`: or None."""

    def __init__(self, slot: str, optional: bool = False):
        self.slot, self.optional = slot, optional

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        dump = core_schema.plain_serializer_function_ser_schema(_dump_with_kind, info_arg=True)
        return core_schema.no_info_plain_validator_function(self.check, serialization=dump)

    def check(self, value: object) -> Any:
        base = registry.settings_base(self.slot)
        assert base is not None
        if isinstance(value, base) or value is None and self.optional:
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        kind = value.get("kind")
        entry = registry.find(self.slot, kind) if isinstance(kind, str) else None
        if entry is None:
            raise PydanticKnownError("union_tag_invalid", {"discriminator": "kind", "tag": str(kind),
                                                           "expected_tags": ", ".join(registry.kinds(self.slot))})
        assert entry.settings is not None
        return entry.settings.model_validate(value)


class KindName(KindField):
    """Marks a field with only the name of a kind, such as `corpus.packing`."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def check(self, value: Any) -> Any:
        if registry.find(self.slot, value) is None and not (value is None and self.optional):
            raise PydanticKnownError("literal_error", {"expected": ", ".join(registry.kinds(self.slot))})
        return value


def _dump_with_kind(value: Settings | None, info: SerializationInfo) -> dict[str, Any] | None:
    return None if value is None else value.model_dump(mode=info.mode, exclude_none=bool(info.exclude_none))


def kind_field_of(annotation: object, metadata: Sequence[object] = ()) -> KindField | None:
    """The slot of a field whose value is a kind, or a table or list of kinds; None for other fields."""
    mark = next((mark for mark in metadata if isinstance(mark, KindField)), None)
    if mark is not None:
        return mark
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return kind_field_of(inner, marks)
    inner_fields = map(kind_field_of, get_args(annotation))
    return next((field for field in inner_fields if field is not None), None)


def parts_in_settings(settings: Settings) -> Iterator[registry.RegistryEntry]:
    """All registered parts that these settings name."""
    for name, field in type(settings).model_fields.items():
        value, slot = getattr(settings, name), kind_field_of(field.annotation, field.metadata)
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        for item in items:
            kind = getattr(item, "kind", item)
            # The placeholder of an absent part (`NoAttention`) is not registered.
            if slot is not None and isinstance(kind, str) and (entry := registry.find(slot.slot, kind)) is not None:
                yield entry
            if isinstance(item, Settings):
                yield from parts_in_settings(item)


def constraint(predicate: Callable[[Any], bool], message: str) -> AfterValidator:
    def check(value: object) -> Any:
        if not predicate(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def integer_or(word: str, minimum: int) -> PlainValidator:
    """A whole number or one word; one validator, so that an invalid value gives one problem and not two."""
    def check(value: object) -> Any:
        if value == word or type(value) is int and value >= minimum:
            return value
        raise ValueError(f"must be a whole number, {minimum} or more, or {word}")

    return PlainValidator(check)


MAX_NUMBER = 10**12  # so that the product of two sizes fits a tensor's number of elements
at_most_max = constraint(lambda n: n <= MAX_NUMBER, f"must be at most {MAX_NUMBER:,}")
Count = Annotated[int, constraint(lambda n: n >= 1, "must be 1 or more"), at_most_max]
Natural = Annotated[int, constraint(lambda n: n >= 0, "must be 0 or more"), at_most_max]
Width = Annotated[int, constraint(lambda n: n >= 1, "must be 1 or more"),
                  constraint(lambda n: n <= 1_000_000, "must be at most 1,000,000")]
Depth = Annotated[int, constraint(lambda n: n >= 1, "must be 1 or more"),
                  constraint(lambda n: n <= 10_000, "must be at most 10,000")]
Positive = Annotated[float, constraint(lambda x: x > 0, "must be greater than 0")]
NonNegative = Annotated[float, constraint(lambda x: x >= 0, "must be 0 or more")]
OpenFraction = Annotated[float, constraint(lambda x: 0 < x < 1, "must lie between 0 and 1")]
Probability = Annotated[float, constraint(lambda x: 0 <= x <= 1, "must lie between 0 and 1")]
BelowOne = Annotated[float, constraint(lambda x: 0 <= x < 1, "must be at least 0 and less than 1")]

