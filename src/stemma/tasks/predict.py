"""Prediction with a fine-tuned model, in chunks of a few hundred examples to bound memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.model import Model
from stemma.task_config import TaskConfig
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import PredictInput, head_task
from stemma.tasks.predict_inputs import inputs_from_memory, read_inputs
from stemma.tasks.runs.build_objective import build_task_objective
from stemma.tasks.runs.finetune_run import input_encoder_for
from stemma.tasks.runs.finetune_run import predict_examples as predict_encoded


def predict_chunks(model: Model, task_config: TaskConfig,
                   chunks: Iterable[Sequence[PredictInput]]) -> Iterator[dict[str, Any]]:
    """A dictionary per example: the repeated input fields, then the prediction."""
    kind = head_task(task_config.kind)
    for chunk in chunks:
        predictions = predict_examples(model, task_config, [predict_input.example for predict_input in chunk])
        for predict_input, prediction in zip(chunk, predictions, strict=True):
            yield {**predict_input.echo, **prediction, **kind.render(predict_input, prediction)}


def predict(model: Model, rows: str | Mapping[str, object] | Sequence[str | Mapping[str, object]] | Path,
            task: str | None = None) -> list[dict[str, Any]]:
    """Predict each row with a fine-tuned model, in order; the same dictionaries that `stemma predict` prints.

        stemma.predict(model, ["a good film", "a dull one"])[0]["label"]
        stemma.predict(model, {"question": "who reads?", "context": "The clerk reads."})[0]["answer"]
        stemma.predict(model, pathlib.Path("reviews.tsv"))

    A row is a text, or a dictionary with the columns of a table; a `Path` is a file, read like the command does.
    """
    task_config = model.task_config(task)
    if isinstance(rows, Path):
        return list(predict_chunks(model, task_config, read_inputs(task_config.kind, rows)))
    row_list = [rows] if isinstance(rows, str | Mapping) else list(rows)
    return [{key: value for key, value in prediction.items() if key != "line"}
            for prediction in predict_chunks(model, task_config, inputs_from_memory(task_config.kind, row_list))]


def predict_examples(model: Model, task_config: TaskConfig, examples: Sequence[Example]) -> list[Any]:
    objective = build_task_objective(task_config, input_encoder_for(task_config, model.require_tokenizer()))
    return predict_encoded(model, objective, examples)
