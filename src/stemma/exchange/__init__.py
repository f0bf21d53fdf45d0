"""The Hugging Face layout, read and written: one declarative table per family, registered under its `model_type`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma import registry
from stemma.errors import UserError

if TYPE_CHECKING:
    from stemma.exchange.family import Family


def find_family(model_type: str) -> Family | None:
    """The family that says so in `config.json`; only its own table is imported."""
    entry = registry.find("family", model_type)
    if entry is None:
        return None
    found: Family = entry.build()
    if found.model_type != model_type:
        raise UserError(f'{entry.module} registers the family "{model_type}" with a table whose model_type is '
                        f'"{found.model_type}"; give both the same name.')
    return found


def families() -> dict[str, Family]:
    """All of them, the built-in ones first."""
    return {kind: found for kind in registry.kinds("family") if (found := find_family(kind)) is not None}
