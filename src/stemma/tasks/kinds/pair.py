"""One of several classes for two texts: does the second follow from the first, do they ask the same?"""

from __future__ import annotations

from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.kinds.texts import ClassTask


@register("task", "pair", TaskValues)
class Pair(ClassTask):
    idea = "One of several classes for two texts."
    one_text, two_texts = False, True
    alike = frozenset({"classify"})
    two_text_heads = True
