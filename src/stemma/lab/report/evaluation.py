"""`report.html` of an evaluation: the metrics with their intervals, what was taken for what, and the worst errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stemma.lab.report.page import Cell, Page
from stemma.tasks.metrics import METRICS

REPORT = "report.html"
MOST_CLASSES = 30  # of a confusion matrix that can still be read
MOST_WORDS = 60  # of a tagged sentence that is shown


def write_evaluation(result: Mapping[str, Any], folder: Path, command: str) -> Path:
    kind, scores = result["kind"], result["metrics"]["test"]
    first = next(iter(result["intervals"]))
    page = Page(f"{Path(result['data']).name}: how good the answers are").lead(
        f"What {result['model']} says of {result['examples']:,} examples (task {result['task']}, kind {kind}).",
        [(written(kind, name, scores[name]), METRICS[kind][name].about) for name in result["intervals"]])
    page.section("Metrics").table(["metric", "score", "95% from", "to", "what it is"], [
        [name, written(kind, name, scores[name]), written(kind, name, low), written(kind, name, high),
         METRICS[kind][name].about] for name, (low, high) in result["intervals"].items()],
        f"`{first}` decides. Between the two values the score lies in 95% of 1,000 sets of as many examples, drawn "
        "from these with replacement: how far another test set of this size could have moved it.")
    if "confusion" in result:
        add_confusion(page, result["confusion"])
    if "entities" in result:
        page.section("Each type of entity").table(["type", "precision", "recall", "F1", "in the data"], [
            [name, *(float(row[key]) for key in ("precision", "recall", "f1")), int(row["support"])]
            for name, row in result["entities"].items()])
    if "answers" in result:
        page.section("Questions with and without an answer").table(
            ["", "value"], [[name, value] for name, value in result["answers"].items()],
            "The names are those of SQuAD 2.0's official script.")
    if result["worst"]:
        add_worst(page, result)
    page.section("Do it again").code(command)
    return page.write(folder / REPORT)


def written(kind: str, name: str, value: float) -> str:
    """As its official script prints it: percent with two places, everything else with four."""
    return f"{value:.2f}" if METRICS[kind][name].scale == 100 else f"{value:.4f}"


def add_confusion(page: Page, confusion: Mapping[str, Any]) -> None:
    labels, counts = confusion["labels"], confusion["counts"]
    page.section("What was taken for what")
    if len(labels) <= MOST_CLASSES:
        rows: list[list[Cell]] = [[label, *row] for label, row in zip(labels, counts, strict=True)]
        page.table(["right \\ said", *labels], rows, "A row for what is right, a column for what was said.")
        return
    mistaken = sorted(((count, labels[a], labels[b]) for a, row in enumerate(counts) for b, count in enumerate(row)
                       if a != b and count), reverse=True)
    page.table(["right", "said", "times"], [[a, b, count] for count, a, b in mistaken[:MOST_CLASSES]],
               f"The most frequent mistakes among {len(labels)} classes.")


def add_worst(page: Page, result: Mapping[str, Any]) -> None:
    what = {"regress": "how far off", "rank": "how far above"}.get(result["kind"], "how sure")
    page.section("The worst errors", "Those it was surest of come first. Look at them: some are errors of the data.")
    page.table([what, "right", "said", "text", "where"], [
        [one["sure"], _told(one["right"]), _told(one["said"]), described(one), one["where"]]
        for one in result["worst"]])


def described(one: Mapping[str, Any]) -> str:
    """The texts of an example in one line."""
    if "words" in one:
        return " ".join(one["words"][:MOST_WORDS]) + (" ..." if len(one["words"]) > MOST_WORDS else "")
    parts = [one[key] for key in ("text", "text_a", "text_b", "question", "context") if one.get(key)]
    parts += [f"{number}: {option}" for number, option in enumerate(one.get("options", []))]
    return " | ".join(parts)


def _told(answer: Any) -> str:
    if isinstance(answer, list):
        return " ".join(map(str, answer[:MOST_WORDS])) or "(no answer)"
    return str(answer) if answer != "" else "(no answer)"
