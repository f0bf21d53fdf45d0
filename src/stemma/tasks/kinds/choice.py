"""Multiple choice: each option is encoded as its own sequence, and a softmax runs over the options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.registry import register
from stemma.schema.task_options import TaskOptions
from stemma.tasks.data.examples import ChoiceExample, Example
from stemma.tasks.data.file_reader import FileReader
from stemma.tasks.data.multiple_choice import read_choices
from stemma.tasks.kinds.base import Columns, HeadTask, Prediction
from stemma.tasks.kinds.texts import error_scores
from stemma.tasks.metrics import classification

if TYPE_CHECKING:
    from stemma.task_config import TaskConfig
    from stemma.tasks.objectives.base import TaskObjective
    from stemma.tasks.objectives.input_encoder import InputEncoder
    from stemma.tasks.prompt_template import PromptTemplate


@register("task", "choice", TaskOptions)
class MultipleChoiceTask(HeadTask):
    description = "Multiple choice: which of several options is correct."
    example_type = ChoiceExample
    metrics = (classification.ACCURACY,)
    default_metrics = ("accuracy",)
    prediction_key = "label"
    per_example = True
    supports_gpt_format = True

    def metric_inputs(self, gold: Sequence[Any], predicted: Sequence[Any], **metric_options: Any) -> Any:
        return classification.metric_inputs(gold, predicted, **metric_options)

    def read(self, path: str | Path, columns: Columns, reader: FileReader) -> Sequence[Example]:
        return read_choices(path, columns, reader)

    def objective(self, task_config: TaskConfig, input_encoder: InputEncoder, seed: int) -> TaskObjective:
        from stemma.tasks.objectives.sequence import MultipleChoiceObjective

        return MultipleChoiceObjective(task_config.name, input_encoder, dict(task_config.heads))

    def gold(self, example: Example) -> int:
        assert isinstance(example, ChoiceExample) and example.label is not None
        return example.label

    def error_confidences(self, task_config: TaskConfig, gold: Sequence[Any], examples: Sequence[Example],
                          predicted: Sequence[Prediction]) -> list[float | None]:
        return error_scores(gold, predicted)

    def prompt_template(self) -> type[PromptTemplate]:
        from stemma.tasks.prompt_template import MultipleChoiceTemplate as Prompt

        return Prompt
