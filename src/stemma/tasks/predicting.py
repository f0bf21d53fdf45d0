"""A fine-tuned model at work: examples in, and what it says of each, in the memory that a few hundred of them take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.exchange.cards import Card
from stemma.exchange.model import Model
from stemma.tasks.data.examples import Example
from stemma.tasks.data.inputs import given_inputs, read_inputs
from stemma.tasks.kinds import Asked, head_task
from stemma.tasks.learners import build_learner
from stemma.tasks.learning import layout_of
from stemma.tasks.learning import predict as ask


def answer(model: Model, card: Card, chunks: Iterable[Sequence[Asked]]) -> Iterator[dict[str, Any]]:
    """What the model says of each example: what is repeated of it, then the prediction."""
    kind = head_task(card.kind)
    for chunk in chunks:
        for asked, said in zip(chunk, predictions(model, card, [asked.example for asked in chunk]), strict=True):
            yield {**asked.told, **said, **kind.rendered(asked, said)}


def predict(model: Model, rows: str | Mapping[str, object] | Sequence[str | Mapping[str, object]] | Path,
            task: str | None = None) -> list[dict[str, Any]]:
    """What a fine-tuned model says of each row, in order: what `stemma predict` prints.

        stemma.predict(model, ["a good film", "a dull one"])[0]["label"]
        stemma.predict(model, {"question": "who reads?", "context": "The clerk reads."})[0]["answer"]
        stemma.predict(model, pathlib.Path("reviews.tsv"))

    A row is a text, or a dictionary with the columns of a table; a `Path` is a file, read as the verb reads it.
    """
    card = model.card(task)
    if isinstance(rows, Path):
        return list(answer(model, card, read_inputs(card.kind, rows)))
    given = [rows] if isinstance(rows, str | Mapping) else list(rows)
    return [{key: value for key, value in said.items() if key != "line"}
            for said in answer(model, card, given_inputs(card.kind, given))]


def predictions(model: Model, card: Card, examples: Sequence[Example]) -> list[Any]:
    learner = build_learner(card, layout_of(card, model.needs_tokenizer()))
    return ask(model, learner, examples)
