"""An experiment: variants of recipes with the same text, seeds, budget and downstream tasks.

An experiment is plain data. It is written to `lab.json` before anything is trained, so any process that opens the
folder, now or later, here or on another machine, can work on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stemma.atomic_files import make_folder, sha256
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
    """A resolved recipe of an experiment, under a name."""

    name: str  # "bert@tiny", or in an ablation "bert@tiny + tokenizer", "roberta@tiny - tokenizer"
    recipe: Recipe
    # recipe; in an ablation parent, child, plus (parent with a change) or minus (child without it); or random: every
    # fine-tune starts from random weights, initialized with its seed
    role: str = "recipe"
    change: str | None = None  # the group of changes that plus adds and minus removes
    run: str | None = None  # folder of its pre-training, if the experiment has one seed; None: in its cell

    @property
    def pretrained(self) -> bool:
        return self.role != RANDOM


@dataclass(frozen=True)
class DownstreamTask:
    """A task on which every model is fine-tuned, with the arguments of `stemma finetune`."""

    name: str  # classify, pair, ... or a data set's name
    train: str
    dev: str
    epochs: float = 3.0
    columns: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None  # of the fine-tuning; None: the cell's
    also: str | None = None  # a second file to score at the end; the metrics are those of `dev`
    changes: tuple[str, ...] = ()  # `key=value` changes for every model; its recipe has the other values
    # SHA-256 of its files when the lab was made; empty in a lab older than this key
    digests: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def files(self) -> dict[str, str]:
        return {"train": self.train, "dev": self.dev} | ({"also": self.also} if self.also else {})

    def file_digests(self) -> Mapping[str, str]:
        """SHA-256 of its files: when the lab was made, or else now."""
        return self.digests or {name: sha256(Path(file)) for name, file in self.files.items()}


@dataclass(frozen=True)
class ComputeBudget:
    """The budget of every cell, in one of three units; the report also shows the other two."""

    unit: str  # tokens, flops or minutes
    amount: float

    def describe(self) -> str:
        return f"{self.amount:,.6g} {'FLOPs' if self.unit == 'flops' else self.unit}"


@dataclass(frozen=True)
class MetricInfo:
    """A metric: how it is called, and what it measures."""

    key: str  # pseudo_bits_per_byte, bits_per_byte, validation_loss, or TASK.METRIC
    title: str
    unit: str
    higher: bool  # whether higher is better
    about: str  # description in one sentence
    per_token: bool = False  # not comparable across tokenizers
    margin: float | None = None  # a difference that does not matter; None: not known


@dataclass(frozen=True)
class Score:
    """The value of a metric in a cell. If it is a ratio of sums over documents or examples, `parts` has the
    (numerator, denominator) of each."""

    value: float
    parts: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Experiment:
    kind: str  # compare, ablate or claim
    title: str
    variants: tuple[Variant, ...]
    allowance: ComputeBudget
    seeds: tuple[int, ...]
    corpus: str | None  # a corpus folder for all variants
    text: tuple[str, ...]  # or raw text, which each variant tokenizes itself
    reading: TextReadingOptions = field(default_factory=TextReadingOptions)
    tasks: tuple[DownstreamTask, ...] = ()
    measure: str | None = None  # the deciding metric; None: the first task's, or else one that most recipes have
    command: str = ""  # the command line that repeats it
    details: Mapping[str, Any] = field(default_factory=dict)  # of an ablation or a claim
    margin: float | None = None  # of the deciding metric: smaller differences do not matter; None: its default
    blimp: str | None = None  # folder of minimal pairs
    blimp_digest: str | None = None  # of its files when the lab was made; None in a lab older than this key
    baseline: bool = True  # score the linear baseline on the tasks
    device: str = field(default_factory=lambda: requested_device() or AUTO)
    version: int = VERSION

    def write(self, folder: Path) -> None:
        """Write lab.json, and the recipes as TOML files that can be run separately, into an existing folder."""
        make_folder(folder / RECIPES)
        variants = []
        for index, variant in enumerate(self.variants):
            path = f"{RECIPES}/{index:03d}.toml"
            write_file(folder / path, variant.recipe.to_toml())
            variants.append({"name": variant.name, "role": variant.role, "change": variant.change, "recipe": path,
                             "run": variant.run})
        write_object(folder / FILE, asdict(replace(self, variants=())) | {"variants": variants})

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
            for entry in stored["variants"]:
                verify_file(folder / entry["recipe"], f"delete {file} and give the command that made the lab again; to "
                            "try another recipe, give it to `stemma compare`.")
            variants = tuple(Variant(entry["name"], recipe(folder / entry["recipe"], stored=True), entry["role"],
                                     entry["change"], entry.get("run")) for entry in stored["variants"])
            return cls(**{"device": AUTO} | stored | {
                "variants": variants, "allowance": ComputeBudget(**stored["allowance"]),
                "seeds": tuple(stored["seeds"]),
                "text": tuple(stored["text"]), "reading": TextReadingOptions(**stored["reading"]),
                "tasks": tuple(DownstreamTask(**task | {"changes": tuple(task.get("changes", ()))})
                               for task in stored["tasks"])})
