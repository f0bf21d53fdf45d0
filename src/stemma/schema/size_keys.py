"""Keys that a recipe's size may set. Every table lists its own, including those of registered parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_origin

from pydantic.fields import FieldInfo

from stemma import registry
from stemma.schema.base import KindName, Settings, kind_field_of
from stemma.schema.recipe import RecipeSettings


def is_size_key(key: str, laptop: bool, model: type[Settings] = RecipeSettings) -> bool:
    """Whether a size may set this key."""
    if key in model.size_keys or laptop and any(f"{key}.".startswith(f"{prefix}.") for prefix in model.laptop_keys):
        return True
    first, _, rest = key.partition(".")
    field = model.model_fields.get(first)
    if field is None or not rest:
        return False
    if get_origin(field.annotation) is dict:  # named parts: the default kind of a part is its name
        name, _, rest = rest.partition(".")
        slot = kind_field_of(field.annotation)
        entry = registry.find(slot.slot, name) if slot is not None else None
        return entry is not None and entry.settings is not None and is_size_key(rest, laptop, entry.settings)
    return any(is_size_key(rest, laptop, inner) for inner in settings_of_field(field))


def size_keys(model: type[Settings] = RecipeSettings, prefix: str = "") -> Iterator[str]:
    """All keys that a size may set, for hints in errors."""
    yield from (prefix + key for key in model.size_keys)
    for name, field in model.model_fields.items():
        slot = kind_field_of(field.annotation, field.metadata)
        if slot is not None and get_origin(field.annotation) is dict:
            for entry in registry.entries(slot.slot):
                if entry.settings is not None:
                    yield from size_keys(entry.settings, f"{prefix}{name}.{entry.kind}.")
        else:
            for inner in settings_of_field(field):
                yield from size_keys(inner, f"{prefix}{name}.")


def settings_of_field(field: FieldInfo) -> list[type[Settings]]:
    """Settings classes that a field accepts: one, or one for each registered kind."""
    slot = kind_field_of(field.annotation, field.metadata)
    if isinstance(slot, KindName):
        return []
    if slot is not None:
        return [entry.settings for entry in registry.entries(slot.slot) if entry.settings is not None]
    return [member for member in (field.annotation, *get_args(field.annotation))
            if isinstance(member, type) and issubclass(member, Settings)]
