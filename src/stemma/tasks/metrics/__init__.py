"""Metrics: what each kind of task is scored by. This page finds them, scores with them, and says how sure a score is.

Scores are in 0..1, as scikit-learn gives them, except where the official scripts print percent: `exact_match` and `f1`
of questions, and the scores of written text (`Seq2SeqMetric.scale` says which).

    score("pair", ("f1", "accuracy"), gold, predicted)                     # labels
    score("regress", ("pearson",), gold, predicted)                        # numbers
    score("tag", ("f1",), gold, predicted)                                 # a list of tags a sentence
    score("qa", ("f1",), gold, predicted, style="cmrc")                    # a list of right answers a question
    score("rank", ("map", "mrr"), gold, predicted, groups=queries)         # a grade and a score a candidate
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stemma.errors import UserError, did_you_mean
from stemma.tasks.metrics.classification import confusion
from stemma.tasks.metrics.metric import Metric
from stemma.tasks.metrics.ner import entity_table
from stemma.tasks.metrics.optional_import import optional_import
from stemma.tasks.metrics.question_answering import squad2_summary

__all__ = ["Metric", "squad2_summary", "bootstrap_interval", "check_metrics", "confusion", "entity_table",
           "metrics_for", "compute_scores"]

CONFIDENCE = 0.95


def metrics_for(kind: str) -> dict[str, Metric]:
    """The metrics of a kind of task by name: `f1` of tagged words is another thing than `f1` of classes."""
    return {metric.name: metric for metric in _kind(kind).metrics}


def _kind(name: str) -> Any:
    from stemma.tasks.kinds import task_kind  # whose kinds name the metrics of this package

    return task_kind(name)


def check_metrics(kind: str, names: Sequence[str]) -> list[Metric]:
    """The metrics of these names. A wrong name or a missing library is told here, so before training, not after it."""
    known = metrics_for(kind)
    unknown = [f'"{name}"{did_you_mean(name, known)}' for name in names if name not in known]
    if unknown:
        raise UserError(f"{kind} has no such metric; choose among {', '.join(known)}.", unknown)
    for name in names:
        module = known[name].requires
        if module:
            optional_import(module)
    return [known[name] for name in names]


def compute_scores(kind: str, names: Sequence[str], gold: Sequence[object], predicted: Sequence[object],
          **extras: Any) -> dict[str, float]:
    """{name: score}, in the order of the names. `extras` are those of the kind's `prepare`: labels and positive
    (classify, pair, choice); scheme (tag); style, no_answer and threshold (qa); groups and ids (rank); tokenize
    (seq2seq)."""
    metrics = check_metrics(kind, names)
    case = _metric_inputs(kind, gold, predicted, extras)
    return {metric.name: metric.compute(case) for metric in metrics}


def bootstrap_interval(kind: str, name: str, gold: Sequence[object], predicted: Sequence[object], *, seed: int = 0,
              rounds: int = 1000, **extras: Any) -> tuple[float, float]:
    """Between which two values the score lies in 95% of the test sets that chance could have drawn instead.

    What is drawn is what is independent: an example, a sentence, a question, or a query with all its candidates."""
    metric = check_metrics(kind, (name,))[0]
    case = _metric_inputs(kind, gold, predicted, extras)
    rng = np.random.default_rng(seed)
    if metric.bootstrap:
        found = metric.bootstrap(case, rng, rounds)
    else:  # scores of written text: sums of no fixed length
        chosen = (rng.integers(len(gold), size=len(gold)) for _ in range(rounds))
        found = np.array([metric.compute(_metric_inputs(kind, [gold[i] for i in rows], [predicted[i] for i in rows],
                                                        extras))
                          for rows in chosen])
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _metric_inputs(kind: str, gold: Sequence[object], predicted: Sequence[object], extras: dict[str, object]) -> Any:
    if not len(gold):
        raise UserError("there is nothing to score; give at least one example.")
    if len(gold) != len(predicted):
        raise UserError(f"there are {len(gold):,} examples and {len(predicted):,} predictions; each example needs one.")
    unknown = sum(one is None for one in gold)
    if unknown:
        raise UserError(f"{unknown:,} of {len(gold):,} examples have no label to compare with; what has none, such as "
                        "an official test file, can be predicted but not scored.")
    return _kind(kind).metric_inputs(gold, predicted, **extras)
