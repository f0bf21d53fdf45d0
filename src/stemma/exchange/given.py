"""Inputs besides token ids that a user hands in with a text: {"name": array}, checked all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError, did_you_mean
from stemma.schema.parts import InputSettings

Inputs = Mapping[str, Any]  # arrays, tensors or nested lists, by the name of [network.inputs.NAME]


def checked_inputs(inputs: Inputs | None, known: Mapping[str, InputSettings], rows: int, length: int,
                   label: str) -> dict[str, Tensor]:
    """(rows, length, ...) each, as a stream holds them."""
    made: dict[str, Tensor] = {}
    problems: list[tuple[str, str]] = []
    for name, given in (inputs or {}).items():
        found = _unknown(name, known) or _tensor(given, known[name], rows, length)
        if isinstance(found, Tensor):
            made[name] = found
        else:
            problems.append((f'inputs["{name}"]', found))
    if problems:
        raise UserError(f"these inputs do not fit {label}", problems)
    return made


def padded_inputs(inputs: Mapping[str, Sequence[Any]] | None, known: Mapping[str, InputSettings],
                  lengths: Sequence[int], label: str) -> dict[str, list[Tensor]]:
    """One array for each text, (its tokens, ...), special tokens included."""
    made: dict[str, list[Tensor]] = {}
    problems: list[tuple[str, str]] = []
    for name, arrays in (inputs or {}).items():
        if (wrong := _unknown(name, known)) is None and len(arrays) != len(lengths):
            wrong = f"holds {len(arrays)} arrays, and there are {len(lengths)} texts: give one for each"
        if wrong is not None:
            problems.append((f'inputs["{name}"]', wrong))
            continue
        found = [_tensor(array, known[name], None, length) for array, length in zip(arrays, lengths, strict=True)]
        problems += [(f'inputs["{name}"][{number}]', one) for number, one in enumerate(found) if isinstance(one, str)]
        made[name] = [one for one in found if isinstance(one, Tensor)]
    if problems:
        raise UserError(f"these inputs do not fit {label}", problems)
    return made


def _unknown(name: str, known: Mapping[str, InputSettings]) -> str | None:
    taken = [other for other, one in known.items() if not one.from_ids]
    if name in taken:
        return None
    if name in known:
        return "is made from the token ids: leave it out"
    return f"the network has no such input; it has {', '.join(taken)}.{did_you_mean(name, taken)}" if taken else \
        "the network reads nothing besides tokens: leave it out"


def _tensor(given: Any, chosen: InputSettings, rows: int | None, length: int) -> Tensor | str:
    """The numbers, or what is wrong with them."""
    try:
        found = given if isinstance(given, Tensor) else torch.from_numpy(np.ascontiguousarray(given))
    except (TypeError, ValueError) as error:
        return f"must be an array of numbers ({error})"
    outer = (length,) if rows is None else (rows, length)
    wanted = None if chosen.shape is None else (*outer, *chosen.shape)
    if tuple(found.shape) != wanted and (wanted is not None or tuple(found.shape[:len(outer)]) != outer):
        which = "(tokens, ...)" if rows is None else "(rows, tokens, ...)"
        return f"has the shape {tuple(found.shape)}, and must have " + (
            f"{wanted}" if wanted is not None else f"{outer} first") + f": {which}"
    if chosen.most is None:
        return found.float() if bool(torch.isfinite(found.float()).all()) else "holds numbers that are not finite"
    whole = found.long()
    if not bool((whole == found).all()) or found.numel() and not 0 <= int(whole.min()) <= int(whole.max()) <= \
            chosen.most:
        return f"must hold whole numbers from 0 to {chosen.most}"
    return whole
