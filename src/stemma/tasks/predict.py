"""A fine-tuned model at work: examples in, and what it says of each, in the memory that a few hundred of them take."""

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
from stemma.tasks.runs.finetune_run import predict_examples as ask


def predict_chunks(model: Model, task_config: TaskConfig,
                   chunks: Iterable[Sequence[PredictInput]]) -> Iterator[dict[str, Any]]:
    """What the model says of each example: what is repeated of it, then the prediction."""
    kind = head_task(task_config.kind)
    for chunk in chunks:
        for asked, said in zip(chunk, predict_examples(model, task_config, [asked.example for asked in chunk]),
                               strict=True):
            yield {**asked.echo, **said, **kind.render(asked, said)}


def predict(model: Model, rows: str | Mapping[str, object] | Sequence[str | Mapping[str, object]] | Path,
            task: str | None = None) -> list[dict[str, Any]]:
    """What a fine-tuned model says of each row, in order: what `stemma predict` prints.

        stemma.predict(model, ["a good film", "a dull one"])[0]["label"]
        stemma.predict(model, {"question": "who reads?", "context": "The clerk reads."})[0]["answer"]
        stemma.predict(model, pathlib.Path("reviews.tsv"))

    A row is a text, or a dictionary with the columns of a table; a `Path` is a file, read as the verb reads it.
    """
    card = model.task_config(task)
    if isinstance(rows, Path):
        return list(predict_chunks(model, card, read_inputs(card.kind, rows)))
    given = [rows] if isinstance(rows, str | Mapping) else list(rows)
    return [{key: value for key, value in said.items() if key != "line"}
            for said in predict_chunks(model, card, inputs_from_memory(card.kind, given))]


def predict_examples(model: Model, task_config: TaskConfig, examples: Sequence[Example]) -> list[Any]:
    learner = build_task_objective(task_config, input_encoder_for(task_config, model.require_tokenizer()))
    return ask(model, learner, examples)
