"""How good a model is at its tasks while it learns them: by this the best look is chosen, and trials are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stemma.exchange.cards import Card
from stemma.exchange.model import Model
from stemma.progress import stage
from stemma.tasks.batches import reading_batches
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.tasks.learner import Item, Learner
from stemma.tasks.metrics import metrics_of
from stemma.tasks.scoring import measure
from stemma.training.selection import Judge


@torch.inference_mode()
def answers_of(model: Model, learner: Learner, items: Sequence[Item]) -> list[np.ndarray]:
    """The numbers from which the answer to each item is read: logits, as a rule."""
    answers: list[np.ndarray] = [np.zeros(0)] * len(items)
    with stage("predicting", len(items), "rows") as work:
        for numbers, batch in reading_batches(model, learner, items):
            batch = batch.to(model.device)
            hidden = model.network(batch.streams)
            for number, answer in zip(numbers, learner.answers(model.network, hidden, batch), strict=True):
                answers[number] = answer
            work.advance(len(numbers))
    return answers


def judge_of(model: Model, cards: Mapping[str, Card], learners: Mapping[str, Learner],
             examples: Mapping[str, Mapping[str, Sequence[Example]]]) -> Judge | None:
    """Says how good the model is on the dev sets, by the metric of each task that decides, and their mean where there
    are several tasks. None where no answer is known."""
    known = {name: [example for example in examples[name]["dev"] if example.is_known] for name in cards}
    if not all(known.values()):
        return None

    def judge() -> float:
        worths = []
        for name, card in cards.items():
            items = learners[name].items(known[name])
            predictions = learners[name].decide(items, answers_of(model, learners[name], items), known[name])
            kind = head_task(card.kind)
            predictions = kind.settled(kind.tuned(card, known[name], predictions), predictions)
            worths.append(worth(card, measure(card, known[name], predictions)))
        return float(np.mean(worths))

    return judge


def worth(card: Card, metrics: Mapping[str, Any]) -> float:
    """What decides, such that higher is better and a perfect score is 1; a metric that is not defined (a correlation
    with what never changes) is worth less than any other."""
    metric = metrics_of(card.kind)[card.metrics[0]]
    value = float(metrics[metric.name])
    if math.isnan(value):
        return -math.inf
    return (value if metric.higher_is_better else -value) / metric.scale
