"""`compare` and `ablate`: build the experiment from the options of the command, run it, return its results."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.device import accepts_device
from stemma.errors import UserError, pluralize
from stemma.evaluation.minimal_pairs import read_pairs
from stemma.lab.ablation import ablation_variants
from stemma.lab.common_changes import with_common_changes
from stemma.lab.downstream_tasks import default_epochs, no_finetuning_reason, read_task_examples, resolve_task_kind
from stemma.lab.experiment import ComputeBudget, DownstreamTask, Experiment, Variant
from stemma.lab.results import check_metric
from stemma.lab.run_experiment import run_experiment
from stemma.recipe_loading import recipe
from stemma.tasks.runs.common import TrainingLength
from stemma.training.run_folder import TextReadingOptions, resolve_corpus_argument

logger = logging.getLogger(__name__)


@accepts_device
def compare(recipes: Sequence[str], corpus: str | Sequence[str], out: str | Path, *, sizes: Sequence[str] = (),
            changes: Sequence[str] = (), command: str = "", processes: int = 1, dry_run: bool = False,
            overwrite: bool = False, device: str | None = None, show: bool = False, **options: Any) -> dict[str, Any]:
    """Train recipes on the same text, seeds and budget, and report which differences are significant. Returns what
    `stemma compare --json` prints. `options` are the other options of the command: tokens, flops or minutes, seeds,
    task, train, dev, epochs, measure, margin, blimp, baseline, reading.

        stemma.compare(["bert@tiny", "roberta@tiny"], "notes.txt", "lab", tokens=1_000_000)["differences"]
    """
    _check_epochs(changes, options)
    variants, notes = compared_variants(recipes, changes, sizes)
    details = ({"sizes": list(sizes)} if sizes else {}) | ({"notes": notes} if notes else {})
    experiment = Experiment("compare", f"Comparison of {', '.join(recipes)}", variants,
                            **_experiment_options(corpus, **options), details=details, command=command)
    return _run(experiment, Path(out), processes, dry_run, overwrite, show)


@accepts_device
def ablate(child: str, corpus: str | Sequence[str], out: str | Path, *, against: str | None = None,
           group: Sequence[Sequence[str]] = (), apart: Sequence[str] = (), changes: Sequence[str] = (),
           command: str = "", processes: int = 1, dry_run: bool = False, overwrite: bool = False,
           device: str | None = None, show: bool = False, **options: Any) -> dict[str, Any]:
    """Measure each change of a recipe, added to its parent and removed from the recipe. Returns what `stemma ablate
    --json` prints. `options` are those of `compare`.

        stemma.ablate("roberta@tiny", "notes.txt", "lab", tokens=1_000_000)["differences"]
    """
    _check_epochs(changes, options)
    name, _, size = child.partition("@") if not child.endswith(".toml") else (child, "", "")
    paths = [corpus] if isinstance(corpus, str) else list(corpus)
    variants, details = ablation_variants(against, name, size or None, changes, group, apart,
                                          own_corpus=resolve_corpus_argument(paths)[0] is None,
                                          tasks=bool(options.get("task")))
    title = f"{variants[1].name} against {variants[0].name}: which change made the difference?"
    experiment = Experiment("ablate", title, variants, **_experiment_options(corpus, **options), details=details,
                            command=command)
    return _run(experiment, Path(out), processes, dry_run, overwrite, show)


def _experiment_options(corpus: str | Sequence[str], *, tokens: int | None = None, flops: float | None = None,
                        minutes: float | None = None, seeds: int = 3, task: Sequence[str] = (),
                        train: Sequence[str] = (), dev: Sequence[str] = (), epochs: float | None = None,
                        measure: str | None = None, margin: float | None = None, blimp: str | Path | None = None,
                        baseline: bool = True,
                        reading: TextReadingOptions = TextReadingOptions()) -> dict[str, Any]:
    """The fields of an experiment that compare and ablate have in common."""
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"--margin must be a number greater than 0, not {margin:g}.")
    folder, text = resolve_corpus_argument([corpus] if isinstance(corpus, str) else list(corpus))
    if text == ["-"]:
        raise UserError("the lab reads its text more than once, which standard input does not allow; give a file.")
    return {"allowance": parse_budget(tokens, flops, minutes), "seeds": tuple(range(seeds)), "corpus": folder,
            "text": tuple(text), "reading": reading, "tasks": parse_tasks(task, train, dev, epochs), "measure": measure,
            "margin": margin, "blimp": None if blimp is None else _pairs_folder(blimp), "baseline": baseline}


def _check_epochs(changes: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse a number of epochs that the tasks would not have."""
    for change in changes if options.get("task") else ():
        key, _, value = change.partition("=")
        if key.strip() == "finetuning.epochs":
            raise UserError(f"{change} has no effect: all models of an experiment are fine-tuned for the same number "
                            f"of epochs; give --epochs {value.strip()}.")


def _pairs_folder(path: str | Path) -> str:
    """The absolute path of a folder of minimal pairs, which is read once before anything is trained."""
    read_pairs(path)
    return str(Path(path).absolute())


def _run(experiment: Experiment, out: Path, processes: int, dry_run: bool, overwrite: bool,
         show: bool) -> dict[str, Any]:
    check_metric(experiment)
    if experiment.tasks and all(map(no_finetuning_reason, experiment.variants)):
        raise UserError("none of these recipes can be fine-tuned: they are tables of counts, which have no weights; "
                        "leave --task out, or add a network, such as gpt2@tiny.")
    if len(experiment.seeds) == 1:
        logger.warning("one seed gives no interval: differences are reported without a verdict.")
    if processes > 1 and experiment.allowance.unit == "minutes":
        raise UserError("--processes and --minutes exclude each other: parallel processes share the machine's time; "
                        "leave --processes out, or give --tokens or --flops.")
    return run_experiment(experiment, out, processes=processes, dry_run=dry_run, overwrite=overwrite, show=show)


def compared_variants(names: Sequence[str], changes: Sequence[str],
                      sizes: Sequence[str]) -> tuple[tuple[Variant, ...], list[str]]:
    """All recipes, at each of the sizes, with the same changes; and notes."""
    if sizes and (sized := [name for name in names if "@" in name]):
        raise UserError(f"{sized[0]} says its size, and --sizes says others; leave one of them out.")
    labels = [f"{name}@{size}" for name in names for size in sizes] if sizes else list(names)
    resolved = [recipe(label) for label in labels]
    if duplicates := sorted({label for label in labels if labels.count(label) > 1}):
        raise UserError(f"{duplicates[0]} is given twice; give each recipe once.")
    if len(resolved) < 2:
        raise UserError("a comparison takes at least two recipes; `stemma tree` lists all of them.")
    resolved, notes = with_common_changes(resolved, changes)
    return tuple(Variant(label, recipe) for label, recipe in zip(labels, resolved, strict=True)), notes


def parse_budget(tokens: int | None, flops: float | None, minutes: float | None) -> ComputeBudget:
    budgets = [(unit, amount) for unit, amount in (("tokens", tokens), ("flops", flops), ("minutes", minutes))
               if amount is not None]
    if len(budgets) != 1:
        problem = f"{' and '.join('--' + unit for unit, _ in budgets)} exclude each other" if budgets else \
            "a fair comparison needs a budget that is the same for all"
        raise UserError(f"{problem}; give one of --tokens, --flops and --minutes.")
    unit, amount = budgets[0]
    if not 0 < amount < math.inf:
        raise UserError(f"--{unit} must be a number greater than 0, not {amount:g}.")
    return ComputeBudget(unit, amount)


def parse_tasks(names: Sequence[str], train: Sequence[str], dev: Sequence[str],
                epochs: float | None = None) -> tuple[DownstreamTask, ...]:
    """The tasks, after a check of their examples. Without `epochs` the number follows from the training examples."""
    TrainingLength(epochs)
    if not len(names) == len(train) == len(dev):
        raise UserError(f"{len(names)} --task, {len(train)} --train and {len(dev)} --dev are given; every task has one "
                        "of each, in the same order.")
    for name in names:
        resolve_task_kind(name)  # raises for an unknown task
    for file in (*train, *dev):
        if not Path(file).is_file():
            raise UserError(f"there is no file {file}; give the task's examples.")
    tasks = []
    for name, *files in zip(names, train, dev, strict=True):
        train_file, dev_file = (str(Path(file).absolute()) for file in files)
        num_examples, batch_size = read_task_examples(name, train_file, dev_file)
        chosen = default_epochs(num_examples, batch_size) if epochs is None else epochs
        if epochs is None:
            logger.info(f"{name}: every model is fine-tuned for {pluralize(chosen, 'epoch')} of "
                        f"{pluralize(num_examples, 'example')}; --epochs sets another number.")
        tasks.append(DownstreamTask(name, train_file, dev_file, chosen))
    return tuple(tasks)
