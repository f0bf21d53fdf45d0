"""A checkpoint that others fine-tuned: the card of its task, as far as its config.json tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stemma import registry
from stemma.errors import CorruptFileError
from stemma.exchange.cards import ALONE, Card
from stemma.exchange.layouts import templates_of
from stemma.exchange.table import Config, Family
from stemma.exchange.task_class import POOLINGS, TaskClass
from stemma.lineage import Recipe, recipe
from stemma.network.task_heads import SentenceHead
from stemma.schema.task_values import values_of
from stemma.text.tokenizer import Tokenizer

SEVERAL = "multi_label_classification"  # any number of labels may be right at once; no task here asks so


def card_of(folder: Path, config: Config, family: Family, notices: list[str]) -> Card | None:
    """The task of the class that config.json names; None where it names none, or one that answers as nobody does here.
    Whether a text or a pair of texts is judged is not said over there, and kind "classify" serves both."""
    named = config.get("architectures") or ()
    kind, task = next(((kind, task) for kind, task in family.tasks.items() if task.name in named), (None, None))
    if kind is None or task is None:
        return None
    told = registry.get("task", kind).build(kind)
    labels = _labels(folder, config) if told.has_classes else []
    if unusual := _unusual(told.number_kind is not None, task, config, labels):
        notices.append(f"{folder} answers as a {task.name} with {', '.join(unusual)}, for which there is no task here; "
                       "its head is left aside.")
        return None
    if told.number_kind is not None and len(labels) == 1:
        kind, labels = told.number_kind, []
    heads = task.heads(ALONE, len(labels) or 1, _dropout(task, config, family))
    if task.pooling is not None and (place := POOLINGS.get(str(config.get(task.pooling)))) is not None:
        head = heads[ALONE]
        assert isinstance(head, SentenceHead)
        heads[ALONE] = replace(head, place=place)
    usual = recipe(family.recipe).settings.corpus
    return Card(ALONE, kind, tuple(labels), heads, usual.single, usual.pair, usual.sequence_length, (),
                values_of(kind, registry.get("task", kind).build(kind).unseen_values(labels)
                          | ({"stack": task.stack} if family.decodes else {})))


def laid_out(card: Card, own: Recipe, tokenizer: Tokenizer | None) -> Card:
    """The same for a model of this recipe: texts as long as it reads, between the tokens that it knows."""
    corpus = own.settings.corpus
    single, pair = templates_of(corpus, tokenizer)
    return replace(card, single=single, pair=pair, longest=corpus.sequence_length)


def _labels(folder: Path, config: Config) -> list[str]:
    """In order; where they have no names, those that would stand there."""
    table = config.get("id2label")
    if table is None:
        return [f"LABEL_{number}" for number in range(config.get("num_labels") or 2)]
    try:
        return [str(table[key]) for key in sorted(table, key=int)]
    except (TypeError, ValueError) as error:
        raise CorruptFileError(f"{folder}/config.json has an id2label that does not number its labels ({error}); copy "
                               "it again.") from error


def _unusual(whole: bool, task: TaskClass, config: Config, labels: list[str]) -> list[str]:
    """What config.json says that no task here has; `whole`: the class judges whole texts."""
    needed: Mapping[str, Any] = task.holds
    if whole and (config.get("problem_type") == SEVERAL or len(labels) > 1):
        needed = {**needed, "problem_type": "single_label_classification"}
    return [f"{key} = {config[key]}" for key, value in needed.items() if config.get(key) not in (None, value)]


def _dropout(task: TaskClass, config: Config, family: Family) -> float:
    stated = config.get(task.dropout) if task.dropout is not None else None
    if stated is None:
        stated = family.complete(config)[task.otherwise] if isinstance(task.otherwise, str) else task.otherwise
    return float(stated)

