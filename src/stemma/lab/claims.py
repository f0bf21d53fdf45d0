"""Claims: published findings as experiments. A claim is a TOML file with a question, recipes and an expected result.

It states which of two variants the paper found better, or that they are equal within a margin. The lab trains all
variants with the same text, seeds and budget. `claim_verdict` compares the 95% interval with the paper: reproduced,
contradicted, not reproduced at this size (the interval contains 0 and is narrow), or inconclusive.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from stemma.errors import UserError, did_you_mean
from stemma.lab.builtin_data import TASKS, builtin_data
from stemma.lab.experiment import ComputeBudget, DownstreamTask, Experiment, Variant
from stemma.lab.report.lab_phrases import CLAIM_VERDICTS
from stemma.lab.results_data import ClaimEntry, Results
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.base import Count, Positive, Settings
from stemma.tasks.toml_plan import Problems, raise_problems, read_toml, validate_table
from stemma.training.corpus_cache import cache_folder, create_cache_folder
from stemma.training.run_folder import TextReadingOptions, resolve_corpus_argument

logger = logging.getLogger(__name__)

CLAIMS = Path(__file__).parent.parent / "claims"
# Values of results.json; CLAIM_VERDICTS has the words that are printed.
REPRODUCED, NOT_REPRODUCED, CONTRADICTED, INCONCLUSIVE = "seen", "not seen at this size", "opposite", "inconclusive"
TASK = "task"  # the metric of a claim about fine-tuning: that of its first task
LANGUAGES = {"en": "English", "zh": "Chinese"}
# With a budget of minutes, a model needs these to get past the unigram plateau; a claim may override them.
SMALL_BUDGET_CHANGES = (
    "tokenizer.vocab_size=4000", "corpus.sequence_length=64", "corpus.short_probability=0", "network.heads=8",
    "network.norm.placement=pre", "network.embedding.norm=false", "network.embedding.scale=true",
    "network.position.kind=sinusoidal", "network.position.maximum=512", "network.initialization.std=0.1",
    "network.dropout=0", "network.attention.dropout=0", "training.batch_size=24", "training.warmup_steps=50",
    "training.learning_rate=2e-3", "training.optimizer.epsilon=1e-9")


class ClaimVariant(Settings):
    name: str
    recipe: str
    changes: list[str] = []


class Claim(Settings):
    """A claim as in its file; `name` is that of the file."""

    name: str
    title: str  # the question
    paper: str
    found: str  # the paper's finding
    note: str | None = None  # how this experiment differs from the paper's, if that matters
    language: Literal["en", "zh"] = "en"  # of the text
    size: str = "tiny"
    tokens: Count = 2_000_000  # of each cell
    seeds: Count = 3
    quick: bool = False  # apply SMALL_BUDGET_CHANGES to all variants
    changes: list[str] = []  # of all variants; they override SMALL_BUDGET_CHANGES
    variants: list[dict[str, Any]]
    measure: Literal["pseudo_bits_per_byte", "bits_per_byte", "task"]
    tasks: list[str] = []  # built-in tasks; the first one decides if the metric is "task"
    better: str | None = None  # the variant that the paper found better
    worse: str | None = None  # the variant that it found worse
    equal: list[str] | None = None  # instead of `better` and `worse`: two variants that it found equal
    margin: Positive | None = None  # the largest difference that counts as equal, in the metric's unit

    @property
    def variant_entries(self) -> list[ClaimVariant]:
        return [ClaimVariant.model_validate(table) for table in self.variants]

    @property
    def compared_pair(self) -> tuple[str, str]:
        """The two compared variants; the one that the paper found worse comes first."""
        first, second = self.equal or [self.worse or "", self.better or ""]
        return first, second

    @property
    def expectation(self) -> str:
        first, second = self.compared_pair
        return f"{first} and {second} differ by less than {self.margin:g}" if self.equal else \
            f"{second} is better than {first}"

    def total_tokens(self) -> int:
        return len(self.variants) * self.seeds * self.tokens

    def recipes(self, size: str | None = None) -> dict[str, Recipe]:
        """The resolved recipe of every variant, at the claim's size or another."""
        return {variant.name: self.resolve(variant, size) for variant in self.variant_entries}

    def resolve(self, variant: ClaimVariant, size: str | None = None) -> Recipe:
        return recipe(variant.recipe, [*self.shared_changes(), *variant.changes], size or self.size)

    def shared_changes(self) -> list[str]:
        return [*(SMALL_BUDGET_CHANGES if self.quick else ()), *self.changes]


def all_claims() -> list[Claim]:
    """The claims of the package, sorted by name."""
    return [read_claim(path) for path in sorted(CLAIMS.glob("*.toml"))]


def find_claim(name_or_path: str) -> Claim:
    """A claim by its name, or the path of a .toml file."""
    if name_or_path.endswith(".toml"):
        return read_claim(Path(name_or_path))
    names = [path.stem for path in CLAIMS.glob("*.toml")]
    if name_or_path not in names:
        raise UserError(f'no claim "{name_or_path}".{did_you_mean(name_or_path, names)} `stemma claims` lists all of '
                        "them; a claim of your own is named by the path of its .toml file.")
    return read_claim(CLAIMS / f"{name_or_path}.toml")


def read_claim(path: Path) -> Claim:
    """Read and check a claim; raises UserError with all problems at once."""
    content = read_toml(path)
    problems: Problems = []
    if "name" in content:
        problems.append(("name", "a claim has the name of its file; leave it out"))
    claim = validate_table(Claim, content | {"name": path.stem}, "", problems)
    tables = content.get("variants")
    variants = [validate_table(ClaimVariant, table, f"variants.{table.get('name', index)}.", problems)
                for index, table in enumerate(tables if isinstance(tables, list) else [], 1) if isinstance(table, dict)]
    if claim is not None and all(variants):
        problems += _conflicts(claim)
    if claim is None or problems:
        raise_problems(path, problems)
    return claim


def _conflicts(claim: Claim) -> Problems:
    """Problems that involve several keys."""
    problems: Problems = []
    names = [variant.name for variant in claim.variant_entries]
    if len(set(names)) < max(2, len(names)):
        problems.append(("variants", "a claim compares two or more, each with a name of its own; here: "
                                     f"{', '.join(names) or 'none'}"))
    expected = [key for key in ("better", "worse", "equal", "margin") if getattr(claim, key) is not None]
    if expected not in (["better", "worse"], ["equal", "margin"]):
        problems.append(("better, worse", "say what is expected by these two, or by equal (two names) and margin; "
                                          f"here: {', '.join(expected) or 'none of them'}"))
    elif claim.equal is not None and len(claim.equal) != 2:
        problems.append(("equal", "must name the two variants that are equal"))
    elif len(set(claim.compared_pair)) < 2 or not set(claim.compared_pair) <= set(names):
        problems.append(("equal" if claim.equal else "better, worse",
                         f"must name two different ones of {', '.join(names)}"))
    problems += [(f"tasks = {task}", f"is none of {', '.join(TASKS)}.{did_you_mean(task, TASKS)}")
                 for task in claim.tasks if task not in TASKS]
    if claim.tasks and claim.language != "en":
        problems.append(("tasks", f"are English, and the claim is about {LANGUAGES[claim.language]} text; leave them "
                                  "out"))
    if claim.measure == TASK and not claim.tasks:
        problems.append(("measure = task", f"needs tasks, one or more of {', '.join(TASKS)}"))
    return problems + _recipe_problems(claim)


def _recipe_problems(claim: Claim) -> Problems:
    """Recipes that do not resolve, and variants with equal recipes."""
    problems: Problems = []
    resolved: dict[str, Recipe] = {}
    for variant in claim.variant_entries:
        try:
            resolved[variant.name] = claim.resolve(variant)
        except UserError as error:
            reasons = [f"{location}: {problem}" if location else problem for location, problem in error.problems]
            problems += [(f"variants.{variant.name}", reason) for reason in reasons or [error.message]]
    names = list(resolved)
    problems += [("variants", f"{a} and {b} come to the same recipe at size {claim.size}")
                 for index, a in enumerate(names) for b in names[index + 1:]
                 if resolved[a].values == resolved[b].values]
    return problems


def claim_experiment(claim: Claim, *, corpus: Sequence[str] = (), reading: TextReadingOptions | None = None,
                     tasks: Sequence[DownstreamTask] = (), tokens: int | None = None, seeds: int | None = None,
                     size: str | None = None, command: str = "") -> Experiment:
    """The experiment of a claim, on the built-in text (stored in the cache) or on `corpus`.

    `tasks` replace the built-in ones, and then the first of them decides.
    """
    if claim.language != "en" and not corpus:
        raise UserError(f"the claim {claim.name} is about {LANGUAGES[claim.language]} text, and none comes with this "
                        "package; give some with --corpus.")
    variants = tuple(Variant(name, resolved) for name, resolved in claim.recipes(size).items())
    folder, text = resolve_corpus_argument(corpus) if corpus else (None, [])
    measure = None if tasks or claim.measure == TASK else claim.measure  # None: the first task's
    if not corpus or claim.tasks and not tasks:
        logger.info("text and tasks are from the documentation inside this Python" if not corpus else
                    "the tasks are from the documentation inside this Python")
        create_cache_folder(cache_folder())
        data = builtin_data(cache_folder() / f"own-text-{platform.python_version()}")
        text = text if corpus else [data["text"]]
        built_in = [data["tasks"][name] for name in claim.tasks]
        tasks = tasks or [DownstreamTask(task["task"], task["train"], task["dev"]) for task in built_in]
    return Experiment(
        "claim", claim.title, variants, ComputeBudget("tokens", tokens or claim.tokens),
        tuple(range(seeds or claim.seeds)), folder, tuple(text), reading or TextReadingOptions(), tuple(tasks),
        measure, command, {"claim": claim.model_dump()})


def claim_verdict(claim: Mapping[str, Any], results: Results) -> ClaimEntry:
    """The verdict on a claim (as in `Experiment.details`) from the results of its experiment.

    The interval is that of the second variant of the pair minus the first, in the unit of the deciding metric.
    """
    measure: Mapping[str, Any] = next(iter(results["measures"]), {"key": "", "title": "measure"})
    first, second = claim["equal"] or (claim["worse"], claim["better"])
    pair = {first, second}

    def entry(verdict: str, interval: list[float] | None, text: str) -> ClaimEntry:
        return {"name": claim["name"], "title": claim["title"], "paper": claim["paper"], "found": claim["found"],
                "note": claim.get("note"), "verdict": verdict, "interval": interval, "text": text}

    difference = next((entry for entry in results["differences"]
                       if entry["measure"] == measure["key"] and {entry["a"], entry["b"]} == pair), None)
    if difference is None:
        failed = sorted({cell["variant"] for cell in results["cells"] if cell["state"] == "failed"} & pair)
        reason = f"training of {' and '.join(failed)} failed" if failed else f"there is no {measure['title']} of both"
        return entry(INCONCLUSIVE, None, f"{second} and {first} could not be compared: {reason}.")
    sign = 1 if difference["b"] == second else -1
    identical = difference["verdict"] == "same bytes"
    low, high = (0.0, 0.0) if identical else (difference["low"], difference["high"])
    interval = None if low is None or high is None else sorted((sign * low, sign * high))
    verdict = _verdict(interval, measure["higher"], claim["margin"] if claim["equal"] else None,
                       measure.get("margin") or 0.0)
    text = _format_verdict(claim, verdict, measure, (first, second), sign * difference["mean"], interval,
                           difference["seeds"])
    return entry(verdict, interval, text)


def _verdict(interval: Sequence[float] | None, higher_is_better: bool, equal: float | None, margin: float) -> str:
    """`equal`: the largest difference according to the paper, if it found none; `margin`: the largest difference that
    does not matter."""
    if interval is None:
        return INCONCLUSIVE
    low, high = interval
    if equal is not None:
        if -equal <= low and high <= equal:
            return REPRODUCED
        return CONTRADICTED if low > equal or high < -equal else INCONCLUSIVE
    improved, hurt = (low > 0, high < 0) if higher_is_better else (high < 0, low > 0)
    if improved:
        return REPRODUCED
    if hurt:
        return CONTRADICTED
    return NOT_REPRODUCED if -margin <= low and high <= margin else INCONCLUSIVE


def _format_verdict(claim: Mapping[str, object], verdict: str, metric: Mapping[str, object], pair: tuple[str, str],
                    mean: float, interval: Sequence[float] | None, seeds: int) -> str:
    first, second = pair
    unit = f" {metric['unit']}" if metric["unit"] else ""
    measured = f"{metric['title']}, {second} minus {first}: {mean:+.4g}{unit}"
    direction = f"{'higher' if metric['higher'] else 'lower'} is better"
    if interval is None:
        return f"{measured} ({direction}), from one seed, which gives no interval: {CLAIM_VERDICTS[verdict]}. " \
               "Run it with more --seeds."
    conditions = f"95% interval {interval[0]:+.4g} to {interval[1]:+.4g}, {seeds} seeds, {direction}"
    expected = f"equal within {claim['margin']:g}" if claim["equal"] else f"{second} better"
    return f"{measured} ({conditions}). The paper says {expected}: {CLAIM_VERDICTS[verdict]}."
