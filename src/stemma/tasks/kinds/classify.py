"""One of several classes for a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.data.columns import PAIR
from stemma.tasks.data.examples import Example
from stemma.tasks.data.reading import Reading
from stemma.tasks.kinds.base import Columns
from stemma.tasks.kinds.texts import ClassTask

if TYPE_CHECKING:
    from stemma.tasks.template import Template


@register("task", "classify", TaskValues)
class Classify(ClassTask):
    idea = "One of several classes for a text."
    number_kind = "regress"
    alike = frozenset({"pair"})
    paired_kind = ("pair", frozenset(PAIR.texts[1]))  # a foreign model does not say whether it judges pairs

    def read_rows(self, name: str, columns: Columns, reading: Reading) -> Sequence[Example]:
        from stemma.tasks.kinds.pair import Pair

        kind, second = self.paired_kind
        there = {column.casefold() for column in reading.table(name).columns}
        return Pair(kind).read(name, columns, reading) if there & second else self.read(name, columns, reading)

    def template(self) -> type[Template]:
        from stemma.tasks.template import Classify as Prompt

        return Prompt
