"""Build the objective of a task from its config."""

from __future__ import annotations

from stemma.task_config import TaskConfig, task_stack
from stemma.tasks.kinds import head_task
from stemma.tasks.objectives.base import TaskObjective
from stemma.tasks.objectives.input_encoder import InputEncoder
from stemma.tasks.objectives.sequence import ClassificationObjective, MultipleChoiceObjective, RegressionObjective
from stemma.tasks.runs.gpt_format import AuxiliaryLMObjective


def build_task_objective(task_config: TaskConfig, input_encoder: InputEncoder, seed: int = 0) -> TaskObjective:
    objective = head_task(task_config.kind).objective(task_config, input_encoder, seed)
    objective.weight, objective.stack = task_config.values.weight, task_stack(task_config)
    if isinstance(objective, ClassificationObjective | RegressionObjective):
        objective.text_orders = task_config.values.orders
    if task_config.values.language is None:
        return objective
    if isinstance(objective, MultipleChoiceObjective):
        objective.question_with_context = True
    return AuxiliaryLMObjective(objective, task_config.values.language)
