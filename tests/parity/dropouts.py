"""Compare dropouts one at a time between Stemma and `transformers`, by the logits of many draws.

A draw is one row of a batch that repeats one text, so that one pass gives thousands of draws. A `Site` names one
dropout in both networks. If a module is called several times in a pass, once for each of several sites, the index of
the call says which.
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
# False positives of one comparison: 6e-7 for the variances (one test), 400 x 2e-9 for the means (at most 400 logits).
# The largest in 90 comparisons with 4 other seeds each: 3.5 and 4.3.
MAX_VARIANCE_ERRORS, MAX_MEAN_ERRORS = 5.0, 6.0  # standard errors
DETECTABLE = 0.5  # relative difference of the variances that the number of draws must be able to show

RATE_ATTRIBUTES = ("dropout", "attention_dropout", "activation_dropout")  # rates that a module stores as a float


@dataclass(frozen=True)
class DropoutCalls:
    """The dropouts whose names match `name`; of those called `period` times per layer or pass, only call `call`."""

    name: str
    call: int = 0
    period: int = 1


@dataclass(frozen=True)
class Site:
    stemma: DropoutCalls | str
    hf: DropoutCalls | str

    def calls(self, in_stemma: bool) -> DropoutCalls:
        calls = self.stemma if in_stemma else self.hf
        return DropoutCalls(calls) if isinstance(calls, str) else calls


class SelectedCalls(nn.Module):
    """Applies dropout only in the calls with these indices, counted modulo the period."""

    def __init__(self, dropout: nn.Module, calls: Sequence[int], period: int):
        super().__init__()
        self.dropout, self.calls, self.period, self.count = dropout, set(calls), period, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.dropout(x) if (self.count - 1) % self.period in self.calls else x


def dropouts_of(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Every dropout of a network: its name, its parent module, and the attribute with the dropout or its rate."""
    for name, submodule in module.named_modules():
        prefix = f"{name}." if name else ""
        for child_name, child in submodule.named_children():
            if isinstance(child, nn.Dropout | Dropout):
                yield prefix + child_name, submodule, child_name
        for attribute in RATE_ATTRIBUTES:
            if isinstance(getattr(submodule, attribute, None), float):
                yield prefix + attribute, submodule, attribute


def dropout_rates(module: nn.Module) -> dict[str, float]:
    dropouts = {name: getattr(owner, attribute) for name, owner, attribute in dropouts_of(module)}
    return {name: dropout if isinstance(dropout, float) else dropout.p for name, dropout in dropouts.items()}


def with_dropouts(module: nn.Module, active: Sequence[DropoutCalls], rate: float = RATE) -> nn.Module:
    """A copy of a network in training mode with these dropouts at the rate, and all others at 0."""
    copied = copy.deepcopy(module).train()
    for name, owner, attribute in list(dropouts_of(copied)):
        matching = [calls for calls in active if re.fullmatch(calls.name, name)]
        new_rate = rate if matching else 0.0
        dropout = getattr(owner, attribute)
        if isinstance(dropout, float):
            setattr(owner, attribute, new_rate)
        else:
            dropout.p = new_rate
        if matching and matching[0].period > 1:
            setattr(owner, attribute, SelectedCalls(dropout, [calls.call for calls in matching], matching[0].period))
    return copied


def dropouts_without_site(module: nn.Module, sites: Sequence[DropoutCalls], unused: str = "$^") -> list[str]:
    """The dropouts that belong to no site, or to several, with the indices of their calls."""
    wrong = []
    for name, _, _ in dropouts_of(module):
        if re.fullmatch(unused, name):
            continue
        matching = [calls for calls in sites if re.fullmatch(calls.name, name)]
        indices = sorted(calls.call for calls in matching)
        if not matching or indices != list(range(matching[0].period)):
            wrong.append(f"{name}: calls {indices}")
    return wrong


@dataclass(frozen=True)
class Difference:
    means: float  # the largest of any logit, in standard errors
    variances: float  # of all logits together, in standard errors
    ratio: float  # variance of Stemma / variance of transformers
    error: float  # standard error of the ratio


def difference(samples: Tensor, hf_samples: Tensor) -> Difference:
    """Compare (draws, logits) of both. Each logit is divided by its variance, so that all have the same weight."""
    samples, hf_samples = samples.double(), hf_samples.double()
    variance = (samples.var(0) + hf_samples.var(0)) / 2
    varies = variance > 1e-10  # logits without variance must be equal, up to fp32 rounding
    torch.testing.assert_close(samples[:, ~varies].mean(0), hf_samples[:, ~varies].mean(0), atol=1e-4, rtol=0)
    assert varies.any(), "no logit varies, so the comparison shows nothing"
    samples, hf_samples, variance = samples[:, varies], hf_samples[:, varies], variance[varies]
    scale = torch.sqrt(variance * (1 / len(samples) + 1 / len(hf_samples)))
    mean_errors = (samples.mean(0) - hf_samples.mean(0)) / scale
    squares = [((values - values.mean(0)) ** 2 / variance).mean(1) * len(values) / (len(values) - 1)
               for values in (samples, hf_samples)]
    total, hf_total = (values.mean() for values in squares)
    error = math.sqrt(sum(values.var() / len(values) for values in squares))
    return Difference(float(mean_errors.abs().max()), float(total - hf_total) / error,
                      float(total / hf_total) if hf_total > 0 else math.inf,
                      error / float(hf_total) if hf_total > 0 else math.inf)


def assert_same_draws(samples: Tensor, hf_samples: Tensor) -> None:
    result = difference(samples.flatten(1), hf_samples.flatten(1))
    enough_draws = MAX_VARIANCE_ERRORS * result.error < DETECTABLE
    assert enough_draws, f"too few draws to see a difference of {DETECTABLE:.0%}: {result}"
    assert abs(result.variances) < MAX_VARIANCE_ERRORS, f"the variances differ: {result}"
    assert result.means < MAX_MEAN_ERRORS, f"the means differ: {result}"


def repeat_rows(inputs: dict[str, Tensor], draws: int) -> dict[str, Any]:
    return {name: value.expand(draws, *value.shape[1:]) for name, value in inputs.items()}
