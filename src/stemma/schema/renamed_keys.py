"""Recipe keys and values of version 0.1 that have a new name. The old names are still read in this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Old key -> last part of the new key; * is the name of an objective.
RENAMED_KEYS = {
    "corpus.first_phase.share": "fraction",
    "network.embedding.quiet": "scale_logits",
    "network.embedding.shrink": "div_val",
    "network.initialization.by_input": "fan_in",
    "network.initialization.embedding": "embedding_std",
    "network.initialization.spread": "std",
    "network.memory.evaluation": "eval_length",
    "network.norm.place": "placement",
    "network.position.counts": "numbering",
    "objective.*.geometric": "geometric_p",
    "objective.*.longest": "max_span_words",
    "objective.*.sees": "attention_mask",
    "objective.*.starts": "start_fraction",
    "objective.*.stops": "end_fraction",
    "objective.*.together": "replace_whole_units",
    "objective.*.turns": "sampling_weight",
}
RENAMED_VALUES = {"network.position.counts": {"places": "absolute", "tokens": "skip_padding"}}
_OLD_KEYS = {f"{old.rpartition('.')[0]}.{new}": old for old, new in RENAMED_KEYS.items()}


def _pattern(key: str) -> str:
    """The key as it is in the tables above."""
    parts = key.split(".")
    return ".".join([parts[0], "*", *parts[2:]]) if parts[0] == "objective" and len(parts) > 2 else key


def new_key(key: str) -> str:
    """The present name of a dotted key."""
    renamed = RENAMED_KEYS.get(_pattern(key))
    return key if renamed is None else f"{key.rpartition('.')[0]}.{renamed}"


def old_entry(key: str, value: object) -> tuple[str, Any]:
    """A key and its value by their names in version 0.1, as digests of older labs have them."""
    old = _OLD_KEYS.get(_pattern(key))
    if old is None:
        return key, value
    values = {new: name for name, new in RENAMED_VALUES.get(old, {}).items()}
    return f"{key.rpartition('.')[0]}.{old.rpartition('.')[2]}", values.get(value, value) \
        if isinstance(value, str) else value


def rename_keys(table: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[str]]:
    """(the table with present names, the old keys that it had). An old key beside its new one stays, and is then
    refused as unknown."""
    renamed: dict[str, Any] = {}
    old_keys: list[str] = []
    for name, value in table.items():
        key = prefix + name
        last = RENAMED_KEYS.get(_pattern(key))
        if last is not None and last not in table and not isinstance(value, Mapping):
            old_keys.append(key)
            if isinstance(value, str):
                value = RENAMED_VALUES.get(_pattern(key), {}).get(value, value)
            renamed[last] = value
        elif isinstance(value, Mapping):
            renamed[name], inner = rename_keys(value, f"{key}.")
            old_keys += inner
        else:
            renamed[name] = value
    return renamed, old_keys


def renaming_note(old_keys: list[str], where: str) -> str:
    listed = ", ".join(f"{key} is now {new_key(key)}" for key in dict.fromkeys(old_keys))
    return f"{where}: {listed}. The old name is still read, but not in the next version."
