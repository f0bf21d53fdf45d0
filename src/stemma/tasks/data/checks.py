"""What must hold before anything is trained: every example has a label, and every label has been learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stemma.errors import nearest
from stemma.tasks.data.examples import Example
from stemma.tasks.data.reading import Problems


def check_labelled(examples: Sequence[Example], name: str) -> None:
    """For training and evaluation; predicting needs no labels."""
    problems = Problems(name)
    for example in examples:
        if not example.is_known:
            problems.add(example.where, "nothing says what is right here")
    problems.check()


def check_grades(examples: Sequence[Example], name: str) -> None:
    """For ranking: a label says how good a candidate is, so it must be a number."""
    problems = Problems(name)
    for example in examples:
        label = getattr(example, "label", None)
        try:
            finite = label is None or math.isfinite(float(label))
        except ValueError:
            finite = False
        if not finite:
            problems.add(example.where, f'"{label}" is no grade; a candidate has a number, from 1 on where it is good')
    problems.check()


def check_labels(train_labels: Sequence[str], examples: Sequence[Example], name: str) -> None:
    """Refuse labels (tags) that training has not seen: a model cannot say them."""
    known = set(train_labels)
    problems = Problems(name)
    for example in examples:
        for where, label in example.stated():
            if label not in known:
                best = nearest(label, known)
                hint = f', did you mean "{best}"?' if best else ""
                problems.add(where, f'label "{label}" does not occur in the training data{hint}')
    problems.check()
