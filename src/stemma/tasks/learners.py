"""From a card to the learner of its task."""

from __future__ import annotations

from stemma.exchange.cards import Card, stack_of
from stemma.tasks.gpt_style import LanguageLearner
from stemma.tasks.kinds import head_task
from stemma.tasks.layout import RowLayout
from stemma.tasks.learner import Learner
from stemma.tasks.sentences import ClassLearner, NumberLearner, OptionLearner


def build_learner(card: Card, layout: RowLayout, seed: int = 0) -> Learner:
    learner = head_task(card.kind).learner(card, layout, seed)
    learner.weight, learner.stack = card.values.weight, stack_of(card)
    if isinstance(learner, ClassLearner | NumberLearner):
        learner.orders = card.values.orders
    if card.values.language is None:
        return learner
    if isinstance(learner, OptionLearner):
        learner.asked_first = True
    return LanguageLearner(learner, card.values.language)
