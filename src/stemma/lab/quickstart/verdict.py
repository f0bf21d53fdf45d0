"""Which side won the quickstart's comparisons, whichever it was: one sentence each, from the numbers alone.

The same sentences stand in the printed summary, in report.html and in result.json, so none of them can claim more
than another. Numbers are compared as they are printed: a lead that nobody can see is no lead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from stemma.errors import pluralize

BASELINE_NAMES = {"unigram": "always naming the most frequent token", "bigram": "counting left neighbours",
            "two-sided": "counting both neighbours"}
RIVAL_NAMES = {"random": "random weights", "n-grams": "a linear classifier of n-grams"}


def verdicts(result: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of each question: `winner`, and `said`, the sentence."""
    return {"masked": _masked(result["masked"]),
            **{key: _probe(result["probe"], rival, result["labels"])
               for key, rival in (("probe", "random"), ("n-grams", "n-grams"))}}


def _masked(masked: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """The model against the counter with the lowest loss."""
    rival = min(BASELINE_NAMES, key=lambda name: masked[name]["loss"])
    right, nats = ([round(masked[name][key], 3 if key == "accuracy" else 2) for name in ("model", rival)]
                   for key in ("accuracy", "loss"))
    ahead = (right[0] > right[1]) - (right[0] < right[1]), (nats[0] < nats[1]) - (nats[0] > nats[1])
    figures = (f"{right[0]:.1%} of the hidden tokens right against {right[1]:.1%}, {nats[0]:.2f} nats against "
               f"{nats[1]:.2f}")
    if min(ahead) >= 0 < max(ahead):
        winner, said = "model", f"The model beats {BASELINE_NAMES[rival]}"
    elif max(ahead) <= 0 > min(ahead):
        winner, said = "counting", f"The model is worse than {BASELINE_NAMES[rival]}"
    elif ahead == (0, 0):
        winner, said = "neither", f"The model is as good as {BASELINE_NAMES[rival]}, and no better"
    else:
        winner = "neither"
        said = f"The model and {BASELINE_NAMES[rival]} each win one of two measures"
    return {"winner": winner, "against": rival, "said": f"{said}: {figures}."}


def _probe(probe: Mapping[str, Any], rival: str, labels: int) -> dict[str, str]:
    """Seed by seed: all who learn in one seed share its examples, so a seed is one comparison."""
    theirs, ours = ([round(value, 3) for value in probe[name]["test"]] for name in (rival, "pre-trained"))
    better, worse = _wins(ours, theirs), _wins(theirs, ours)
    figures = f"test accuracy {mean(ours):.3f} against {mean(theirs):.3f} after {pluralize(labels, 'label')}"
    every = f"in {'all ' if len(ours) > 1 else ''}{len(ours)} seed{'' if len(ours) == 1 else 's'}"
    if better == len(ours):
        winner, said = "pre-trained", f"Pre-trained weights beat {RIVAL_NAMES[rival]} {every}"
    elif worse == len(ours):
        winner, said = rival, f"Pre-trained weights are worse than {RIVAL_NAMES[rival]} {every}"
    else:
        winner = "neither"
        said = (f"Neither pre-trained weights nor {RIVAL_NAMES[rival]} win: pre-trained weights are better in {better} and "
                f"worse in {worse} of {pluralize(len(ours), 'seed')}")
    return {"winner": winner, "against": rival, "said": f"{said}: {figures}."}


def _wins(first: Sequence[float], second: Sequence[float]) -> int:
    return sum(one > other for one, other in zip(first, second, strict=True))
