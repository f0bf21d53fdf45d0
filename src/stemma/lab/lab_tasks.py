"""The tasks of an experiment: every model is fine-tuned on them, those of text to text too, each in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stemma import plugins, registry
from stemma.lab.experiment import LabTask, Score
from stemma.stored import read_lines as stored_lines
from stemma.tasks import seq2seq
from stemma.tasks.data.datasets import kind_of
from stemma.tasks.facts import Facts, HeadFacts, WritingFacts
from stemma.tasks.kinds import head_task
from stemma.tasks.kinds.seq2seq import KIND as WRITTEN
from stemma.tasks.learning import read_lines
from stemma.tasks.metrics import Metric, metrics_of
from stemma.tasks.mixture import one_task
from stemma.tasks.prepare import Task, finetune
from stemma.training.run import read_run

RIGHT = ("accuracy", "exact_match")  # metrics that are the share of examples answered right, example by example


def lab_kind(name: str) -> str:
    """The kind of a task by its own name or its data set's; refuses what is no task."""
    return WRITTEN if name == WRITTEN else kind_of(name)


def task_metrics(task: LabTask) -> dict[str, Metric]:
    return dict(metrics_of(lab_kind(task.name)))


def task_code(task: LabTask) -> dict[str, str]:
    """The plug-in that the kind of a task comes from: what was learnt with another is another result."""
    return plugins.used_by([registry.get("task", lab_kind(task.name))])


def finetune_on(task: LabTask, start: Path, run: Path, **options: Any) -> dict[str, Any]:
    """`options` are those that all fine-tunes share."""
    columns, files = dict(task.columns), {"train": task.train, "dev": task.dev}
    if task.also:
        files["test"] = task.also
    if lab_kind(task.name) == WRITTEN:
        named = {"columns": f"{columns.get('source', 'source')},{columns.get('target', 'target')}"} if columns else {}
        return seq2seq.finetune(start, one_task({name: [file] for name, file in files.items()}, **named), run,
                                **options)
    return finetune(Task(task.name, files, columns or None), start, run, **options)


def steps_of(run: Path, epochs: float) -> float:
    """How many steps a fine-tune takes that has been begun in this folder."""
    plan = read_run(run)[1]
    if Facts.of(plan).kind == WRITTEN:
        return epochs * WritingFacts.of(plan).steps_in_epoch
    examples = sum(1 for _ in (run / "train.jsonl").open(encoding="utf-8"))
    return epochs * -(-examples // HeadFacts.of(plan).batch_size)


def task_scores(run: Path, result: dict[str, Any]) -> dict[str, Score]:
    """The metrics of a fine-tune on its dev set; of those that count right answers, example by example."""
    plan = read_run(run)[1]
    metrics = result["metrics"]["dev"]
    lines = stored_lines(run / "dev.jsonl", f"delete {run}: the task is learnt again.")
    if Facts.of(plan).kind == WRITTEN:
        hits = tuple((100.0 * (line["text"].strip() in [one.strip() for one in line["references"]]), 1.0)
                     for line in lines)
        return {name: Score(float(metrics[name]), hits if name == "exact_match" else ())
                for name in metrics_of(WRITTEN) if name in metrics}
    card = next(iter(HeadFacts.of(plan).read_cards().values()))
    kind, found = head_task(card.kind), {}
    for name in card.metrics:
        parts: tuple[tuple[float, float], ...] = ()
        if name in RIGHT and kind.one_by_one:
            gold = [kind.gold(example) for example in read_lines(run, "dev", card)]
            said = [line["prediction"][kind.answer] for line in lines]
            parts = tuple((metrics_of(card.kind)[name].scale * (a == b), 1.0) for a, b in zip(gold, said, strict=True))
        found[name] = Score(float(metrics[name]), parts)
    return found
