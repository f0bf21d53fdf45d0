"""From a card to the learner of its task."""

from __future__ import annotations

from stemma.exchange.cards import Card, stack_of
from stemma.network.san import SanHead
from stemma.tasks.gpt_style import LanguageLearner
from stemma.tasks.layout import RowLayout
from stemma.tasks.learner import Learner
from stemma.tasks.pairs import PairLearner
from stemma.tasks.questions import SpanLearner
from stemma.tasks.sentences import ClassLearner, NumberLearner, OptionLearner, RankLearner
from stemma.tasks.tagging import TagLearner


def build_learner(card: Card, layout: RowLayout, seed: int = 0) -> Learner:
    learner = _of_kind(card, layout, seed)
    learner.weight = card.values.get("weight", 1.0)
    learner.stack = stack_of(card)
    if isinstance(learner, ClassLearner | NumberLearner):
        learner.orders = card.values.get("orders", 1)
    if "language" not in card.values:
        return learner
    if isinstance(learner, OptionLearner):
        learner.asked_first = True
    return LanguageLearner(learner, card.values["language"])


def _of_kind(card: Card, layout: RowLayout, seed: int) -> Learner:
    specs, values = dict(card.heads), card.values
    match card.kind:
        case "classify" | "pair":
            kind = PairLearner if isinstance(specs[card.name], SanHead) else ClassLearner
            return kind(card.name, layout, specs, card.labels, values["counts"], values.get("balance"))
        case "regress":
            return NumberLearner(card.name, layout, specs, values["spread"])
        case "choice":
            return OptionLearner(card.name, layout, specs)
        case "tag":
            return TagLearner(card.name, layout, specs, card.labels, values["counts"], values.get("balance"))
        case "qa":
            cut = {key: values[key] for key in ("stride", "overlap") if key in values}
            return SpanLearner(card.name, layout, specs, values["silence"], values.get("threshold", 0.5), **cut)
        case "rank":
            return RankLearner(card.name, layout, specs, values.get("others", 3), seed)
    raise AssertionError(card.kind)
