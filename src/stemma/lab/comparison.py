"""`compare` and `ablate`: from what is asked to an experiment, its variants, budget and tasks, and to its results."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stemma.device import accepts_device
from stemma.errors import UserError
from stemma.lab.ablation import ablation_variants
from stemma.lab.downstream_tasks import resolve_task_kind
from stemma.lab.experiment import ComputeBudget, DownstreamTask, Experiment, Variant
from stemma.lab.results import check_metric
from stemma.lab.run_experiment import run_experiment
from stemma.recipe_loading import recipe
from stemma.training.run_folder import TextReadingOptions, resolve_corpus_argument

logger = logging.getLogger(__name__)


@accepts_device
def compare(recipes: Sequence[str], corpus: str | Sequence[str], out: str | Path, *, sizes: Sequence[str] = (),
            changes: Sequence[str] = (), command: str = "", processes: int = 1, dry_run: bool = False,
            overwrite: bool = False, device: str | None = None, show: bool = False, **asked: Any) -> dict[str, Any]:
    """Train recipes on the same text, seeds and budget, and say which differences are more than noise: what `stemma
    compare --json` prints. `asked` are the other options of the verb: tokens, flops or minutes, seeds, task, train,
    dev, epochs, measure, margin, reading.

        stemma.compare(["bert@tiny", "roberta@tiny"], "notes.txt", "lab", tokens=1_000_000)["differences"]
    """
    variants = compared_variants(recipes, changes, sizes)
    experiment = Experiment("compare", f"{', '.join(recipes)}: which learns more?", variants,
                            **_experiment_options(corpus, **asked), details={"sizes": list(sizes)} if sizes else {},
                            command=command)
    return _run(experiment, Path(out), processes, dry_run, overwrite, show)


@accepts_device
def ablate(child: str, corpus: str | Sequence[str], out: str | Path, *, against: str | None = None,
           group: Sequence[Sequence[str]] = (), apart: Sequence[str] = (), changes: Sequence[str] = (),
           command: str = "", processes: int = 1, dry_run: bool = False, overwrite: bool = False,
           device: str | None = None, show: bool = False,
           **asked: Any) -> dict[str, Any]:
    """Which change was it? A recipe's changes, each added to its parent and each taken from the recipe: what `stemma
    ablate --json` prints. `asked` as for `compare`.

        stemma.ablate("roberta@tiny", "notes.txt", "lab", tokens=1_000_000)["differences"]
    """
    name, _, size = child.partition("@") if not child.endswith(".toml") else (child, "", "")
    paths = [corpus] if isinstance(corpus, str) else list(corpus)
    variants, details = ablation_variants(against, name, size or None, changes, group, apart,
                                 own_corpus=resolve_corpus_argument(paths)[0] is None, tasks=bool(asked.get("task")))
    title = f"{variants[1].name} against {variants[0].name}: which change was it?"
    experiment = Experiment("ablate", title, variants, **_experiment_options(corpus, **asked), details=details,
                            command=command)
    return _run(experiment, Path(out), processes, dry_run, overwrite, show)


def _experiment_options(corpus: str | Sequence[str], *, tokens: int | None = None, flops: float | None = None,
            minutes: float | None = None, seeds: int = 3, task: Sequence[str] = (), train: Sequence[str] = (),
            dev: Sequence[str] = (), epochs: float = 3.0, measure: str | None = None, margin: float | None = None,
            reading: TextReadingOptions = TextReadingOptions()) -> dict[str, Any]:
    """What compare and ablate have in common, as an experiment takes it."""
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"--margin must be a number greater than 0, not {margin:g}.")
    folder, text = resolve_corpus_argument([corpus] if isinstance(corpus, str) else list(corpus))
    if text == ["-"]:
        raise UserError("the lab reads its text more than once, which standard input does not allow; give a file.")
    return {"allowance": parse_budget(tokens, flops, minutes), "seeds": tuple(range(seeds)), "corpus": folder,
            "text": tuple(text), "reading": reading, "tasks": parse_tasks(task, train, dev, epochs), "measure": measure,
            "margin": margin}


def _run(experiment: Experiment, out: Path, processes: int, dry_run: bool, overwrite: bool,
         show: bool) -> dict[str, Any]:
    check_metric(experiment)
    if len(experiment.seeds) == 1:
        logger.warning("one seed shows no spread: differences are told, and no interval is claimed.")
    if processes > 1 and experiment.allowance.unit == "minutes":
        raise UserError("--processes and --minutes exclude each other: whoever shares the machine shares its time; "
                        "leave --processes out, or give --tokens or --flops.")
    return run_experiment(experiment, out, processes=processes, dry_run=dry_run, overwrite=overwrite, show=show)


def compared_variants(names: Sequence[str], changes: Sequence[str], sizes: Sequence[str]) -> tuple[Variant, ...]:
    """Every recipe, at every size if there are several, each with the same changes."""
    if sizes and (sized := [name for name in names if "@" in name]):
        raise UserError(f"{sized[0]} says its size, and --sizes says others; leave one of them out.")
    named = [f"{name}@{size}" for name in names for size in sizes] if sizes else list(names)
    found = [recipe(name, changes) for name in named]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UserError(f"{twice[0]} is given twice; give each recipe once.")
    if len(found) < 2:
        raise UserError("a comparison takes at least two recipes; `stemma tree` lists all of them.")
    return tuple(Variant(name, one) for name, one in zip(named, found, strict=True))


def parse_budget(tokens: int | None, flops: float | None, minutes: float | None) -> ComputeBudget:
    given = [(unit, amount) for unit, amount in (("tokens", tokens), ("flops", flops), ("minutes", minutes))
             if amount is not None]
    if len(given) != 1:
        told = f"{' and '.join('--' + unit for unit, _ in given)} exclude each other" if given else \
            "a fair comparison needs a budget that is the same for all"
        raise UserError(f"{told}; give one of --tokens, --flops and --minutes.")
    unit, amount = given[0]
    if not 0 < amount < math.inf:
        raise UserError(f"--{unit} must be a number greater than 0, not {amount:g}.")
    return ComputeBudget(unit, amount)


def parse_tasks(names: Sequence[str], train: Sequence[str], dev: Sequence[str], epochs: float) -> tuple[DownstreamTask,
                                                                                                        ...]:
    if not len(names) == len(train) == len(dev):
        raise UserError(f"{len(names)} --task, {len(train)} --train and {len(dev)} --dev are given; every task has one "
                        "of each, in the same order.")
    for name in names:
        resolve_task_kind(name)  # refuses what is no task
    for file in (*train, *dev):
        if not Path(file).is_file():
            raise UserError(f"there is no file {file}; give the task's examples.")
    return tuple(DownstreamTask(name, str(Path(a).absolute()), str(Path(b).absolute()), epochs)
                 for name, a, b in zip(names, train, dev, strict=True))
