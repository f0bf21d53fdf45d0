"""`report.md` of a pipeline: what each stage did, what it made the model forget, and which of them paid off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Table = tuple[list[str], list[list[str]]]


def tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Everything that is told in rows, by title."""
    found = {"Stages": _stages_table(result["stages"])}
    if result["contamination"]:
        found["Dev and test examples in what was read"] = _contamination_table(result["contamination"])
    for name, rows in result["payoff"].items():
        found[f"Which stage paid off: {name}"] = _gains_table(rows)
    return found


def write(result: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# What the stages were worth", ""]
    for title, (head, rows) in tables(result).items():
        lines += [f"## {title}", "", *table_notes(title, result), *_markdown(head, rows), ""]
    lines += ["## Lineage", ""]
    for entry in result["lineage"]:
        before = f" after {entry['after']} `{entry['start'][:12]}`" if entry["after"] else ""
        lines.append(f"- **{entry['stage']}** `{entry['hash'][:12]}`{before}")
        parts = {**entry["data"], **({"replayed": entry["general"]} if "general" in entry else {})}
        lines += [f"  - {part}: {path} · sha256 {number[:16]}" for part, sums in parts.items()
                  for path, number in sums.items()]
    command = f"    stemma pipeline {result['run']}/pipeline.toml --out AGAIN"
    return "\n".join([*lines, "", "Do it again:", "", command, ""])


def table_notes(title: str, result: Mapping[str, Any]) -> list[str]:
    """What a table does not say by itself."""
    if title == "Stages":
        told = ["Losses are nats a guess on held-out text, lower is better; general text is measured with the same "
                "rows and the same masks after every stage."]
        if any(stage["kind"] == "task" and stage["general_loss"] is not None for stage in result["stages"]):
            told.append("After a task, the language model's head of the stage before is put back on.")
        if any(stage["kind"] != "task" and stage["general_loss"] is None for stage in result["stages"]) \
                and result["general"]:
            told.append("A dash where a model has no language-model head to be measured with.")
        if not result["payoff"]:
            told.append("Which stage paid off is not known: `ablate = true` learns the task from the model of each.")
    elif title.startswith("Which"):
        told = ["The task learnt from the model of each stage, mean and spread over seeds on the dev set; gains are "
                "against the line above, seed by seed, with their standard error."]
    else:
        told = [f"Runs of {result['ngram']} words. An example counts as read where half of its runs are found; what a "
                "given model was trained on before is not known here."]
    return [" ".join(told), ""]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _stages_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    head = ["stage", "after", "learned from", "own text", "general text", "forgotten", "dev", "kept", "time"]
    rows = []
    for stage in stages:
        own = stage["own_after"] is not None
        began = f"{_format_number(stage['own_before'])} -> " if own and stage["own_before"] is not None else ""
        bits = f" ({stage['bits_per_byte']:.3f} bits a byte)" if stage["bits_per_byte"] is not None else ""
        rows.append([stage["stage"], stage["after"] or "-", stage["about"],
                     f"{began}{_format_number(stage['own_after'])}" if own else "-",
                     f"{_format_number(stage['general_loss'])}{bits}", _format_signed(stage["forgotten"]),
                     _score(stage),
                     "-" if stage["share"] is None else f"{stage['share']:g}",
                     "-" if stage["seconds"] is None else f"{stage['seconds']:,.0f} s"])
    return head, rows


def _score(stage: Mapping[str, Any]) -> str:
    return "-" if stage["metric"] is None else f"{stage['metric']} {stage['metrics']['dev'][stage['metric']]:.4f}"


def _contamination_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    return (["text of", "examples of", "found", "examples read", "too short to tell"],
            [[row["text"], f"{row['task']}, {row['set']}", f"{row['share']:.2%}", f"{row['read']:,} of "
              f"{row['examples']:,}", f"{row['too_short']:,}"] for row in rows])


def _gains_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ["learnt from", rows[0]["metric"], "gain", "verdict"]
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
