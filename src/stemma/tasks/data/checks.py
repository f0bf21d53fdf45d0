"""What must hold before anything is trained: every example has a label, and every label has been learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stemma.errors import nearest
from stemma.tasks.data.examples import Example, QuestionExample, TaggedExample
from stemma.tasks.data.reading import Problems


def check_labelled(examples: Sequence[Example], name: str) -> None:
    """For training and evaluation; predicting needs no labels."""
    problems = Problems(name)
    for example in examples:
        if isinstance(example, QuestionExample):
            missing = not example.answers and not example.impossible
        else:
            missing = (example.tags if isinstance(example, TaggedExample) else example.label) is None
        if missing:
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
        if isinstance(example, TaggedExample):
            said = [(f"{example.where}, word {place + 1} ({word})", tag) for place, (word, tag)
                    in enumerate(zip(example.words, example.tags or (), strict=False))]
        else:
            label = getattr(example, "label", None)
            said = [(example.where, label)] if isinstance(label, str) else []
        for where, label in said:
            if label not in known:
                best = nearest(label, known)
                hint = f', did you mean "{best}"?' if best else ""
                problems.add(where, f'label "{label}" does not occur in the training data{hint}')
    problems.check()
