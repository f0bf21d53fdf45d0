"""The tasks of an experiment: every model is fine-tuned on them, those of text to text too, each in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stemma import plugins, registry
from stemma.checksummed_files import read_verified_lines as stored_lines
from stemma.lab.experiment import DownstreamTask, Score
from stemma.tasks.datasets import task_kind_of
from stemma.tasks.kinds import head_task
from stemma.tasks.kinds.seq2seq import KIND as WRITTEN
from stemma.tasks.metrics import Metric, metrics_for
from stemma.tasks.runs import seq2seq
from stemma.tasks.runs.finetune import TaskArguments, finetune
from stemma.tasks.runs.finetune_run import read_split
from stemma.tasks.runs.finetune_spec import FinetuneSpec, HeadFinetuneSpec, Seq2SeqFinetuneSpec
from stemma.tasks.runs.seq2seq_data import data_from_cli
from stemma.training.run_folder import read_run

PER_EXAMPLE_METRICS = ("accuracy", "exact_match")  # metrics that are the share of examples answered right, example by
#                                                    example


def resolve_task_kind(name: str) -> str:
    """The kind of a task by its own name or its data set's; refuses what is no task."""
    return WRITTEN if name == WRITTEN else task_kind_of(name)


def task_metrics(task: DownstreamTask) -> dict[str, Metric]:
    return dict(metrics_for(resolve_task_kind(task.name)))


def plugin_code(task: DownstreamTask) -> dict[str, str]:
    """The plug-in that the kind of a task comes from: what was learnt with another is another result."""
    return plugins.plugins_of([registry.get("task", resolve_task_kind(task.name))])


def finetune_on(task: DownstreamTask, start: Path, run: Path, **options: Any) -> dict[str, Any]:
    """`options` are those that all fine-tunes share."""
    columns, files = dict(task.columns), {"train": task.train, "dev": task.dev}
    if task.also:
        files["test"] = task.also
    if resolve_task_kind(task.name) == WRITTEN:
        named = {"columns": f"{columns.get('source', 'source')},{columns.get('target', 'target')}"} if columns else {}
        return seq2seq.finetune_seq2seq(start, data_from_cli({name: [file] for name, file in files.items()}, **named),
                                        run,
                                **options)
    return finetune(TaskArguments(task.name, files, columns or None), start, run, **options)


def num_steps(run: Path, epochs: float) -> float:
    """How many steps a fine-tune takes that has been begun in this folder."""
    plan = read_run(run)[1]
    if FinetuneSpec.from_run_config(plan).kind == WRITTEN:
        return epochs * Seq2SeqFinetuneSpec.from_run_config(plan).steps_in_epoch
    examples = sum(1 for _ in (run / "train.jsonl").open(encoding="utf-8"))
    return epochs * -(-examples // HeadFinetuneSpec.from_run_config(plan).batch_size)


def task_scores(run: Path, result: dict[str, Any]) -> dict[str, Score]:
    """The metrics of a fine-tune on its dev set; of those that count right answers, example by example."""
    plan = read_run(run)[1]
    metrics = result["metrics"]["dev"]
    lines = stored_lines(run / "dev.jsonl", f"delete {run}: the task is learnt again.")
    if FinetuneSpec.from_run_config(plan).kind == WRITTEN:
        hits = tuple((100.0 * (line["text"].strip() in [one.strip() for one in line["references"]]), 1.0)
                     for line in lines)
        return {name: Score(float(metrics[name]), hits if name == "exact_match" else ())
                for name in metrics_for(WRITTEN) if name in metrics}
    card = next(iter(HeadFinetuneSpec.from_run_config(plan).parse_task_configs().values()))
    kind, found = head_task(card.kind), {}
    for name in card.metrics:
        parts: tuple[tuple[float, float], ...] = ()
        if name in PER_EXAMPLE_METRICS and kind.per_example:
            gold = [kind.gold(example) for example in read_split(run, "dev", card)]
            said = [line["prediction"][kind.prediction_key] for line in lines]
            parts = tuple((metrics_for(card.kind)[name].scale * (a == b), 1.0) for a, b in zip(gold, said, strict=True))
        found[name] = Score(float(metrics[name]), parts)
    return found
