"""What a fine-tuned model answers, as plain data beside its weights: one card a task.

Hugging Face keeps the labels of one task in config.json. A model here may answer several tasks and must know more: how
long its inputs were, by which templates they were laid out, which head answers. All of it stands in `tasks.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stemma import registry
from stemma.corpus.seq2seq_rows import ENCODER
from stemma.json_files import explain_damage, read_object
from stemma.network.heads import HeadSpec
from stemma.schema.task_options import TaskOptions, parse_task_options

FILE = "tasks.json"
DEFAULT_TASK = "task"  # the name of a task that is the only one of its model


@dataclass(frozen=True)
class TaskConfig:
    name: str  # of the task, and of the head that answers it
    kind: str  # a registered kind of task
    labels: tuple[str, ...]  # the classes in order; empty where answers are no classes
    heads: Mapping[str, HeadSpec]
    single: str  # the templates by which inputs are laid out
    pair: str
    longest: int  # places of a row
    metrics: tuple[str, ...]  # the first one decides
    values: TaskOptions  # what else its learner must know: the settings of its kind
    more: tuple[str, ...] = ()  # templates of three texts, of four, ..., where its kind has as many

    def to_json(self) -> dict[str, Any]:
        specs = {name: {"kind": type(spec).__name__, **vars(spec)} for name, spec in self.heads.items()}
        stored = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "more" or self.more}
        return {**stored, "heads": specs, "values": self.values.to_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TaskConfig:
        specs = {name: registry.get("head", spec["kind"]).build(**{key: value for key, value in spec.items()
                                                                   if key != "kind"})
                 for name, spec in stored["heads"].items()}
        known = {item.name: stored[item.name] for item in fields(cls) if item.name != "more"}
        lists = {key: tuple(stored.get(key, ()) if key == "more" else stored[key])
                 for key in ("labels", "metrics", "more")}
        return cls(**{**known, **lists, "heads": specs, "values": parse_task_options(stored["kind"], stored["values"])})


def registered_parts(task_configs: Iterable[TaskConfig]) -> list[registry.RegistryEntry]:
    """The registered parts that these tasks need: their kinds, and the heads that answer."""
    parts = []
    for card in task_configs:
        heads = (registry.find("head", type(spec).__name__) for spec in card.heads.values())
        parts += [registry.get("task", card.kind), *(head for head in heads if head is not None)]
    return parts


def task_stack(task_config: TaskConfig) -> str:
    """The stack whose output the head reads."""
    return task_config.values.stack or ENCODER


def write_task_configs(folder: Path, task_configs: Mapping[str, TaskConfig]) -> None:
    stored = {name: card.to_json() for name, card in task_configs.items()}
    (folder / FILE).write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_task_configs(folder: Path) -> dict[str, TaskConfig]:
    """The cards of a model; none where it was never fine-tuned."""
    file = folder / FILE
    if not file.is_file():
        return {}
    advice = "save the model again from its run."
    with explain_damage(file, advice):
        return {name: TaskConfig.from_json(card) for name, card in read_object(file, advice).items()}
