"""One fine-tune tried several times: at several learning rates, from several seeds; the best on the dev set is kept.

Small sets of examples are fickle: the same fine-tune from another seed may be points better or worse (BERT's authors
restart and choose by the dev set, arXiv:1810.04805, section 4.1). So what is told is the best, and the mean and spread
beside it. Each trial is an ordinary run below `RUN/trials`; one that is finished is never done again.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stemma.device import choose_device
from stemma.errors import Interrupted, UserError
from stemma.exchange.cards import Card, parts_of
from stemma.exchange.load import load
from stemma.files import folder_atomically, remove_leftovers
from stemma.lineage import COMMAND_LINE, Recipe
from stemma.stored import store, store_object, verify
from stemma.tasks import learning
from stemma.tasks.facts import HeadFacts
from stemma.tasks.judging import answers_of, worth
from stemma.tasks.kinds import head_task
from stemma.tasks.learners import build_learner
from stemma.tasks.learning import TOKENIZER, file_of, layout_of, predicted_lines, read_lines, write_lines
from stemma.tasks.metrics import metrics_of
from stemma.tasks.scoring import measure
from stemma.text.tokenizer import Tokenizer
from stemma.training.loop import Diverged
from stemma.training.run import MODEL, RECIPE, RESULT, Plan, read_result, read_run
from stemma.training.working import working

logger = logging.getLogger(__name__)

FOLDER = "trials"
HELD_OUT = ("dev", "test")
TOLD = ("metrics", "steps", "best_step", "seconds")  # of each trial


@dataclass(frozen=True)
class Trials:
    """What is tried: every rate from every seed. No rates: the recipe's."""

    rates: tuple[float, ...] = ()
    restarts: int = 1
    ensemble: bool = False

    @classmethod
    def asked(cls, rates: str | None, restarts: int, ensemble: bool) -> Trials | None:
        """From the words of a command line; None: nothing is to be tried twice."""
        try:
            stated = tuple(float(word) for word in rates.split(",")) if rates is not None else ()
        except ValueError as error:
            raise UserError(f'--rates is "{rates}"; write numbers with commas between them, such as 1e-5,2e-5,5e-5.') \
                from error
        asked = cls(stated, restarts, ensemble)
        return asked if stated or restarts > 1 else None

    def __post_init__(self) -> None:
        if not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(f"--rates are numbers greater than 0, not {', '.join(f'{rate:g}' for rate in self.rates)}.")
        if len(self.rates) == 1 or len(set(self.rates)) < len(self.rates):
            raise UserError("--rates compares several different rates; for a single one write "
                            f"training.learning_rate={self.rates[0]:g} instead.")
        if self.restarts < 1:
            raise UserError(f"--restarts must be 1 or more, not {self.restarts}.")
        if self.ensemble and self.restarts < 2:
            raise UserError("--ensemble joins the models of several restarts; add --restarts 3, say.")

    def options(self) -> dict[str, Any]:
        """What was typed, to be typed again."""
        return {**({"rates": ",".join(f"{rate:g}" for rate in self.rates)} if self.rates else {}),
                **({"restarts": self.restarts} if self.restarts > 1 else {}),
                **({"ensemble": True} if self.ensemble else {})}


@dataclass(frozen=True)
class Trial:
    folder: Path
    rate: float
    seed: int
    result: dict[str, Any] | None = None  # None: not finished, or the loss ran away

    def told(self) -> dict[str, Any]:
        """What the result of all says of it."""
        about = {"trial": self.folder.name, "rate": self.rate, "seed": self.seed}
        if self.result is None:
            return {**about, "diverged": True}
        return {**about, **{key: self.result[key] for key in TOLD if key in self.result}}


def work(run: Path, show: bool) -> dict[str, Any]:
    """Carry out what is left of the trials, choose among them, and put the best in place."""
    wanted, plan = read_run(run)
    facts = HeadFacts.of(plan)
    card = next(iter(facts.read_cards().values()))
    planned, done = planned_trials(run, wanted, plan), []
    for number, trial in enumerate(planned, 1):
        done.append(carry_out(run, trial, wanted, plan, show))
        told = "the loss ran away" if done[-1].result is None else _scores(card, done[-1].result["metrics"]["dev"])
        logger.info(f"{number} of {len(planned)} · rate {trial.rate:g}, seed {trial.seed} · dev: {told}")
    groups = by_rate(done)
    if not any(trial.result for trial in done):
        raise UserError(f"the loss ran away in all {len(done)} trials; start again with lower --rates, or a lower "
                        "training.learning_rate.")
    summary = [summed_up(card, group) for group in groups]
    group = max(groups, key=lambda group: _rank(card, group))
    best = max((trial for trial in group if trial.result), key=lambda trial: _worth(card, trial))
    assert best.result is not None
    result = {**best.result, "run": str(run), "trials": [trial.told() for trial in done], "rates": summary,
              "chosen": {"trial": best.folder.name, "rate": best.rate, "seed": best.seed}}
    for line in summary:
        logger.info(_line(card, line))
    if facts.trials and facts.trials["ensemble"]:
        result["ensemble"] = together(run, card, [trial.folder for trial in group if trial.result])
        logger.info(f"together, dev: {_scores(card, result['ensemble']['dev'])}")
    put_in_place(run, best.folder, card)
    store_object(run / RESULT, result)
    return result


def planned_trials(run: Path, wanted: Recipe, plan: Plan) -> list[Trial]:
    asked = HeadFacts.of(plan).trials
    assert asked is not None
    rates = asked["rates"] or [wanted.settings.training.learning_rate]
    return [Trial(run / FOLDER / f"rate-{rate}-seed-{seed}", rate, seed)
            for rate in rates for seed in range(plan.seed, plan.seed + asked["restarts"])]


def carry_out(run: Path, trial: Trial, wanted: Recipe, plan: Plan, show: bool) -> Trial:
    """The trial with its result, from where it stands: not begun, interrupted, or finished."""
    if not trial.folder.is_dir():
        begin(run, trial, wanted, plan)
    result = read_result(trial.folder, f"delete {trial.folder}, and `stemma resume {run}` tries it again.")
    try:
        if result is None:
            with working(trial.folder):
                result = learning.work(trial.folder, show)
    except Diverged:
        return trial
    except Interrupted:
        raise Interrupted(f"stopped in {trial.folder.name} and saved; `stemma resume {run}` goes on from there.") \
            from None
    shutil.rmtree(trial.folder / "checkpoints", ignore_errors=True)  # of a finished trial the model is enough
    return replace(trial, result=result)


def begin(run: Path, trial: Trial, wanted: Recipe, plan: Plan) -> None:
    """A run of its own: the same examples, at another rate or from another seed."""
    facts = replace(HeadFacts.of(plan), trials=None)
    cards = facts.read_cards().values()
    if trial.folder.parent.is_dir():
        remove_leftovers(trial.folder.parent)
    with folder_atomically(trial.folder, checksums=False) as place:
        shutil.copytree(run / TOKENIZER, place / TOKENIZER)
        for card in cards:
            for file in (file_of(part, card) for part in learning.SETS):
                if (run / file).is_file():
                    verify(run / file, "bring it back, or start the fine-tune again in another folder.")
                    shutil.copyfile(run / file, place / file)
        replace(plan, seed=trial.seed, task=facts.to_json()).write(place)
        if trial.rate != wanted.settings.training.learning_rate:
            wanted = wanted.with_changes({"training.learning_rate": trial.rate}, COMMAND_LINE)
        store(place / RECIPE, wanted.to_toml(parts_of(cards)))


def put_in_place(run: Path, best: Path, card: Card) -> None:
    """The best trial as the whole run's: its model, its answers, its course."""
    files = [file for file in (RECIPE, "log.jsonl", *(file_of(part, card) for part in HELD_OUT))
             if (best / file).is_file()]
    for file in files:
        verify(best / file, f"delete {best}, and `stemma resume {run}` tries it again.")
    with folder_atomically(run / MODEL, overwrite=True, checksums=False) as place:
        shutil.copytree(best / MODEL, place, dirs_exist_ok=True)
    for file in files:
        store(run / file, (best / file).read_bytes())


# --- what was found ---------------------------------------------------------------------------------------------------


def by_rate(trials: Sequence[Trial]) -> list[list[Trial]]:
    return [[trial for trial in trials if trial.rate == rate] for rate in dict.fromkeys(one.rate for one in trials)]


def _worth(card: Card, trial: Trial) -> float:
    assert trial.result is not None
    return worth(card, trial.result["metrics"]["dev"])


def _rank(card: Card, group: Sequence[Trial]) -> tuple[int, float]:
    """A rate is as good as the mean of its restarts; one at which the loss runs away is worse than any other."""
    worths = [_worth(card, trial) for trial in group if trial.result]
    return len(worths), float(np.mean(worths)) if worths else -math.inf


def summed_up(card: Card, group: Sequence[Trial]) -> dict[str, Any]:
    """Of the restarts at one rate: mean, spread (the standard deviation of a sample) and best of every metric."""
    found: dict[str, Any] = {"rate": group[0].rate, "seeds": [trial.seed for trial in group if trial.result]}
    results = [trial.result["metrics"] for trial in group if trial.result]
    for part in HELD_OUT:
        for metric in card.metrics:
            values = [metrics[part][metric] for metrics in results if metric in metrics.get(part, {})]
            if values:
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
                highest = metrics_of(card.kind)[metric].higher_is_better
                best = max(values) if highest else min(values)
                found.setdefault(part, {})[metric] = {"mean": float(np.mean(values)), "spread": spread, "best": best}
    return found


def together(run: Path, card: Card, members: Sequence[Path]) -> dict[str, Any]:
    """The metrics of all members as one: their logits averaged. What it says goes beside the examples."""
    learner = build_learner(card, layout_of(card, Tokenizer.load(run / TOKENIZER)))
    examples = {part: read_lines(run, part, card) for part in HELD_OUT}
    items = {part: learner.items(some) for part, some in examples.items() if some}
    sums: dict[str, list[np.ndarray]] = {}
    for folder in members:
        model = load(folder / MODEL, choose_device())
        for part, some in items.items():
            answers = answers_of(model, learner, some)
            before = sums.get(part, [np.zeros_like(answer) for answer in answers])
            sums[part] = [one + other for one, other in zip(before, answers, strict=True)]
    found: dict[str, Any] = {"members": len(members)}
    kind = head_task(card.kind)
    values = card.values
    for part, some in items.items():
        predictions = learner.decide(some, [total / len(members) for total in sums[part]], examples[part])
        if part == "dev":
            values = kind.tuned(card, examples[part], predictions)
        predictions = kind.settled(values, predictions)
        write_lines(run / f"ensemble-{file_of(part, card)}", predicted_lines(card, examples[part], predictions))
        found[part] = measure(card, examples[part], predictions)
    return found


def _scores(card: Card, metrics: dict[str, object]) -> str:
    return " · ".join(f"{name} {metrics[name]:.4g}" for name in card.metrics)


def _line(card: Card, summary: dict[str, Any]) -> str:
    """rate 2e-05 · dev: accuracy 0.9123 ± 0.0045, best 0.9167 (3 seeds)"""
    parts = []
    for part in HELD_OUT:
        if card.metrics[0] in summary.get(part, {}):
            told = summary[part][card.metrics[0]]
            spread = "" if told["spread"] is None else f" ± {told['spread']:.2g}"
            parts.append(f"{part}: {card.metrics[0]} {told['mean']:.4g}{spread}, best {told['best']:.4g}")
    seeds = len(summary["seeds"])
    return " · ".join([f"rate {summary['rate']:g}", *parts, f"{seeds} seed{'s' if seeds != 1 else ''}"])
