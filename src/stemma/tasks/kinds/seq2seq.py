"""One text from another: translate, summarise, or any task put as text. The model answers by writing, not by a head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.registry import register
from stemma.schema.task_values import TaskValues
from stemma.tasks.kinds.base import TaskKind
from stemma.tasks.metrics import texts

if TYPE_CHECKING:
    from stemma.training.run import Plan


KIND = "seq2seq"  # whose runs and plans others must tell from those of heads


@register("task", "seq2seq", TaskValues)
class TextToText(TaskKind):
    idea = "One text written from another."
    metrics = texts.METRICS
    usual = ("bleu",)

    def prepare(self, gold: Sequence[Any], predicted: Sequence[Any], **extras: Any) -> Any:
        return texts.prepare(gold, predicted, **extras)

    def resume(self, run: Path, plan: Plan, show: bool) -> dict[str, Any]:
        from stemma.tasks.seq2seq import resume

        return resume(run, show)
