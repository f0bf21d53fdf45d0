"""From examples and what a model said of them to the metrics of their task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stemma.exchange.cards import Card
from stemma.tasks.data.examples import Example, QuestionExample, TaggedExample
from stemma.tasks.metrics import answers, score
from stemma.tasks.questions import settled

ALWAYS = 1.0  # a threshold that no chance exceeds: something is always said


def right_and_said(card: Card, examples: Sequence[Example],
                   predictions: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """(what is right, what was said, what else the metrics of this kind must know) of the examples that have an
    answer."""
    known = [(example, said) for example, said in zip(examples, predictions, strict=True) if is_known(example)]
    gold, found = [right(card.kind, example) for example, _ in known], [said[FOUND[card.kind]] for _, said in known]
    extras: dict[str, Any] = {}
    if card.kind in ("classify", "pair"):
        extras = {"labels": list(card.labels)}
    if card.kind == "rank":
        extras = {"groups": [example.group or example.texts[0] for example, _ in known]}  # type: ignore[union-attr]
    if card.kind == "qa":
        extras = {"style": card.values.get("style")}
    if card.kind == "tag":
        extras = {"scheme": card.values.get("scheme")}  # of the training tags: a few sentences may not show it
    return gold, found, extras


FOUND = {"classify": "label", "pair": "label", "regress": "score", "choice": "label", "rank": "score", "tag": "tags",
         "qa": "answer"}


def is_known(example: Example) -> bool:
    if isinstance(example, QuestionExample):
        return bool(example.answers) or example.impossible is True
    if isinstance(example, TaggedExample):
        return example.tags is not None
    return example.label is not None


def right(kind: str, example: Example) -> Any:
    if isinstance(example, QuestionExample):
        return [answer.text for answer in example.answers]
    if isinstance(example, TaggedExample):
        return list(example.tags or ())
    assert example.label is not None
    return {"classify": str, "pair": str, "regress": float, "choice": int, "rank": float}[kind](example.label)


def best_silence(card: Card, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]) -> float:
    """How likely it must be that a question has no answer before that is said: what gives the best score here, as the
    official script of SQuAD 2.0 finds it."""
    said = settle(predictions, ALWAYS)
    gold, found, extras = right_and_said(card, examples, said)
    chances = [prediction["no_answer"] for example, prediction in zip(examples, said, strict=True) if is_known(example)]
    case = answers.prepare(gold, found, no_answer=chances, **extras)
    return answers.best_threshold(case, case.exact if card.metrics[0] == "exact_match" else case.f1)[1]


def settle(predictions: Sequence[dict[str, Any]], threshold: float) -> list[dict[str, Any]]:
    """The same predictions under another threshold."""
    return [settled(prediction, threshold) for prediction in predictions]


def rehearse(card: Card, examples: Sequence[Example]) -> None:
    """Score perfect answers, so that a metric which does not suit these examples says so before anything is trained."""
    known = [example for example in examples if is_known(example)]
    perfect = [right(card.kind, example) for example in known]
    if card.kind == "qa":
        perfect = [answers[0] if answers else "" for answers in perfect]
    measure(card, known, [{FOUND[card.kind]: answer} for answer in perfect])


def measure(card: Card, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The metrics by name, and how many examples they rest on; of examples without answers, only their number."""
    gold, found, extras = right_and_said(card, examples, predictions)
    scores = score(card.kind, card.metrics, gold, found, **extras) if gold else {}
    return {**scores, "examples": len(examples)}
