"""From examples and what a model said of them to the metrics of their task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stemma.exchange.cards import Card
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import score


def right_and_said(card: Card, examples: Sequence[Example],
                   predictions: Sequence[dict[str, object]]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """(what is right, what was said, what else the metrics of this kind must know) of the examples that have an
    answer."""
    kind = head_task(card.kind)
    known = [(example, said) for example, said in zip(examples, predictions, strict=True) if example.is_known]
    gold, found = [kind.gold(example) for example, _ in known], [said[kind.answer] for _, said in known]
    return gold, found, kind.extras(card, [example for example, _ in known])


def rehearse(card: Card, examples: Sequence[Example]) -> None:
    """Score perfect answers, so that a metric which does not suit these examples says so before anything is trained."""
    kind = head_task(card.kind)
    known = [example for example in examples if example.is_known]
    measure(card, known, [{kind.answer: kind.perfect(kind.gold(example))} for example in known])


def measure(card: Card, examples: Sequence[Example], predictions: Sequence[dict[str, object]]) -> dict[str, Any]:
    """The metrics by name, and how many examples they rest on; of examples without answers, only their number."""
    gold, found, extras = right_and_said(card, examples, predictions)
    scores = score(card.kind, card.metrics, gold, found, **extras) if gold else {}
    return {**scores, "examples": len(examples)}
