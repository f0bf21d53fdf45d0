"""The task configs of a fine-tuned model: what inference needs, stored in `tasks.json`.

Hugging Face stores the labels of one task in config.json. A model here may have several tasks, and each needs more:
input templates, maximum length, heads.
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
DEFAULT_TASK = "task"  # the name of the task of a single-task model


@dataclass(frozen=True)
class TaskConfig:
    name: str  # of the task and of its head
    kind: str  # a registered kind of task
    labels: tuple[str, ...]  # the classes in order; empty if the task has none
    heads: Mapping[str, HeadSpec]
    single: str  # the template of one text
    pair: str  # and of two texts
    longest: int  # maximum sequence length
    metrics: tuple[str, ...]  # the first one selects checkpoints
    values: TaskOptions  # the options of its kind
    more: tuple[str, ...] = ()  # the templates of three texts, of four, ..., if the kind has as many

    def to_json(self) -> dict[str, Any]:
        specs = {name: {"kind": type(spec).__name__, **vars(spec)} for name, spec in self.heads.items()}
        stored = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "more" or self.more}
        return {**stored, "heads": specs, "values": self.values.to_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TaskConfig:
        specs = {name: registry.get("head", spec["kind"]).build(**{key: value for key, value in spec.items()
                                                                   if key != "kind"})
                 for name, spec in stored["heads"].items()}
        values = {item.name: stored[item.name] for item in fields(cls) if item.name != "more"}
        lists = {key: tuple(stored.get(key, ()) if key == "more" else stored[key])
                 for key in ("labels", "metrics", "more")}
        options = parse_task_options(stored["kind"], stored["values"])
        return cls(**{**values, **lists, "heads": specs, "values": options})


def registered_parts(task_configs: Iterable[TaskConfig]) -> list[registry.RegistryEntry]:
    """The registered parts that these tasks use: their kinds and their heads."""
    parts = []
    for task_config in task_configs:
        heads = (registry.find("head", type(spec).__name__) for spec in task_config.heads.values())
        parts += [registry.get("task", task_config.kind), *(head for head in heads if head is not None)]
    return parts


def task_stack(task_config: TaskConfig) -> str:
    """The stack whose output the head reads."""
    return task_config.values.stack or ENCODER


def write_task_configs(folder: Path, task_configs: Mapping[str, TaskConfig]) -> None:
    stored = {name: task_config.to_json() for name, task_config in task_configs.items()}
    (folder / FILE).write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_task_configs(folder: Path) -> dict[str, TaskConfig]:
    """The task configs of a model folder; none if it is not fine-tuned."""
    file = folder / FILE
    if not file.is_file():
        return {}
    advice = "save the model again from its run."
    with explain_damage(file, advice):
        return {name: TaskConfig.from_json(stored) for name, stored in read_object(file, advice).items()}
