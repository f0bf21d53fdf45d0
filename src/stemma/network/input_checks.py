"""Inputs besides token ids that a user passes with a text: {"name": array}, validated all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError, did_you_mean
from stemma.schema.parts import InputSettings

Inputs = Mapping[str, Any]  # arrays, tensors or nested lists, by the name of [network.inputs.NAME]


def checked_inputs(inputs: Inputs | None, input_settings: Mapping[str, InputSettings], rows: int, length: int,
                   label: str) -> dict[str, Tensor]:
    """A tensor (rows, length, ...) for each input, as a stream has them."""
    tensors: dict[str, Tensor] = {}
    problems: list[tuple[str, str]] = []
    for name, array in (inputs or {}).items():
        result = _name_problem(name, input_settings) or _tensor(array, input_settings[name], rows, length)
        if isinstance(result, Tensor):
            tensors[name] = result
        else:
            problems.append((f'inputs["{name}"]', result))
    if problems:
        raise UserError(f"these inputs do not fit {label}", problems)
    return tensors


def padded_inputs(inputs: Mapping[str, Sequence[Any]] | None, input_settings: Mapping[str, InputSettings],
                  lengths: Sequence[int], label: str) -> dict[str, list[Tensor]]:
    """One tensor (tokens, ...) for each text, special tokens included."""
    tensors: dict[str, list[Tensor]] = {}
    problems: list[tuple[str, str]] = []
    for name, arrays in (inputs or {}).items():
        if (problem := _name_problem(name, input_settings)) is None and len(arrays) != len(lengths):
            problem = f"holds {len(arrays)} arrays, and there are {len(lengths)} texts: give one for each"
        if problem is not None:
            problems.append((f'inputs["{name}"]', problem))
            continue
        results = [_tensor(array, input_settings[name], None, length)
                   for array, length in zip(arrays, lengths, strict=True)]
        problems += [(f'inputs["{name}"][{index}]', result) for index, result in enumerate(results)
                     if isinstance(result, str)]
        tensors[name] = [result for result in results if isinstance(result, Tensor)]
    if problems:
        raise UserError(f"these inputs do not fit {label}", problems)
    return tensors


def _name_problem(name: str, input_settings: Mapping[str, InputSettings]) -> str | None:
    accepted = [accepted_name for accepted_name, settings in input_settings.items()
                if not settings.from_ids or settings.reads_text]
    if name in accepted:
        return None
    if name in input_settings:
        return "is made from the token ids: leave it out"
    return f"the network has no such input; it has {', '.join(accepted)}.{did_you_mean(name, accepted)}" if accepted \
        else "the network reads nothing besides tokens: leave it out"


def _tensor(array: Any, settings: InputSettings, rows: int | None, length: int) -> Tensor | str:
    """The tensor, or what is wrong with it."""
    try:
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        return f"must be an array of numbers ({error})"
    outer = (length,) if rows is None else (rows, length)
    expected = None if settings.shape is None else (*outer, *settings.shape)
    shape = tuple(tensor.shape)
    if shape != expected and (expected is not None or shape[:len(outer)] != outer):
        axes = "(tokens, ...)" if rows is None else "(rows, tokens, ...)"
        return f"has the shape {shape}, and must have " + (
            f"{expected}" if expected is not None else f"{outer} first") + f": {axes}"
    if settings.most is None:
        return tensor.float() if bool(torch.isfinite(tensor.float()).all()) else "holds numbers that are not finite"
    ids = tensor.long()
    if not bool((ids == tensor).all()) or tensor.numel() and not 0 <= int(ids.min()) <= int(ids.max()) <= settings.most:
        return f"must hold whole numbers from 0 to {settings.most}"
    return ids
