"""Sequence-to-sequence: translation, summarization, or any text-to-text task. The model generates; there is no head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.kinds.base import TaskKind
from stemma.tasks.metrics import text_generation

if TYPE_CHECKING:
    from stemma.training.run_folder import RunConfig


KIND = "seq2seq"  # runs and plans of this kind differ from those of head tasks


@register("task", "seq2seq", TaskOptions)
class Seq2SeqTask(TaskKind):
    description = "Generate a target text from a source text."
    metrics = text_generation.METRICS
    default_metrics = ("bleu",)

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return text_generation.metric_inputs(gold, predicted, **metric_options)

    def resume(self, run: Path, run_config: RunConfig, show: bool) -> dict[str, Any]:
        from stemma.tasks.runs.seq2seq import resume

        return resume(run, show)
