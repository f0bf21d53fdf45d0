"""Types of the entries of `results.json`, which the reports and the verdict on a claim use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

ChangeEntry = TypedDict("ChangeEntry", {"key": str, "from": object, "to": object})  # "from" is a keyword


class BudgetEntry(TypedDict):
    unit: str  # tokens, flops or minutes
    amount: float


class MeasureEntry(TypedDict):
    """A `MetricInfo`."""

    key: str
    title: str
    unit: str
    higher: bool
    about: str
    per_token: bool
    margin: float | None


class SideEntry(TypedDict):
    """A `Difference`: of a change that is added to the parent or removed from the child."""

    mean: float
    low: float | None
    high: float | None
    verdict: str
    seeds: int
    p: float | None
    comparisons: int
    margin: float | None
    seed_error: float
    text_error: float
    texts: int
    needed: int | None
    note: str | None


class DifferenceEntry(SideEntry):
    """A `Difference` by one metric: `b` minus `a`."""

    measure: str
    a: str
    b: str


class ContributionEntry(TypedDict):
    """The contribution of one change in an ablation, added to the parent and removed from the child."""

    change: str
    keys: list[str]
    added: SideEntry | None
    undone: SideEntry | None
    mean: float | None


class CellEntry(TypedDict):
    """A cell: a variant with a seed."""

    variant: str
    seed: int
    hash: str
    why: str | None
    state: str  # done or failed
    scores: dict[str, float]  # by the metric's key
    cost: dict[str, float]  # empty if it failed
    curve: list[list[float]]  # tokens, FLOPs, seconds, validation loss
    digest: str | None


class ScoreEntry(TypedDict):
    mean: float
    spread: float | None
    values: list[float]


class RowEntry(TypedDict):
    """A variant: means over its seeds."""

    variant: str
    scores: dict[str, ScoreEntry]
    cost: dict[str, float]


class VariantEntry(TypedDict):
    name: str
    recipe: str
    size: str | None
    role: str
    change: str | None
    tokenizer: str
    parameters: int
    counts: bool  # whether it counts the text once and is not trained for the budget


class DiffEntry(TypedDict):
    a: str
    b: str
    changes: list[ChangeEntry]


class ClaimEntry(TypedDict):
    name: str
    title: str
    paper: str
    found: str
    note: str | None
    verdict: str
    interval: list[float] | None
    text: str


class LawEntry(TypedDict):
    """A fitted power law: loss = floor + factor * x^-exponent."""

    points: list[list[float]]
    factor: float
    exponent: float
    floor: float | None
    exponent_low: float | None
    exponent_high: float | None
    band: list[list[float]]  # x, lower bound, law, upper bound


class FitEntry(LawEntry):
    recipe: str
    x: str  # parameters, tokens or flops
    measure: str
    note: str


class BlimpEntry(TypedDict):
    """Minimal pairs: accuracies by variant, each by phenomenon or field."""

    folder: str
    scoring: dict[str, str]
    phenomena: dict[str, dict[str, float]]
    fields: dict[str, dict[str, float]]
    without: dict[str, str]  # variants that do not score sentences, with the reason


class Results(TypedDict):
    version: int
    kind: str
    title: str
    command: str
    commands: dict[str, str]
    made: dict[str, str]
    budget: BudgetEntry
    seeds: list[int]
    estimated_seconds: float | None
    elapsed_seconds: float
    foretold_seconds: float | None  # the two above, by their names in version 0.1
    took_seconds: float
    data: dict[str, Any]
    variants: list[VariantEntry]
    tasks: dict[str, float]  # epochs of fine-tuning by the task's key
    measures: list[MeasureEntry]
    cells: list[CellEntry]
    table: list[RowEntry]
    differences: list[DifferenceEntry]
    contributions: list[ContributionEntry] | None  # of an ablation
    remainder: float | None
    hidden: Sequence[dict[str, str]]
    impossible: Sequence[dict[str, str]]
    diffs: list[DiffEntry]
    tree: list[dict[str, Any]]
    scaling: list[FitEntry] | None
    claim: ClaimEntry | None
    blimp: BlimpEntry | None  # with --blimp
    baselines: dict[str, dict[str, float]]  # linear: its scores by the metric's key
    notes: list[str]  # sentences about what was left out, and why
