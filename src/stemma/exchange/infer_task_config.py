"""A checkpoint that others fine-tuned: the card of its task, as far as its config.json tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stemma import registry
from stemma.errors import CorruptFileError
from stemma.exchange.family import Config, Family
from stemma.exchange.hf_task_class import POOLINGS, HFTaskClass
from stemma.exchange.input_templates import input_templates
from stemma.network.task_heads import SentenceHead
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.task_options import parse_task_options
from stemma.task_config import DEFAULT_TASK, TaskConfig
from stemma.text.tokenizer import Tokenizer

MULTI_LABEL = "multi_label_classification"  # any number of labels may be right at once; no task here asks so


def infer_task_config(folder: Path, config: Config, family: Family, warnings: list[str]) -> TaskConfig | None:
    """The task of the class that config.json names; None where it names none, or one that answers as nobody does here.
    Whether a text or a pair of texts is judged is not said over there, and kind "classify" serves both."""
    named = config.get("architectures") or ()
    kind, task = next(((kind, task) for kind, task in family.task_classes.items() if task.name in named), (None, None))
    if kind is None or task is None:
        return None
    told = registry.get("task", kind).build(kind)
    labels = _labels(folder, config) if told.has_classes else []
    if unusual := _unsupported_config(told.single_label_kind is not None, task, config, labels):
        warnings.append(f"{folder} answers as a {task.name} with {', '.join(unusual)}, for which there is no task "
                        "here; its head is left aside.")
        return None
    if told.single_label_kind is not None and len(labels) == 1:
        kind, labels = told.single_label_kind, []
    heads = task.heads(DEFAULT_TASK, len(labels) or 1, _dropout(task, config, family))
    if task.pooling is not None and (place := POOLINGS.get(str(config.get(task.pooling)))) is not None:
        head = heads[DEFAULT_TASK]
        assert isinstance(head, SentenceHead)
        heads[DEFAULT_TASK] = replace(head, place=place)
    usual = recipe(family.recipe).settings.corpus
    return TaskConfig(DEFAULT_TASK, kind, tuple(labels), heads, usual.single, usual.pair, usual.sequence_length, (),
                parse_task_options(kind, registry.get("task", kind).build(kind).default_options(labels)
                          | ({"stack": task.stack} if family.is_encoder_decoder else {})))


def with_recipe_templates(task_config: TaskConfig, recipe: Recipe, tokenizer: Tokenizer | None) -> TaskConfig:
    """The same for a model of this recipe: texts as long as it reads, between the tokens that it knows."""
    corpus = recipe.settings.corpus
    single, pair = input_templates(corpus, tokenizer)
    return replace(task_config, single=single, pair=pair, longest=corpus.sequence_length)


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


def _unsupported_config(whole_text: bool, task: HFTaskClass, config: Config, labels: list[str]) -> list[str]:
    """What config.json says that no task here has; `whole`: the class judges whole texts."""
    needed: Mapping[str, Any] = task.required_config
    if whole_text and (config.get("problem_type") == MULTI_LABEL or len(labels) > 1):
        needed = {**needed, "problem_type": "single_label_classification"}
    return [f"{key} = {config[key]}" for key, value in needed.items() if config.get(key) not in (None, value)]


def _dropout(task: HFTaskClass, config: Config, family: Family) -> float:
    stated = config.get(task.dropout) if task.dropout is not None else None
    if stated is None:
        stated = family.with_defaults(config)[task.default_dropout] if isinstance(task.default_dropout,
                                                                                  str) else task.default_dropout
    return float(stated)

