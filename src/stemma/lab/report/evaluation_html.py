"""`report.html` of an evaluation: metrics with 95% intervals, confusion matrix, most confident errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stemma.lab.report.html_report import HtmlReport
from stemma.tasks.kinds import head_task
from stemma.tasks.metrics import metrics_for

REPORT = "report.html"
# Columns of an example that are not its texts; right, said and sure are the names of version 0.1.
FIXED_COLUMNS = ("where", "gold", "predicted", "confidence", "right", "said", "sure")
MAX_PREVIEW_WORDS = 60  # of a tagged sentence


def write_evaluation(result: Mapping[str, Any], folder: Path, command: str) -> Path:
    kind, scores = result["kind"], result["metrics"]["test"]
    metrics = metrics_for(kind)
    first = next(iter(result["intervals"]))
    page = HtmlReport(f"Evaluation on {Path(result['data']).name}").intro(
        f"Predictions of {result['model']} on {result['examples']:,} examples (task {result['task']}, kind {kind}).",
        [(format_metric(kind, name, scores[name]), metrics[name].description) for name in result["intervals"]])
    linear = result.get("baseline", {}).get("linear")
    fitted = f" The linear baseline ({linear['fit']['method']}) is fitted to the training examples." if linear else ""
    page.section("Metrics").table(
        ["metric", "score", "95% from", "to", *(["linear baseline"] if linear else []), "what it is"], [
            [name, format_metric(kind, name, scores[name]), format_metric(kind, name, low),
             format_metric(kind, name, high), *([format_metric(kind, name, linear["test"][name])] if linear else []),
             metrics[name].description] for name, (low, high) in result["intervals"].items()],
        f"`{first}` is the main metric. The 95% intervals are bootstrap intervals: 1,000 resamples of the examples, "
        f"with replacement.{fitted}")
    for table in head_task(kind).report_tables(result):
        page.section(table.title).table(table.columns, table.rows, table.note)
    if result["worst"]:
        add_worst_errors(page, result)
    page.section("Do it again").code(command)
    return page.write(folder / REPORT)


def format_metric(kind: str, name: str, value: float) -> str:
    """As the official script prints it: percent with two decimals, other metrics with four."""
    return f"{value:.2f}" if metrics_for(kind)[name].scale == 100 else f"{value:.4f}"


def add_worst_errors(report: HtmlReport, result: Mapping[str, Any]) -> None:
    label = head_task(result["kind"]).confidence_label
    report.section("Most confident errors", "The most confident errors come first. Some may be errors in the data.")
    report.table([label, "gold", "predicted", "text", "location"], [
        [error["confidence"], _format_answer(error["gold"]), _format_answer(error["predicted"]), format_example(error),
         error["where"]]
        for error in result["worst"]])


def format_example(error: Mapping[str, Any]) -> str:
    """The texts of an example in one line."""
    if "words" in error:
        ellipsis = " ..." if len(error["words"]) > MAX_PREVIEW_WORDS else ""
        return " ".join(error["words"][:MAX_PREVIEW_WORDS]) + ellipsis
    order = ("text", "text_a", "text_b", "question", "context", *error)
    parts = [error[key] for key in dict.fromkeys(order)
             if key not in FIXED_COLUMNS and isinstance(error.get(key), str) and error[key]]
    parts += [f"{index}: {option}" for index, option in enumerate(error.get("options", []))]
    return " | ".join(parts)


def _format_answer(answer: object) -> str:
    if isinstance(answer, list):
        return " ".join(map(str, answer[:MAX_PREVIEW_WORDS])) or "(no answer)"
    return str(answer) if answer != "" else "(no answer)"
