"""Classification of a text pair: entailment, paraphrase, duplicate questions."""

from __future__ import annotations

from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.kinds.texts import ClassificationTask


@register("task", "pair", TaskOptions)
class PairClassificationTask(ClassificationTask):
    description = "One of several classes for two texts."
    allows_single, allows_pair = False, True
    compatible_kinds = frozenset({"classify"})
    supports_san = True
