"""`report.md` of a pipeline: the stages, their forgetting, contamination and gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Table = tuple[list[str], list[list[str]]]


def tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of the report by title."""
    result_tables = {"Stages": _stages_table(result["stages"])}
    if result["contamination"]:
        result_tables["Contamination of dev and test examples"] = _contamination_table(result["contamination"])
    for name, rows in result["payoff"].items():
        result_tables[f"Gain of each stage: {name}"] = _gains_table(rows)
    return result_tables


def render_report(result: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Pipeline report", ""]
    for title, (head, rows) in tables(result).items():
        lines += [f"## {title}", "", *table_notes(title, result), *_markdown(head, rows), ""]
    lines += ["## Lineage", ""]
    for entry in result["lineage"]:
        before = f" after {entry['after']} `{entry['start'][:12]}`" if entry["after"] else ""
        lines.append(f"- **{entry['stage']}** `{entry['hash'][:12]}`{before}")
        parts = {**entry["data"], **({"replayed": entry["general"]} if "general" in entry else {})}
        lines += [f"  - {part}: {path} · sha256 {checksum[:16]}" for part, sums in parts.items()
                  for path, checksum in sums.items()]
    command = f"    stemma pipeline {result['run']}/pipeline.toml --out AGAIN"
    return "\n".join([*lines, "", "Reproduce it:", "", command, ""])


def table_notes(title: str, result: Mapping[str, Any]) -> list[str]:
    """An explanation above a table."""
    if title == "Stages":
        notes = ["Losses are nats per predicted token on held-out text, lower is better; general text is measured with "
                 "the same rows and the same masks after every stage."]
        if any(stage["kind"] == "task" and stage["general_loss"] is not None for stage in result["stages"]):
            notes.append("After a task, the language model head of the previous stage is restored.")
        if any(stage["kind"] != "task" and stage["general_loss"] is None for stage in result["stages"]) \
                and result["general"]:
            notes.append("A dash means that the model has no language model head.")
        if not result["payoff"]:
            notes.append("The gain of each stage is unknown: `ablate = true` fine-tunes the task from each.")
    elif title.startswith("Gain"):
        notes = ["The task fine-tuned from the model of each stage: mean and standard deviation over seeds on the dev "
                 "set. Gains are paired by seed against the line above, with their standard error."]
    else:
        notes = [f"{result['ngram']}-grams of words. An example is contaminated if at least half of its n-grams are "
                 "found. The training text of a given model is not known here."]
    return [" ".join(notes), ""]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _stages_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    head = ["stage", "after", "data", "own text", "general text", "forgotten", "dev", "fraction", "time"]
    if has_baseline := any(stage.get("baseline") for stage in stages):
        head.insert(head.index("dev") + 1, "linear baseline")
    rows = []
    for stage in stages:
        has_own = stage["own_after"] is not None
        before = f"{_format_number(stage['own_before'])} -> " if has_own and stage["own_before"] is not None else ""
        bits = f" ({stage['bits_per_byte']:.3f} bits per byte)" if stage["bits_per_byte"] is not None else ""
        rows.append([stage["stage"], stage["after"] or "-", stage["about"],
                     f"{before}{_format_number(stage['own_after'])}" if has_own else "-",
                     f"{_format_number(stage['general_loss'])}{bits}", _format_signed(stage["forgotten"]),
                     _score(stage), *([_baseline_score(stage)] if has_baseline else []),
                     "-" if stage["share"] is None else f"{stage['share']:g}",
                     "-" if stage["seconds"] is None else f"{stage['seconds']:,.0f} s"])
    return head, rows


def _score(stage: Mapping[str, Any]) -> str:
    return "-" if stage["metric"] is None else f"{stage['metric']} {stage['metrics']['dev'][stage['metric']]:.4f}"


def _baseline_score(stage: Mapping[str, Any]) -> str:
    linear = (stage.get("baseline") or {}).get("linear")
    return "-" if linear is None else f"{linear['dev'][stage['metric']]:.4f}"


def _contamination_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    return (["text of", "examples of", "n-grams found", "contaminated", "too short"],
            [[row["text"], f"{row['task']}, {row['set']}", f"{row['share']:.2%}", f"{row['read']:,} of "
              f"{row['examples']:,}", f"{row['too_short']:,}"] for row in rows])


def _gains_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ["start", rows[0]["metric"], "gain", "verdict"]
    return head, [[row["from"], _format_with_error(row["mean"], row["spread"]),
                   _format_with_error(row["gain"], row["error"], "+") if "gain" in row else "-",
                   row.get("verdict", "-")]
                  for row in rows]


def _format_with_error(value: float, error: float | None, sign: str = "") -> str:
    return f"{value:{sign}.4f}" + ("" if error is None else f" ± {error:.4f}")


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _format_signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"
