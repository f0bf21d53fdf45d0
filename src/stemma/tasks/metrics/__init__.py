"""Metrics of each task kind: look them up, compute scores, and estimate confidence intervals by the bootstrap.

Scores are in 0..1, as in scikit-learn, except where the official scripts print percent: `exact_match` and `f1` of
question answering, and the scores of generated text (see `Metric.scale`).

    compute_scores("pair", ("f1", "accuracy"), gold, predicted)                # labels
    compute_scores("regress", ("pearson",), gold, predicted)                   # numbers
    compute_scores("tag", ("f1",), gold, predicted)                            # a list of tags per sentence
    compute_scores("qa", ("f1",), gold, predicted, matching="cmrc")            # a list of gold answers per question
    compute_scores("rank", ("map", "mrr"), gold, predicted, groups=queries)    # a grade and a score per candidate
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
    """The metrics of a task kind by name; `f1` of tags and `f1` of classes are different metrics."""
    return {metric.name: metric for metric in _kind(kind).metrics}


def _kind(name: str) -> Any:
    from stemma.tasks.kinds import task_kind  # deferred: the kinds import this package

    return task_kind(name)


def check_metrics(kind: str, names: Sequence[str]) -> list[Metric]:
    """Look up metrics by name. Unknown names and missing libraries raise an error here, before training."""
    available = metrics_for(kind)
    unknown = [f'"{name}"{did_you_mean(name, available)}' for name in names if name not in available]
    if unknown:
        raise UserError(f"{kind} has no such metric; choose among {', '.join(available)}.", unknown)
    for name in names:
        module = available[name].requires
        if module:
            optional_import(module)
    return [available[name] for name in names]


def compute_scores(kind: str, names: Sequence[str], gold: Sequence[object], predicted: Sequence[object],
                   **extras: Any) -> dict[str, float]:
    """{name: score}, in the order of the names. `extras` go to the kind's `metric_inputs`: labels and positive
    (classify, pair, choice); scheme (tag); matching, no_answer and threshold (qa); groups and ids (rank); tokenize
    (seq2seq)."""
    metrics = check_metrics(kind, names)
    inputs = _metric_inputs(kind, gold, predicted, extras)
    return {metric.name: metric.compute(inputs) for metric in metrics}


def bootstrap_interval(kind: str, name: str, gold: Sequence[object], predicted: Sequence[object], *, seed: int = 0,
                       rounds: int = 1000, **extras: Any) -> tuple[float, float]:
    """The 95% bootstrap interval of a score.

    It resamples independent units: examples, sentences, questions, or queries with all their candidates."""
    metric = check_metrics(kind, (name,))[0]
    inputs = _metric_inputs(kind, gold, predicted, extras)
    rng = np.random.default_rng(seed)
    if metric.bootstrap:
        scores = metric.bootstrap(inputs, rng, rounds)
    else:  # scores of generated text are not sums over examples
        samples = (rng.integers(len(gold), size=len(gold)) for _ in range(rounds))
        scores = np.array([metric.compute(_metric_inputs(kind, [gold[i] for i in rows], [predicted[i] for i in rows],
                                                         extras))
                           for rows in samples])
    low, high = np.quantile(scores, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _metric_inputs(kind: str, gold: Sequence[object], predicted: Sequence[object], extras: dict[str, object]) -> Any:
    if not len(gold):
        raise UserError("there is nothing to score; give at least one example.")
    if len(gold) != len(predicted):
        raise UserError(f"there are {len(gold):,} examples and {len(predicted):,} predictions; each example needs one.")
    unknown = sum(label is None for label in gold)
    if unknown:
        raise UserError(f"{unknown:,} of {len(gold):,} examples have no label to compare with; what has none, such as "
                        "an official test file, can be predicted but not scored.")
    return _kind(kind).metric_inputs(gold, predicted, **extras)
