"""The downstream tasks of an experiment: fine-tuning of every model on them, and the scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stemma import plugins, registry
from stemma.checksummed_files import read_verified_lines as stored_lines
from stemma.lab.experiment import DownstreamTask, Score, Variant
from stemma.notes import silenced
from stemma.tasks.datasets import task_kind_of
from stemma.tasks.kinds import head_task
from stemma.tasks.kinds.seq2seq import KIND as SEQ2SEQ
from stemma.tasks.metrics import Metric, metrics_for
from stemma.tasks.runs import seq2seq
from stemma.tasks.runs.finetune import BATCH_SIZE, TaskArguments, finetune, read_splits
from stemma.tasks.runs.finetune_defaults import epochs_for_min_steps
from stemma.tasks.runs.finetune_run import read_split
from stemma.tasks.runs.finetune_spec import FinetuneSpec, HeadFinetuneSpec, Seq2SeqFinetuneSpec
from stemma.tasks.runs.seq2seq_data import data_from_cli
from stemma.text.parallel import read_pairs
from stemma.training.run_folder import TextReadingOptions, read_run

MIN_EPOCHS = 3.0
PER_EXAMPLE_METRICS = ("accuracy", "exact_match")  # metrics that are the fraction of correct examples


def resolve_task_kind(name: str) -> str:
    """The kind of a task, from its name or a data set's; raises UserError for anything else."""
    return SEQ2SEQ if name == SEQ2SEQ else task_kind_of(name)


def no_finetuning_reason(variant: Variant) -> str | None:
    """Why a variant is not fine-tuned; None if it is."""
    if not variant.recipe.settings.network.depth.counts:
        return None
    return f"{variant.name} is not fine-tuned: it is a table of counts, which has no weights."


def default_epochs(num_examples: int, batch_size: int) -> float:
    """The epochs of every model without --epochs: as after a brief pre-training, but the same for all recipes. It
    depends on the data alone, so a recipe that joins the experiment does not change the others."""
    return epochs_for_min_steps(MIN_EPOCHS, math.ceil(num_examples / batch_size))


def read_task_examples(name: str, train: str, dev: str) -> tuple[int, int]:
    """Check a task's examples before anything is trained. Returns the number of training examples and how many are in
    a batch, at most."""
    with silenced():  # the fine-tunings report it
        if resolve_task_kind(name) == SEQ2SEQ:
            data = data_from_cli({"train": [train], "dev": [dev]}).tasks[0]
            pairs, _ = (sum(1 for _ in read_pairs(sources)) for sources in (data.train, data.dev))
            return pairs, seq2seq.ROWS
        examples = read_splits(TaskArguments(name, {"train": train, "dev": dev}), TextReadingOptions())
        return len(examples["train"]), BATCH_SIZE


def task_metrics(task: DownstreamTask) -> dict[str, Metric]:
    return dict(metrics_for(resolve_task_kind(task.name)))


def plugin_code(task: DownstreamTask) -> dict[str, str]:
    """The plug-in of a task kind, for the digest: other code gives another result."""
    return plugins.plugins_of([registry.get("task", resolve_task_kind(task.name))])


def finetune_on(task: DownstreamTask, start: Path, run: Path, **options: Any) -> dict[str, Any]:
    """Fine-tune a model on a task; `options` are common to all fine-tunes."""
    columns, files = dict(task.columns), {"train": task.train, "dev": task.dev}
    if task.also:
        files["test"] = task.also
    if resolve_task_kind(task.name) == SEQ2SEQ:
        names = {"columns": f"{columns.get('source', 'source')},{columns.get('target', 'target')}"} if columns else {}
        data = data_from_cli({split: [file] for split, file in files.items()}, **names)
        return seq2seq.finetune_seq2seq(start, data, run, **options)
    # the lab has one linear baseline for all models
    return finetune(TaskArguments(task.name, files, columns or None), start, run, baseline=False, **options)


def num_steps(run: Path, epochs: float) -> float:
    """The number of steps of the fine-tune in this folder."""
    plan = read_run(run)[1]
    if FinetuneSpec.from_run_config(plan).kind == SEQ2SEQ:
        return epochs * Seq2SeqFinetuneSpec.from_run_config(plan).steps_in_epoch
    examples = sum(1 for _ in (run / "train.jsonl").open(encoding="utf-8"))
    return epochs * -(-examples // HeadFinetuneSpec.from_run_config(plan).batch_size)


def task_scores(run: Path, result: dict[str, Any]) -> dict[str, Score]:
    """The dev metrics of a fine-tune; for metrics that count correct answers also the terms of each example."""
    plan = read_run(run)[1]
    metrics = result["metrics"]["dev"]
    lines = stored_lines(run / "dev.jsonl", f"delete {run}: the task is learnt again.")
    if FinetuneSpec.from_run_config(plan).kind == SEQ2SEQ:
        correct = tuple((100.0 * (line["text"].strip() in [reference.strip() for reference in line["references"]]), 1.0)
                        for line in lines)
        return {name: Score(float(metrics[name]), correct if name == "exact_match" else ())
                for name in metrics_for(SEQ2SEQ) if name in metrics}
    config = next(iter(HeadFinetuneSpec.from_run_config(plan).parse_task_configs().values()))
    kind, scores = head_task(config.kind), {}
    for name in config.metrics:
        terms: tuple[tuple[float, float], ...] = ()
        if name in PER_EXAMPLE_METRICS and kind.per_example:
            gold = [kind.gold(example) for example in read_split(run, "dev", config)]
            predicted = [line["prediction"][kind.prediction_key] for line in lines]
            scale = metrics_for(config.kind)[name].scale
            terms = tuple((scale * (a == b), 1.0) for a, b in zip(gold, predicted, strict=True))
        scores[name] = Score(float(metrics[name]), terms)
    return scores
