"""What is asked of the lab: some recipes, the same text, the same seeds, the same budget, the same questions after it.

An experiment is plain data. It stands in `lab.json` before anything is trained, so that whoever opens the folder, now
or later, here or on another machine, can work on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stemma.atomic_files import make_folder
from stemma.checksummed_files import read_verified_object, verify_file, write_file, write_object
from stemma.device import AUTO, requested_device
from stemma.errors import UserError
from stemma.json_files import explain_damage
from stemma.recipe_loading import Recipe, recipe
from stemma.training.run_folder import TextReadingOptions

FILE, RECIPES = "lab.json", "recipes"
VERSION = 1
RANDOM = "random"  # the role of a variant that is not pre-trained


@dataclass(frozen=True)
class Variant:
    """One recipe of an experiment, resolved, under a name of its own."""

    name: str  # "bert@tiny", or of an ablation "bert@tiny + tokenizer", "roberta@tiny - tokenizer"
    recipe: Recipe
    # recipe, or of an ablation: parent, child, plus (parent with a change), minus (child without); or random: every
    # fine-tune begins with random weights, drawn by its own seed
    role: str = "recipe"
    change: str | None = None  # the group of changes that plus and minus are about
    run: str | None = None  # where its pre-training lies, in an experiment of one seed; None: in its cell

    @property
    def pretrained(self) -> bool:
        return self.role != RANDOM


@dataclass(frozen=True)
class DownstreamTask:
    """A task on which every model is fine-tuned, as `stemma finetune` takes it."""

    name: str  # classify, pair, ... or a data set's name
    train: str
    dev: str
    epochs: float = 3.0
    columns: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None  # of the fine-tuning; None: the cell's
    also: str | None = None  # examples that are scored at the end, besides those that the measures are taken from
    changes: tuple[str, ...] = ()  # typed for every model; what they leave open, its recipe says


@dataclass(frozen=True)
class ComputeBudget:
    """What every cell may use: one of three measures; the other two are reported beside it."""

    unit: str  # tokens, flops or minutes
    amount: float

    def describe(self) -> str:
        return f"{self.amount:,.6g} {'FLOPs' if self.unit == 'flops' else self.unit}"


@dataclass(frozen=True)
class MetricInfo:
    """What a number is."""

    key: str  # pseudo_bits_per_byte, bits_per_byte, validation_loss, or TASK.METRIC
    title: str
    unit: str
    higher: bool  # is better
    about: str  # in one sentence
    per_token: bool = False  # means nothing across tokenizers
    margin: float | None = None  # a difference that would not matter; None: nobody has said what that is


@dataclass(frozen=True)
class Score:
    """A cell's number. Where it is a ratio of sums over documents or examples, its parts are kept: (above, below)."""

    value: float
    parts: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Experiment:
    kind: str  # compare, ablate or claim
    title: str
    variants: tuple[Variant, ...]
    allowance: ComputeBudget
    seeds: tuple[int, ...]
    corpus: str | None  # a corpus folder that all share
    text: tuple[str, ...]  # or raw text, which each reads through its own tokenizer
    reading: TextReadingOptions = field(default_factory=TextReadingOptions)
    tasks: tuple[DownstreamTask, ...] = ()
    measure: str | None = None  # the one that decides; None: the first task's metric, or else what suits the recipes
    command: str = ""  # to do it again
    details: Mapping[str, Any] = field(default_factory=dict)  # of an ablation or a claim
    margin: float | None = None  # of the deciding measure: smaller differences do not matter; None: its own
    device: str = field(default_factory=lambda: requested_device() or AUTO)  # on which its cells are trained
    version: int = VERSION

    def write(self, folder: Path) -> None:
        """Into an existing folder; the recipes lie beside it, each of which can be run by itself."""
        make_folder(folder / RECIPES)
        listed = []
        for number, one in enumerate(self.variants):
            place = f"{RECIPES}/{number:03d}.toml"
            write_file(folder / place, one.recipe.to_toml())
            listed.append({"name": one.name, "role": one.role, "change": one.change, "recipe": place, "run": one.run})
        plain = asdict(replace(self, variants=())) | {"variants": listed}
        write_object(folder / FILE, plain)

    @classmethod
    def read(cls, folder: Path) -> Experiment:
        file = folder / FILE
        if not file.is_file():
            raise UserError(f"{folder} is no folder of the lab: it has no {FILE}; give the folder that "
                            "`stemma compare` or `stemma ablate` made.")
        advice = "bring it back, or delete it and give the command that made the lab again: finished cells are kept."
        stored = read_verified_object(file, advice)
        if (version := stored.get("version", VERSION)) != VERSION:
            raise UserError(f"{folder} was made by another version of the lab ({version}, this one is {VERSION}), and "
                            "its numbers cannot be mixed with new ones; choose another --out.")
        with explain_damage(file, advice):
            for one in stored["variants"]:
                verify_file(folder / one["recipe"],
                            f"delete {file} and give the command that made the lab again; to try "
                                               "another recipe, give it to `stemma compare`.")
            variants = tuple(Variant(one["name"], recipe(folder / one["recipe"], stored=True), one["role"],
                                     one["change"], one.get("run")) for one in stored["variants"])
            return cls(**{"device": AUTO} | stored | {
                "variants": variants, "allowance": ComputeBudget(**stored["allowance"]),
                "seeds": tuple(stored["seeds"]),
                "text": tuple(stored["text"]), "reading": TextReadingOptions(**stored["reading"]),
                "tasks": tuple(DownstreamTask(**one | {"changes": tuple(one.get("changes", ()))})
                               for one in stored["tasks"])})
