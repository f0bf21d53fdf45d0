"""From what is typed to what is compared: variants, budget and tasks of an experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stemma.errors import UserError
from stemma.lab.experiment import Allowance, LabTask, Variant
from stemma.lineage import recipe
from stemma.tasks.data.datasets import kind_of


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


def allowance_of(tokens: int | None, flops: float | None, minutes: float | None) -> Allowance:
    given = [(unit, amount) for unit, amount in (("tokens", tokens), ("flops", flops), ("minutes", minutes))
             if amount is not None]
    if len(given) != 1:
        told = f"{' and '.join('--' + unit for unit, _ in given)} exclude each other" if given else \
            "a fair comparison needs a budget that is the same for all"
        raise UserError(f"{told}; give one of --tokens, --flops and --minutes.")
    unit, amount = given[0]
    if not 0 < amount < math.inf:
        raise UserError(f"--{unit} must be a number greater than 0, not {amount:g}.")
    return Allowance(unit, amount)


def tasks_of(names: Sequence[str], train: Sequence[str], dev: Sequence[str], epochs: float) -> tuple[LabTask, ...]:
    if not len(names) == len(train) == len(dev):
        raise UserError(f"{len(names)} --task, {len(train)} --train and {len(dev)} --dev are given; every task has one "
                        "of each, in the same order.")
    for name in names:
        kind_of(name)  # refuses what is no task
    for file in (*train, *dev):
        if not Path(file).is_file():
            raise UserError(f"there is no file {file}; give the task's examples.")
    return tuple(LabTask(name, str(Path(a).absolute()), str(Path(b).absolute()), epochs)
                 for name, a, b in zip(names, train, dev, strict=True))
