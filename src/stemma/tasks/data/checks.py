"""Checks before training: every example has a label, and every dev and test label occurs in the training set."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stemma.errors import closest_match
from stemma.tasks.data.examples import Example
from stemma.tasks.data.file_reader import ErrorCollector


def check_labelled(examples: Sequence[Example], name: str) -> None:
    """Training and evaluation need gold labels; prediction does not."""
    problems = ErrorCollector(name)
    for example in examples:
        if not example.has_gold:
            problems.add(example.where, "has no label")
    problems.raise_if_any()


def check_relevance_labels(examples: Sequence[Example], name: str) -> None:
    """Ranking labels are relevance grades, so they must be numbers."""
    problems = ErrorCollector(name)
    for example in examples:
        label = getattr(example, "label", None)
        try:
            finite = label is None or math.isfinite(float(label))
        except ValueError:
            finite = False
        if not finite:
            problems.add(example.where, f'"{label}" is not a relevance grade, which is a number, 1 or more if relevant')
    problems.raise_if_any()


def check_labels(train_labels: Sequence[str], examples: Sequence[Example], name: str) -> None:
    """Reject labels (tags) that the training set lacks: the model cannot predict them."""
    trained_labels = set(train_labels)
    problems = ErrorCollector(name)
    for example in examples:
        for where, label in example.located_classes():
            if label not in trained_labels:
                best = closest_match(label, trained_labels)
                hint = f', did you mean "{best}"?' if best else ""
                problems.add(where, f'label "{label}" does not occur in the training data{hint}')
    problems.raise_if_any()
