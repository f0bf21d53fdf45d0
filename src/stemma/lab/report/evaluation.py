"""`report.html` of an evaluation: the metrics with their intervals, what was taken for what, and the worst errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stemma.lab.report.page import Page
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import metrics_of

REPORT = "report.html"
BESIDE = ("where", "right", "said", "sure")  # what is told of an example besides its texts
MOST_WORDS = 60  # of a tagged sentence that is shown


def write_evaluation(result: Mapping[str, Any], folder: Path, command: str) -> Path:
    kind, scores = result["kind"], result["metrics"]["test"]
    known = metrics_of(kind)
    first = next(iter(result["intervals"]))
    page = Page(f"{Path(result['data']).name}: how good the answers are").lead(
        f"What {result['model']} says of {result['examples']:,} examples (task {result['task']}, kind {kind}).",
        [(written(kind, name, scores[name]), known[name].about) for name in result["intervals"]])
    page.section("Metrics").table(["metric", "score", "95% from", "to", "what it is"], [
        [name, written(kind, name, scores[name]), written(kind, name, low), written(kind, name, high),
         known[name].about] for name, (low, high) in result["intervals"].items()],
        f"`{first}` decides. Between the two values the score lies in 95% of 1,000 sets of as many examples, drawn "
        "from these with replacement: how far another test set of this size could have moved it.")
    for table in head_task(kind).report(result):
        page.section(table.title).table(table.columns, table.rows, table.note)
    if result["worst"]:
        add_worst(page, result)
    page.section("Do it again").code(command)
    return page.write(folder / REPORT)


def written(kind: str, name: str, value: float) -> str:
    """As its official script prints it: percent with two places, everything else with four."""
    return f"{value:.2f}" if metrics_of(kind)[name].scale == 100 else f"{value:.4f}"


def add_worst(page: Page, result: Mapping[str, Any]) -> None:
    what = head_task(result["kind"]).confidence
    page.section("The worst errors", "Those it was surest of come first. Look at them: some are errors of the data.")
    page.table([what, "right", "said", "text", "where"], [
        [one["sure"], _told(one["right"]), _told(one["said"]), described(one), one["where"]]
        for one in result["worst"]])


def described(one: Mapping[str, Any]) -> str:
    """The texts of an example in one line."""
    if "words" in one:
        return " ".join(one["words"][:MOST_WORDS]) + (" ..." if len(one["words"]) > MOST_WORDS else "")
    order = ("text", "text_a", "text_b", "question", "context", *one)
    parts = [one[key] for key in dict.fromkeys(order)
             if key not in BESIDE and isinstance(one.get(key), str) and one[key]]
    parts += [f"{number}: {option}" for number, option in enumerate(one.get("options", []))]
    return " | ".join(parts)


def _told(answer: object) -> str:
    if isinstance(answer, list):
        return " ".join(map(str, answer[:MOST_WORDS])) or "(no answer)"
    return str(answer) if answer != "" else "(no answer)"
