"""Dropouts one at a time: switches for each of them, in our networks and in those of `transformers`, and how the logits
of many draws are compared.

A draw is one row of a batch that repeats the same text, so that one pass makes thousands of them. A `Site` says where
one dropout is on both sides. A dropout that is called several times in a pass, for different sites, is told apart by
the number of the call.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stemma.network.dropout import Dropout

DRAWS, RATE = 2000, 0.2
# False alarms of one comparison: variances are one number, so 6e-7; means are at most 400 logits, so 400 x 2e-9. Seen
# in 90 comparisons with 4 other seeds each: at most 3.5 and 4.3.
VARIANCES, MEANS = 5.0, 6.0  # standard errors
POWER = 0.5  # of the variance: a difference this large is seen, and the draws must suffice for that

FLOATS = ("dropout", "attention_dropout", "activation_dropout")  # rates that are plain numbers of a module


@dataclass(frozen=True)
class Where:
    """The dropouts whose names match; of those that are called `period` times a layer or pass, only one call."""

    name: str
    call: int = 0
    period: int = 1


@dataclass(frozen=True)
class Site:
    ours: Where | str
    theirs: Where | str

    def where(self, ours: bool) -> Where:
        chosen = self.ours if ours else self.theirs
        return Where(chosen) if isinstance(chosen, str) else chosen


class Sometimes(nn.Module):
    """Drops in some of its calls: those of the given numbers, counted by the period."""

    def __init__(self, dropout: nn.Module, calls: Sequence[int], period: int):
        super().__init__()
        self.dropout, self.wanted, self.period, self.called = dropout, set(calls), period, 0

    def forward(self, x: Tensor) -> Tensor:
        self.called += 1
        return self.dropout(x) if (self.called - 1) % self.period in self.wanted else x


def switches(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Every dropout of a network: its name, whose it is, and the attribute that holds it or its rate."""
    for name, part in module.named_modules():
        prefix = f"{name}." if name else ""
        for child_name, child in part.named_children():
            if isinstance(child, nn.Dropout | Dropout):
                yield prefix + child_name, part, child_name
        for attribute in FLOATS:
            if isinstance(getattr(part, attribute, None), float):
                yield prefix + attribute, part, attribute


def rates(module: nn.Module) -> dict[str, float]:
    dropouts = {name: getattr(owner, attribute) for name, owner, attribute in switches(module)}
    return {name: dropout if isinstance(dropout, float) else dropout.p for name, dropout in dropouts.items()}


def only(module: nn.Module, where: Sequence[Where], rate: float = RATE) -> nn.Module:
    """A copy of a network in training mode with these dropouts at the rate, and all others at 0."""
    chosen = copy.deepcopy(module).train()
    for name, owner, attribute in list(switches(chosen)):
        found = [one for one in where if re.fullmatch(one.name, name)]
        own = rate if found else 0.0
        kept = getattr(owner, attribute)
        if isinstance(kept, float):
            setattr(owner, attribute, own)
        else:
            kept.p = own
        if found and found[0].period > 1:
            setattr(owner, attribute, Sometimes(kept, [one.call for one in found], found[0].period))
    return chosen


def unassigned(module: nn.Module, where: Sequence[Where], unused: str = "$^") -> list[str]:
    """The dropouts, with the number of the call, that belong to no site or to several."""
    wrong = []
    for name, _, _ in switches(module):
        if re.fullmatch(unused, name):
            continue
        found = [one for one in where if re.fullmatch(one.name, name)]
        calls = sorted(one.call for one in found)
        if not found or calls != list(range(found[0].period)):
            wrong.append(f"{name}: calls {calls}")
    return wrong


@dataclass(frozen=True)
class Difference:
    means: float  # the largest one of a logit, in standard errors
    variances: float  # of all logits together, in standard errors
    ratio: float  # of the variances, ours over theirs
    error: float  # of the ratio


def difference(ours: Tensor, theirs: Tensor) -> Difference:
    """(draws, logits) of both. Logits are weighed alike: each is divided by its variance over both."""
    ours, theirs = ours.double(), theirs.double()
    spread = (ours.var(0) + theirs.var(0)) / 2
    moved = spread > 1e-10  # a logit that no draw moves must be the same, to what fp32 computes
    torch.testing.assert_close(ours[:, ~moved].mean(0), theirs[:, ~moved].mean(0), atol=1e-4, rtol=0)
    assert moved.any(), "nothing was dropped on either side, which proves nothing"
    ours, theirs, spread = ours[:, moved], theirs[:, moved], spread[moved]
    apart = (ours.mean(0) - theirs.mean(0)) / torch.sqrt(spread * (1 / len(ours) + 1 / len(theirs)))
    squares = [((each - each.mean(0)) ** 2 / spread).mean(1) * len(each) / (len(each) - 1) for each in (ours, theirs)]
    (one, other), errors = (each.mean() for each in squares), [each.var() / len(each) for each in squares]
    error = math.sqrt(sum(errors))
    return Difference(float(apart.abs().max()), float(one - other) / error,
                      float(one / other) if other > 0 else math.inf, error / float(other) if other > 0 else math.inf)


def assert_same_draws(ours: Tensor, theirs: Tensor) -> None:
    found = difference(ours.flatten(1), theirs.flatten(1))
    assert VARIANCES * found.error < POWER, f"too few draws to see a difference of {POWER:.0%}: {found}"
    assert abs(found.variances) < VARIANCES, f"the variances differ: {found}"
    assert found.means < MEANS, f"the means differ: {found}"


def repeated(inputs: dict[str, Tensor], draws: int) -> dict[str, Any]:
    return {name: value.expand(draws, *value.shape[1:]) for name, value in inputs.items()}
