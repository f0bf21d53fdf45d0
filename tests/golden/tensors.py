"""Tensors of two versions side by side: which belongs to which, whether they are equal, and whether two random draws
come from one distribution."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

# From the base's parameter names to the new ones, as (pattern, replacement) of re.sub. Needed only where modules were
# renamed and also reordered: parameters of one shape whose names differ are otherwise paired in their order.
RENAMED: tuple[tuple[str, str], ...] = ()

ERRORS = 5.0  # standard errors by which means and standard deviations may differ: 1 in 1.7 million by chance
ROW_ERRORS = 7.0  # of a single row: there are thousands of rows, and few numbers in each
DISTANCE = 2.69  # Kolmogorov and Smirnov's, times sqrt(2 / n): 1 in a million by chance
FEWEST = 32  # of fewer numbers no deviation is estimated

EQUAL, ALIKE = "equal draw", "same distribution"
LOADED = "loaded"  # the mark of a parameter that was read from a model and not drawn: how many of its numbers


def write_weights(file: Path, network: nn.Module) -> None:
    """The parameters, in their order (safetensors sorts them) and with their marks."""
    named = dict(network.named_parameters())
    loaded = {name: getattr(one, LOADED) for name, one in named.items() if hasattr(one, LOADED)}
    save_file({name: one.detach().clone().contiguous() for name, one in named.items()}, file,
              {"order": json.dumps(list(named)), LOADED: json.dumps(loaded)})


def read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The parameters in their order, and of those that were read from a model how many numbers were."""
    with safe_open(file, framework="pt") as stored:
        told = {key: json.loads(names) for key, names in stored.metadata().items()}
        return {name: stored.get_tensor(name) for name in told["order"]}, told[LOADED]


@dataclass(frozen=True)
class Matched:
    """Names of the base with names of the new version; `by_order` are those whose name is another one."""

    pairs: dict[str, str] = field(default_factory=dict)
    by_order: list[tuple[str, str]] = field(default_factory=list)
    only_base: list[str] = field(default_factory=list)
    only_new: list[str] = field(default_factory=list)


def match(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Matched:
    """By name where name and shape agree; the others in order, among those of the same shape."""
    pairs: dict[str, str] = {}
    for name in base:
        known = name
        for pattern, replacement in RENAMED:
            known = re.sub(pattern, replacement, known)
        if known in new and new[known].shape == base[name].shape:
            pairs[name] = known
    taken, by_order, only_base = set(pairs.values()), [], []
    waiting: dict[tuple[int, ...], list[str]] = {}
    for name in new:
        if name not in taken:
            waiting.setdefault(tuple(new[name].shape), []).append(name)
    for name in base:
        if name in pairs:
            continue
        candidates = waiting.get(tuple(base[name].shape), [])
        if candidates:
            pairs[name] = candidates.pop(0)
            by_order.append((name, pairs[name]))
        else:
            only_base.append(name)
    return Matched(pairs, by_order, only_base, [name for names in waiting.values() for name in names])


def digest(tensor: Tensor) -> str:
    """Of type, shape and bytes, whatever its name."""
    told = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    told.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return told.hexdigest()


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return digest(a) == digest(b)


@dataclass(frozen=True)
class Difference:
    largest: float  # of tensors that belong together
    where: str
    unequal: int
    lonely: int  # tensors of either side that have no counterpart


def difference(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Difference | None:
    """None where all tensors are equal: those of one name, and the others as a multiset, whatever they are called."""
    common = [name for name in base if name in new and base[name].shape == new[name].shape]
    rest = [Counter(digest(side[name]) for name in side if name not in common) for side in (base, new)]
    if rest[0] == rest[1] and all(same_bytes(base[name], new[name]) for name in common):
        return None
    matched = match(base, new)
    unequal = {name: _distance(base[name], new[other]) for name, other in matched.pairs.items()
               if not same_bytes(base[name], new[other])}
    where = max(unequal, key=lambda name: unequal[name], default="")
    return Difference(unequal.get(where, 0.0), where, len(unequal), len(matched.only_base) + len(matched.only_new))


def _distance(a: Tensor, b: Tensor) -> float:
    if not a.numel():
        return 0.0
    found = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(found) else found


def draw_verdict(base: Tensor, new: Tensor) -> str:
    """"equal draw", "same distribution", or what is different."""
    if same_bytes(base, new):
        return EQUAL
    base, new = base.detach().double(), new.detach().double()
    a, b = base.flatten(), new.flatten()
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return "not finite"
    if _constant(a) or _constant(b):
        return f"{_told(a)}, now {_told(b)}"
    count = len(a)
    if count < FEWEST:
        return ALIKE
    spreads = [float(side.std()) for side in (a, b)]
    if abs(float(a.mean() - b.mean())) > ERRORS * math.hypot(*spreads) / math.sqrt(count):
        return f"mean {float(a.mean()):.4g}, now {float(b.mean()):.4g}"
    if abs(spreads[0] - spreads[1]) > ERRORS * math.hypot(_deviation_error(a), _deviation_error(b)):
        return f"standard deviation {spreads[0]:.4g}, now {spreads[1]:.4g}"
    if _largest_gap(a, b) > DISTANCE * math.sqrt(2 / count):
        return "another shape of the distribution"
    return _rows_verdict(base, new)


def _constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())


def _told(values: Tensor) -> str:
    return f"constant {float(values[0]):.4g}" if _constant(values) else "random"


def _deviation_error(values: Tensor) -> float:
    """The standard error of a standard deviation, by the fourth moment."""
    centred = values - values.mean()
    variance, fourth = float((centred**2).mean()), float((centred**4).mean())
    return math.sqrt(max(fourth - variance**2, 0.0) / len(values)) / (2 * math.sqrt(variance))


def _largest_gap(a: Tensor, b: Tensor) -> float:
    """Between the two empirical distribution functions."""
    a, b = a.sort().values, b.sort().values
    places = torch.cat([a, b])
    below = [torch.searchsorted(side, places, right=True).double() / len(side) for side in (a, b)]
    return float((below[0] - below[1]).abs().max())


def _rows_verdict(base: Tensor, new: Tensor) -> str:
    """Rows of a matrix may be drawn differently: queries smaller than keys, a row for padding that is zero."""
    if base.ndim < 2 or base[0].numel() < FEWEST:
        return ALIKE
    rows = [side.reshape(len(side), -1) for side in (base, new)]
    spreads = [side.std(1) for side in rows]
    still = [spread == 0 for spread in spreads]
    if not torch.equal(still[0], still[1]) or not torch.equal(rows[0][still[0]], rows[1][still[1]]):
        return "other rows are constant"
    ratios = (spreads[0][~still[0]] / spreads[1][~still[1]]).log().abs()
    if len(ratios) and float(ratios.max()) > ROW_ERRORS / math.sqrt(rows[0].shape[1]):
        place = int((~still[0]).nonzero()[ratios.argmax()])
        return f"row {place}: standard deviation {float(spreads[0][place]):.4g}, now {float(spreads[1][place]):.4g}"
    return ALIKE


def draws_verdict(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> tuple[str, list[str]]:
    """Of a whole network: the least equal of its parameters, and what is to be said of single ones."""
    matched = match(base, new)
    told = {name: draw_verdict(base[name], new[other]) for name, other in matched.pairs.items()}
    problems = [f"{name}: {found}" for name, found in told.items() if found not in (EQUAL, ALIKE)]
    problems += [f"{name}: only in the base" for name in matched.only_base]
    problems += [f"{name}: only in the new version" for name in matched.only_new]
    if problems:
        return "different", problems
    return (EQUAL if all(found == EQUAL for found in told.values()) else ALIKE), []
