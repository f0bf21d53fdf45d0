"""Compares tensors of two versions: pairs them by name or shape, and tests whether they are equal or (random
initial weights) have the same distribution."""

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
ROW_ERRORS = 7.0  # for a single row: there are thousands of rows with few elements each
DISTANCE = 2.69  # of the Kolmogorov-Smirnov test, times sqrt(2 / n): 1 in a million by chance
MIN_COUNT = 32  # below this no standard deviation is estimated

EQUAL, SAME_DISTRIBUTION = "equal weights", "same distribution"
LOADED = "loaded"  # attribute of a parameter: how many of its elements were loaded from a model


def write_weights(file: Path, network: nn.Module) -> None:
    """Write the parameters with their order (safetensors sorts them) and their numbers of loaded elements."""
    named = dict(network.named_parameters())
    loaded = {name: getattr(parameter, LOADED) for name, parameter in named.items() if hasattr(parameter, LOADED)}
    save_file({name: parameter.detach().clone().contiguous() for name, parameter in named.items()}, file,
              {"order": json.dumps(list(named)), LOADED: json.dumps(loaded)})


def read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The parameters in their order, and the number of loaded elements by name."""
    with safe_open(file, framework="pt") as stored:
        metadata = {key: json.loads(value) for key, value in stored.metadata().items()}
        return {name: stored.get_tensor(name) for name in metadata["order"]}, metadata[LOADED]


@dataclass(frozen=True)
class Matched:
    """Pairs of parameter names (base, new version); `by_order` are those with different names."""

    pairs: dict[str, str] = field(default_factory=dict)
    by_order: list[tuple[str, str]] = field(default_factory=list)
    only_base: list[str] = field(default_factory=list)
    only_new: list[str] = field(default_factory=list)


def match(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Matched:
    """Pair by name if the shapes agree; pair the others in order among those of the same shape."""
    pairs: dict[str, str] = {}
    for name in base:
        new_name = name
        for pattern, replacement in RENAMED:
            new_name = re.sub(pattern, replacement, new_name)
        if new_name in new and new[new_name].shape == base[name].shape:
            pairs[name] = new_name
    paired, by_order, only_base = set(pairs.values()), [], []
    unpaired: dict[tuple[int, ...], list[str]] = {}
    for name in new:
        if name not in paired:
            unpaired.setdefault(tuple(new[name].shape), []).append(name)
    for name in base:
        if name in pairs:
            continue
        candidates = unpaired.get(tuple(base[name].shape), [])
        if candidates:
            pairs[name] = candidates.pop(0)
            by_order.append((name, pairs[name]))
        else:
            only_base.append(name)
    return Matched(pairs, by_order, only_base, [name for names in unpaired.values() for name in names])


def digest(tensor: Tensor) -> str:
    """Digest of dtype, shape and bytes."""
    checksum = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    checksum.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return digest(a) == digest(b)


@dataclass(frozen=True)
class Difference:
    largest: float  # over paired tensors
    where: str
    unequal: int
    unmatched: int  # tensors of either side without a counterpart


def difference(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Difference | None:
    """None if all tensors are equal: those of the same name, and the others as a multiset, whatever their names."""
    common = [name for name in base if name in new and base[name].shape == new[name].shape]
    others = [Counter(digest(side[name]) for name in side if name not in common) for side in (base, new)]
    if others[0] == others[1] and all(same_bytes(base[name], new[name]) for name in common):
        return None
    matched = match(base, new)
    unequal = {name: _distance(base[name], new[other]) for name, other in matched.pairs.items()
               if not same_bytes(base[name], new[other])}
    where = max(unequal, key=lambda name: unequal[name], default="")
    return Difference(unequal.get(where, 0.0), where, len(unequal), len(matched.only_base) + len(matched.only_new))


def _distance(a: Tensor, b: Tensor) -> float:
    if not a.numel():
        return 0.0
    largest = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(largest) else largest


def init_verdict(base: Tensor, new: Tensor) -> str:
    """EQUAL, SAME_DISTRIBUTION, or the difference in words."""
    if same_bytes(base, new):
        return EQUAL
    base, new = base.detach().double(), new.detach().double()
    a, b = base.flatten(), new.flatten()
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return "not finite"
    if _constant(a) or _constant(b):
        return f"{_describe(a)}, now {_describe(b)}"
    count = len(a)
    if count < MIN_COUNT:
        return SAME_DISTRIBUTION
    deviations = [float(side.std()) for side in (a, b)]
    if abs(float(a.mean() - b.mean())) > ERRORS * math.hypot(*deviations) / math.sqrt(count):
        return f"mean {float(a.mean()):.4g}, now {float(b.mean()):.4g}"
    if abs(deviations[0] - deviations[1]) > ERRORS * math.hypot(_deviation_error(a), _deviation_error(b)):
        return f"standard deviation {deviations[0]:.4g}, now {deviations[1]:.4g}"
    if _largest_gap(a, b) > DISTANCE * math.sqrt(2 / count):
        return "another shape of the distribution"
    return _rows_verdict(base, new)


def _constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())


def _describe(values: Tensor) -> str:
    return f"constant {float(values[0]):.4g}" if _constant(values) else "random"


def _deviation_error(values: Tensor) -> float:
    """The standard error of a standard deviation, by the fourth moment."""
    centred = values - values.mean()
    variance, fourth = float((centred**2).mean()), float((centred**4).mean())
    return math.sqrt(max(fourth - variance**2, 0.0) / len(values)) / (2 * math.sqrt(variance))


def _largest_gap(a: Tensor, b: Tensor) -> float:
    """The largest difference between the two empirical distribution functions."""
    a, b = a.sort().values, b.sort().values
    values = torch.cat([a, b])
    below = [torch.searchsorted(side, values, right=True).double() / len(side) for side in (a, b)]
    return float((below[0] - below[1]).abs().max())


def _rows_verdict(base: Tensor, new: Tensor) -> str:
    """Rows of a matrix may have different distributions: queries smaller than keys, or a padding row of zeros."""
    if base.ndim < 2 or base[0].numel() < MIN_COUNT:
        return SAME_DISTRIBUTION
    rows = [side.reshape(len(side), -1) for side in (base, new)]
    deviations = [side.std(1) for side in rows]
    constant = [deviation == 0 for deviation in deviations]
    if not torch.equal(constant[0], constant[1]) or not torch.equal(rows[0][constant[0]], rows[1][constant[1]]):
        return "other rows are constant"
    ratios = (deviations[0][~constant[0]] / deviations[1][~constant[1]]).log().abs()
    if len(ratios) and float(ratios.max()) > ROW_ERRORS / math.sqrt(rows[0].shape[1]):
        row = int((~constant[0]).nonzero()[ratios.argmax()])
        return f"row {row}: standard deviation {float(deviations[0][row]):.4g}, now {float(deviations[1][row]):.4g}"
    return SAME_DISTRIBUTION


def network_init_verdict(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> tuple[str, list[str]]:
    """The verdict over all parameters of a network, and the problems by parameter."""
    matched = match(base, new)
    verdicts = {name: init_verdict(base[name], new[other]) for name, other in matched.pairs.items()}
    problems = [f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict not in (EQUAL, SAME_DISTRIBUTION)]
    problems += [f"{name}: only in the base" for name in matched.only_base]
    problems += [f"{name}: only in the new version" for name in matched.only_new]
    if problems:
        return "different", problems
    return (EQUAL if all(verdict == EQUAL for verdict in verdicts.values()) else SAME_DISTRIBUTION), []
