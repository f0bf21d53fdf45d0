"""A run is a folder that is complete before the first step, so that a kill at any moment leaves something to resume.

`run.json` says what to do, `recipe.toml` says how. No torch is imported here: the folder stands before that slow import
has even begun.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stemma.errors import UserError
from stemma.files import folder_atomically, write_atomically
from stemma.lineage import Recipe, recipe
from stemma.training.budget import Budget

PLAN, RECIPE, RESULT, MODEL = "run.json", "recipe.toml", "result.json", "model"
STANDARD_INPUT = "text.txt"


@dataclass(frozen=True)
class Reading:
    """How raw text is read."""

    documents: str = "blank"
    field: str = "text"
    encoding: str = "utf-8"
    errors: str = "strict"


@dataclass(frozen=True)
class Plan:
    corpus: str | None  # a corpus folder,
    text: list[str]  # or raw text to make one from
    budget: Budget
    seed: int
    start: str | None = None  # --from
    reading: Reading = field(default_factory=Reading)
    fingerprint: str | None = None  # of the corpus, once it is known
    tensorboard: bool = False
    version: int = 1

    def write(self, folder: Path) -> None:
        write_atomically(folder / PLAN, json.dumps(asdict(self), indent=1))


def create_run(out: Path, chosen: Recipe, plan: Plan, overwrite: bool) -> None:
    """Make the run folder in one stroke; text from standard input is kept inside it."""
    with folder_atomically(out, overwrite, checksums=False) as place:
        if plan.text == ["-"]:
            with (place / STANDARD_INPUT).open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            plan = Plan(**{**plan.__dict__, "text": [str(out.resolve() / STANDARD_INPUT)]})
        plan.write(place)
        (place / RECIPE).write_text(chosen.to_toml())


def read_run(out: Path) -> tuple[Recipe, Plan]:
    if not (out / PLAN).is_file():
        hint = "it has no run.json" if out.is_dir() else "there is no such folder"
        raise UserError(f"{out} is not a run: {hint}; give the folder that `stemma pretrain ... --out` made.")
    try:
        stored = json.loads((out / PLAN).read_text())
        plan = Plan(**{**stored, "budget": Budget(**stored["budget"]), "reading": Reading(**stored["reading"])})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{out / PLAN} is damaged ({error}); start the run again with `stemma pretrain`.") from error
    return recipe(out / RECIPE), plan


def read_result(out: Path) -> dict[str, Any] | None:
    """What the run reported when it ended; None while it has not."""
    file = out / RESULT
    return json.loads(file.read_text()) if file.is_file() and (out / MODEL / "config.json").is_file() else None


def is_corpus(path: str | Path) -> bool:
    return (Path(path) / "manifest.json").is_file()


def locate(paths: Sequence[str]) -> tuple[str | None, list[str]]:
    """(corpus folder, []) or (None, absolute text paths)."""
    if len(paths) == 1 and is_corpus(paths[0]):
        return str(Path(paths[0]).resolve()), []
    absolute = ["-" if path == "-" else str(Path(path).absolute()) for path in paths]
    if "-" in absolute and len(absolute) > 1:
        raise UserError("`-` (standard input) cannot be mixed with files; give one or the other.")
    return None, absolute
