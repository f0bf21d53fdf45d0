"""Hugging Face folders, read and written: one declarative table per family, registered under its `model_type`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma import registry
from stemma.errors import UserError

if TYPE_CHECKING:
    from stemma.exchange.family import Family


def find_family(model_type: str) -> Family | None:
    """The family of this `model_type`; only its own table is imported."""
    entry = registry.find("family", model_type)
    if entry is None:
        return None
    family: Family = entry.build()
    if family.model_type != model_type:
        raise UserError(f'{entry.module} registers the family "{model_type}" with a table whose model_type is '
                        f'"{family.model_type}"; give both the same name.')
    return family


def families() -> dict[str, Family]:
    """All families by model_type, the built-in ones first."""
    return {kind: family for kind in registry.kinds("family") if (family := find_family(kind)) is not None}
