"""The task config of a checkpoint that was fine-tuned elsewhere, inferred from its config.json."""

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

MULTI_LABEL = "multi_label_classification"  # several labels may apply at once; no kind of task here does that


def infer_task_config(folder: Path, config: Config, family: Family, warnings: list[str]) -> TaskConfig | None:
    """The task of the class in config.json; None if it has no task class, or one that no kind of task supports. Its
    config.json does not say whether inputs are texts or pairs of texts; kind "classify" serves both."""
    classes = config.get("architectures") or ()
    kind, task = next(((kind, task) for kind, task in family.task_classes.items() if task.name in classes),
                      (None, None))
    if kind is None or task is None:
        return None
    task_kind = registry.get("task", kind).build(kind)
    labels = _labels(folder, config) if task_kind.has_classes else []
    if unsupported := _unsupported_config(task_kind.single_label_kind is not None, task, config, labels):
        warnings.append(f"{folder} answers as a {task.name} with {', '.join(unsupported)}, for which there is no task "
                        "here; its head is not loaded.")
        return None
    if task_kind.single_label_kind is not None and len(labels) == 1:
        kind, labels = task_kind.single_label_kind, []
    heads = task.heads(DEFAULT_TASK, len(labels) or 1, _dropout(task, config, family))
    if task.pooling is not None and (pooling := POOLINGS.get(str(config.get(task.pooling)))) is not None:
        head = heads[DEFAULT_TASK]
        assert isinstance(head, SentenceHead)
        heads[DEFAULT_TASK] = replace(head, place=pooling)
    corpus = recipe(family.recipe).settings.corpus
    options = registry.get("task", kind).build(kind).default_options(labels)
    options |= {"stack": task.stack} if family.is_encoder_decoder else {}
    return TaskConfig(DEFAULT_TASK, kind, tuple(labels), heads, corpus.single, corpus.pair, corpus.sequence_length, (),
                      parse_task_options(kind, options))


def with_recipe_templates(task_config: TaskConfig, recipe: Recipe, tokenizer: Tokenizer | None) -> TaskConfig:
    """The task config with the templates and the sequence length of this recipe."""
    corpus = recipe.settings.corpus
    single, pair = input_templates(corpus, tokenizer)
    return replace(task_config, single=single, pair=pair, longest=corpus.sequence_length)


def _labels(folder: Path, config: Config) -> list[str]:
    """The labels in order; without names, LABEL_0, LABEL_1, ... as in transformers."""
    id2label = config.get("id2label")
    if id2label is None:
        return [f"LABEL_{index}" for index in range(config.get("num_labels") or 2)]
    try:
        return [str(id2label[key]) for key in sorted(id2label, key=int)]
    except (TypeError, ValueError) as error:
        raise CorruptFileError(f"{folder}/config.json has an id2label that does not number its labels ({error}); copy "
                               "it again.") from error


def _unsupported_config(whole_text: bool, task: HFTaskClass, config: Config, labels: list[str]) -> list[str]:
    """The settings in config.json that no kind of task supports; `whole_text`: the class classifies whole texts."""
    required: Mapping[str, Any] = task.required_config
    if whole_text and (config.get("problem_type") == MULTI_LABEL or len(labels) > 1):
        required = {**required, "problem_type": "single_label_classification"}
    return [f"{key} = {config[key]}" for key, value in required.items() if config.get(key) not in (None, value)]


def _dropout(task: HFTaskClass, config: Config, family: Family) -> float:
    stated = config.get(task.dropout) if task.dropout is not None else None
    if stated is None:
        default = task.default_dropout
        stated = family.with_defaults(config)[default] if isinstance(default, str) else default
    return float(stated)

