"""The verdicts of the quickstart: one sentence per comparison, from the numbers alone.

The terminal, report.html and result.json print the same sentences, so they cannot disagree. Numbers are compared after
rounding, as printed: a difference that is not visible does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from stemma.errors import pluralize

BASELINE_NAMES = {"unigram": "the unigram baseline", "bigram": "the bigram baseline (left neighbour)",
                  "two-sided": "the n-gram baseline (both neighbours)"}
RIVAL_NAMES = {"random": "random weights", "n-grams": "the linear n-gram classifier"}


def verdicts(result: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Per comparison: `winner`, `against` and the sentence `said`."""
    return {"masked": _masked(result["masked"]),
            **{key: _probe(result["probe"], rival, result["labels"])
               for key, rival in (("probe", "random"), ("n-grams", "n-grams"))}}


def _masked(masked: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """The model against the baseline with the lowest loss."""
    rival = min(BASELINE_NAMES, key=lambda name: masked[name]["loss"])
    accuracy, nats = ([round(masked[name][key], 3 if key == "accuracy" else 2) for name in ("model", rival)]
                      for key in ("accuracy", "loss"))
    signs = (accuracy[0] > accuracy[1]) - (accuracy[0] < accuracy[1]), (nats[0] < nats[1]) - (nats[0] > nats[1])
    figures = (f"masked-token accuracy {accuracy[0]:.1%} against {accuracy[1]:.1%}, loss {nats[0]:.2f} nats against "
               f"{nats[1]:.2f}")
    if min(signs) >= 0 < max(signs):
        winner, sentence = "model", f"The model beats {BASELINE_NAMES[rival]}"
    elif max(signs) <= 0 > min(signs):
        winner, sentence = "counting", f"The model is worse than {BASELINE_NAMES[rival]}"
    elif signs == (0, 0):
        winner, sentence = "neither", f"The model is as good as {BASELINE_NAMES[rival]}, and no better"
    else:
        winner = "neither"
        sentence = f"The model and {BASELINE_NAMES[rival]} are each better by one of two metrics"
    return {"winner": winner, "against": rival, "said": f"{sentence}: {figures}."}


def _probe(probe: Mapping[str, Any], rival: str, labels: int) -> dict[str, str]:
    """Paired by seed: in one seed all classifiers have the same examples."""
    theirs, ours = ([round(value, 3) for value in probe[name]["test"]] for name in (rival, "pre-trained"))
    better, worse = _wins(ours, theirs), _wins(theirs, ours)
    figures = f"test accuracy {mean(ours):.3f} against {mean(theirs):.3f} after {pluralize(labels, 'label')}"
    in_seeds = f"in {'all ' if len(ours) > 1 else ''}{len(ours)} seed{'' if len(ours) == 1 else 's'}"
    if better == len(ours):
        winner, sentence = "pre-trained", f"Pre-trained weights beat {RIVAL_NAMES[rival]} {in_seeds}"
    elif worse == len(ours):
        winner, sentence = rival, f"Pre-trained weights are worse than {RIVAL_NAMES[rival]} {in_seeds}"
    else:
        winner = "neither"
        sentence = (f"Neither pre-trained weights nor {RIVAL_NAMES[rival]} win: pre-trained weights are better in "
                    f"{better} and worse in {worse} of {pluralize(len(ours), 'seed')}")
    return {"winner": winner, "against": rival, "said": f"{sentence}: {figures}."}


def _wins(first: Sequence[float], second: Sequence[float]) -> int:
    return sum(a > b for a, b in zip(first, second, strict=True))
