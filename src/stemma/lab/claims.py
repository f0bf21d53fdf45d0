"""What papers found, as experiments that anyone can run: a claim is a file with a question, some recipes and an answer.

A claim says which of its variants the paper found better, or that two of them do as well. The lab trains all of them
alike, and `judge` compares its interval with what the paper said: seen, the opposite, not seen at this size
(the interval is narrow and holds 0), or inconclusive. A user's own claim is a TOML file of the same kind.
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
from stemma.lab.results_data import ClaimEntry, Results
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.base import Count, Positive, Settings
from stemma.tasks.toml_plan import Problems, raise_problems, read_toml, validate_table
from stemma.training.corpus_cache import cache_folder, create_cache_folder
from stemma.training.run_folder import TextReadingOptions, resolve_corpus_argument

logger = logging.getLogger(__name__)

CLAIMS = Path(__file__).parent.parent / "claims"
REPRODUCED, INCONCLUSIVE_AT_SIZE, CONTRADICTED, INCONCLUSIVE = "seen", "not seen at this size", "opposite", "inconclusive"
TASK = "task"  # the measure of a claim about fine-tuning: what the first task is judged by
LANGUAGES = {"en": "English", "zh": "Chinese"}
# What a budget of minutes needs to leave the plateau where a model only counts words; a claim may change it back.
SMALL_BUDGET_CHANGES = (
    "tokenizer.vocab_size=4000", "corpus.sequence_length=64", "corpus.short_probability=0", "network.heads=8",
    "network.norm.place=pre", "network.embedding.norm=false", "network.embedding.scale=true",
    "network.position.kind=sinusoidal", "network.position.maximum=512", "network.initialization.spread=0.1",
    "network.dropout=0", "network.attention.dropout=0", "training.batch_size=24", "training.warmup_steps=50",
    "training.learning_rate=2e-3", "training.optimizer.epsilon=1e-9")


class ClaimVariant(Settings):
    name: str
    recipe: str
    changes: list[str] = []


class Claim(Settings):
    """A claim as it stands in its file; `name` is the file's."""

    name: str
    title: str  # the question
    paper: str
    found: str  # what the paper found
    note: str | None = None  # how this experiment differs from the paper's, where that matters to the answer
    language: Literal["en", "zh"] = "en"  # of the text that it is about
    size: str = "tiny"
    tokens: Count = 2_000_000  # of every variant with every seed
    seeds: Count = 3
    quick: bool = False  # all variants learn by QUICK
    changes: list[str] = []  # of all variants, after that
    variants: list[dict[str, Any]]
    measure: Literal["pseudo_bits_per_byte", "bits_per_byte", "task"]
    tasks: list[str] = []  # of the built-in ones; the first one decides where the measure is "task"
    better: str | None = None  # of two variants, as the paper has it,
    worse: str | None = None
    equal: list[str] | None = None  # or two that do as well
    margin: Positive | None = None  # what still counts as equal, in the measure's unit

    @property
    def variant_entries(self) -> list[ClaimVariant]:
        return [ClaimVariant.model_validate(one) for one in self.variants]

    @property
    def compared_pair(self) -> tuple[str, str]:
        """The two that are judged; of two that are not equal, the worse one first."""
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
        """Every variant resolved, at the claim's size or another."""
        return {one.name: self.resolve(one, size) for one in self.variant_entries}

    def resolve(self, one: ClaimVariant, size: str | None = None) -> Recipe:
        return recipe(one.recipe, [*self.shared_changes(), *one.changes], size or self.size)

    def shared_changes(self) -> list[str]:
        return [*(SMALL_BUDGET_CHANGES if self.quick else ()), *self.changes]


def all_claims() -> list[Claim]:
    """Those that come with the package, by name."""
    return [read_claim(path) for path in sorted(CLAIMS.glob("*.toml"))]


def find_claim(name_or_path: str) -> Claim:
    """A claim by its name, or the path of a .toml file."""
    if name_or_path.endswith(".toml"):
        return read_claim(Path(name_or_path))
    known = [path.stem for path in CLAIMS.glob("*.toml")]
    if name_or_path not in known:
        raise UserError(f'no claim "{name_or_path}".{did_you_mean(name_or_path, known)} `stemma claims` lists all of them; a claim of '
                        "your own is named by the path of its .toml file.")
    return read_claim(CLAIMS / f"{name_or_path}.toml")


def read_claim(path: Path) -> Claim:
    """The claim in a file, or all that is wrong with it."""
    content = read_toml(path)
    problems: Problems = []
    if "name" in content:
        problems.append(("name", "a claim is called as its file; leave it out"))
    claim = validate_table(Claim, content | {"name": path.stem}, "", problems)
    tables = content.get("variants")
    members = [validate_table(ClaimVariant, table, f"variants.{table.get('name', number)}.", problems)
               for number, table in enumerate(tables if isinstance(tables, list) else [], 1) if isinstance(table, dict)]
    if claim is not None and all(members):
        problems += _conflicts(claim)
    if claim is None or problems:
        raise_problems(path, problems)
    return claim


def _conflicts(claim: Claim) -> Problems:
    """What no key shows by itself."""
    found: Problems = []
    names = [one.name for one in claim.variant_entries]
    if len(set(names)) < max(2, len(names)):
        found.append(("variants", "a claim compares two or more, each with a name of its own; here: "
                                  f"{', '.join(names) or 'none'}"))
    given = [key for key in ("better", "worse", "equal", "margin") if getattr(claim, key) is not None]
    if given not in (["better", "worse"], ["equal", "margin"]):
        found.append(("better, worse", "say what is expected by these two, or by equal (two names) and margin; here: "
                                       f"{', '.join(given) or 'none of them'}"))
    elif claim.equal is not None and len(claim.equal) != 2:
        found.append(("equal", "names the two variants that do as well"))
    elif len(set(claim.compared_pair)) < 2 or not set(claim.compared_pair) <= set(names):
        found.append(("equal" if claim.equal else "better, worse",
                      f"must name two different ones of {', '.join(names)}"))
    found += [(f"tasks = {task}", f"is none of {', '.join(TASKS)}.{did_you_mean(task, TASKS)}")
              for task in claim.tasks if task not in TASKS]
    if claim.tasks and claim.language != "en":
        found.append(("tasks", f"are English, and the claim is about {LANGUAGES[claim.language]} text; leave them out"))
    if claim.measure == TASK and not claim.tasks:
        found.append(("measure = task", f"needs tasks, one or more of {', '.join(TASKS)}"))
    return found + _recipe_problems(claim)


def _recipe_problems(claim: Claim) -> Problems:
    """Recipes that do not resolve, and variants between which there is nothing to compare."""
    found: Problems = []
    resolved: dict[str, Recipe] = {}
    for one in claim.variant_entries:
        try:
            resolved[one.name] = claim.resolve(one)
        except UserError as error:
            told = [f"{where}: {what}" if where else what for where, what in error.problems] or [error.message]
            found += [(f"variants.{one.name}", what) for what in told]
    names = list(resolved)
    found += [("variants", f"{a} and {b} come to the same recipe at size {claim.size}") for place, a in enumerate(names)
              for b in names[place + 1:] if resolved[a].values == resolved[b].values]
    return found


def claim_experiment(claim: Claim, *, corpus: Sequence[str] = (), reading: TextReadingOptions | None = None,
                  tasks: Sequence[DownstreamTask] = (), tokens: int | None = None, seeds: int | None = None,
                  size: str | None = None, command: str = "") -> Experiment:
    """The claim as the lab takes it, on the text that every Python brings (kept in the cache) or on one's own.

    Given tasks take the place of the built-in ones, and decide.
    """
    if claim.language != "en" and not corpus:
        raise UserError(f"the claim {claim.name} is about {LANGUAGES[claim.language]} text, and none comes with this "
                        "package; give some with --corpus.")
    variants = tuple(Variant(name, found) for name, found in claim.recipes(size).items())
    folder, text = resolve_corpus_argument(corpus) if corpus else (None, [])
    measure = None if tasks or claim.measure == TASK else claim.measure  # None: the first task's
    if not corpus or claim.tasks and not tasks:
        logger.info("text and tasks are the documentation inside this Python" if not corpus else
                    "the tasks are about the documentation inside this Python")
        create_cache_folder(cache_folder())
        own = builtin_data(cache_folder() / f"own-text-{platform.python_version()}")
        text = text if corpus else [own["text"]]
        built_in = [own["tasks"][name] for name in claim.tasks]
        tasks = tasks or [DownstreamTask(one["task"], one["train"], one["dev"]) for one in built_in]
    return Experiment(
        "claim", claim.title, variants, ComputeBudget("tokens", tokens or claim.tokens),
        tuple(range(seeds or claim.seeds)), folder, tuple(text), reading or TextReadingOptions(), tuple(tasks),
        measure, command,
        {"claim": claim.model_dump()})


def claim_verdict(claim: Mapping[str, Any], results: Results) -> ClaimEntry:
    """The verdict over a claim (as `Experiment.details` keeps it) from the results of its experiment.

    The interval is that of the judged variant minus the other, in the unit of the measure that decides.
    """
    measure: Mapping[str, Any] = next(iter(results["measures"]), {"key": "", "title": "measure"})
    first, second = claim["equal"] or (claim["worse"], claim["better"])
    both = {first, second}

    def told(verdict: str, interval: list[float] | None, text: str) -> ClaimEntry:
        return {"name": claim["name"], "title": claim["title"], "paper": claim["paper"], "found": claim["found"],
                "note": claim.get("note"), "verdict": verdict, "interval": interval, "text": text}

    found = next((one for one in results["differences"]
                  if one["measure"] == measure["key"] and {one["a"], one["b"]} == both), None)
    if found is None:
        failed = sorted({cell["variant"] for cell in results["cells"] if cell["state"] == "failed"} & both)
        why = f"training of {' and '.join(failed)} failed" if failed else f"there is no {measure['title']} of both"
        return told(INCONCLUSIVE, None, f"{second} and {first} could not be compared: {why}.")
    sign = 1 if found["b"] == second else -1
    low, high = (0.0, 0.0) if found["verdict"] == "same bytes" else (found["low"], found["high"])
    interval = None if low is None or high is None else sorted((sign * low, sign * high))
    verdict = _verdict(interval, measure["higher"], claim["margin"] if claim["equal"] else None,
                       measure.get("margin") or 0.0)
    return told(verdict, interval, _format_verdict(claim, verdict, measure, (first, second), sign * found["mean"],
                                                   interval,
                                             found["seeds"]))


def _verdict(interval: Sequence[float] | None, higher_is_better: bool, equal: float | None, margin: float) -> str:
    """`equal`: the paper says that the difference is at most this; `margin`: one that would not matter."""
    if interval is None:
        return INCONCLUSIVE
    low, high = interval
    if equal is not None:  # all that the difference may be is small; or none of it is
        return REPRODUCED if -equal <= low and high <= equal else CONTRADICTED if low > equal or high < -equal else INCONCLUSIVE
    gained, lost = (low > 0, high < 0) if higher_is_better else (high < 0, low > 0)
    return REPRODUCED if gained else CONTRADICTED if lost else INCONCLUSIVE_AT_SIZE if -margin <= low and high <= margin else INCONCLUSIVE


def _format_verdict(claim: Mapping[str, object], verdict: str, metric: Mapping[str, object], pair: tuple[str, str],
              mean: float, interval: Sequence[float] | None, seeds: int) -> str:
    first, second = pair
    unit = f" {metric['unit']}" if metric["unit"] else ""
    said = f"{metric['title']}, {second} minus {first}: {mean:+.4g}{unit}"
    direction = f"{'higher' if metric['higher'] else 'lower'} is better"
    if interval is None:
        return f"{said} ({direction}), from one seed, which gives no interval: {verdict}. Run it with more --seeds."
    known = f"95% interval {interval[0]:+.4g} to {interval[1]:+.4g}, {seeds} seeds, {direction}"
    expected = f"equal within {claim['margin']:g}" if claim["equal"] else f"{second} better"
    return f"{said} ({known}). The paper says {expected}: {verdict}."
