"""Classification of a single text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.examples import Example
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.data.text_tables import TEXT_PAIR
from stemma.tasks.kinds.base import Columns
from stemma.tasks.kinds.texts import ClassificationTask

if TYPE_CHECKING:
    from stemma.tasks.prompt_template import PromptTemplate


@register("task", "classify", TaskOptions)
class TextClassificationTask(ClassificationTask):
    description = "One of several classes for a text."
    single_label_kind = "regress"
    compatible_kinds = frozenset({"pair"})
    pair_kind = ("pair", frozenset(TEXT_PAIR.texts[1]))  # an imported model does not state whether it classifies pairs

    def read_rows(self, name: str, columns: Columns, reader: FileReader) -> Sequence[Example]:
        from stemma.tasks.kinds.pair import PairClassificationTask

        kind, second = self.pair_kind
        if {column.casefold() for column in reader.table(name).columns} & second:
            return PairClassificationTask(kind).read(name, columns, reader)
        return self.read(name, columns, reader)

    def prompt_template(self) -> type[PromptTemplate]:
        from stemma.tasks.prompt_template import ClassificationTemplate as Prompt

        return Prompt
