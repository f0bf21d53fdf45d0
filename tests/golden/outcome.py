"""Compares the output folders of a case: weights, losses, scores and predictions, but not times and paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from cases import Case
from safetensors.torch import load_file
from tensors import EQUAL, SAME_DISTRIBUTION, difference, network_init_verdict, read_weights

BASE, NEW = "base", "new"
WEIGHTS, LOG = "model.safetensors", "log.jsonl"
VALUES = ("result.json", "results.json", "scores.json", "measures.json", "config.json", "tasks.json", "tokenizer.json",
          "predictions.jsonl")
PREDICTIONS = re.compile(r"((dev|test|ensemble)\b.*|\d+-stdout)\.jsonl")
# keys with times, or with the version and date of a lab; a lab's curve has seconds, and its losses are in the log
IGNORED = re.compile(r"(.*_)?(seconds|per_second|span|curve|command)|made")
ROUNDED = ("gradient_norm",)  # a sum over parameters: its rounding depends on their order, and weights need not
MISSING = object()
MAX_SHOWN = 3  # differences per file


@dataclass
class Outcome:
    """The differences between two folders; an empty list means that they are equal."""

    differences: list[str] = field(default_factory=list)
    largest: float | None = None  # difference between two weights
    where: str | None = None
    first_step: int | None = None  # whose loss differs

    @property
    def equal(self) -> bool:
        return not self.differences


def compare_folders(base: Path, new: Path, prefixes: tuple[str, str]) -> Outcome:
    """`prefixes` are removed from paths in the files: the folder of the base, and that of the new version."""
    outcome = Outcome()
    names = [set(_compared_files(folder)) for folder in (base, new)]
    for name in sorted(names[0] ^ names[1]):
        outcome.differences.append(f"{name}: only in {'the base' if name in names[0] else 'the new version'}")
    for name in sorted(names[0] & names[1], key=lambda name: (_rank(name), name)):
        files = base / name, new / name
        if name.endswith(WEIGHTS):
            _weights(outcome, name, *files)
        elif name.endswith(".npy"):
            arrays = [numpy.load(file) for file in files]
            if arrays[0].dtype != arrays[1].dtype or arrays[0].tobytes() != arrays[1].tobytes():
                outcome.differences.append(f"{name}: other values")
        else:
            texts = [file.read_text(encoding="utf-8").replace(prefix, "") for file, prefix in
                     zip(files, prefixes, strict=True)]
            _log(outcome, name, *texts) if name.endswith(LOG) else _values(outcome, name, *texts)
    if not names[0] & names[1]:
        outcome.differences.append("there is nothing to compare")
    return outcome


def _rank(name: str) -> int:
    """The order of the report: weights, losses, scores, then the other files."""
    return next((rank for rank, end in enumerate((WEIGHTS, LOG, "result.json")) if name.endswith(end)), 9)


def _compared_files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if "checkpoints" not in name.parts and path.is_file() and (
                path.name in (WEIGHTS, LOG, *VALUES) or path.suffix == ".npy" or PREDICTIONS.fullmatch(path.name)):
            yield str(name)


def _weights(outcome: Outcome, name: str, base: Path, new: Path) -> None:
    change = difference(load_file(base), load_file(new))
    if change is None:
        return
    if outcome.largest is None or change.largest > outcome.largest:
        outcome.largest, outcome.where = change.largest, f"{name}: {change.where}"
    unmatched = f", without a counterpart: {change.unmatched}" if change.unmatched else ""
    outcome.differences.append(f"{name}: tensors that differ: {change.unequal}{unmatched}, by {change.largest:.2g} at "
                               f"most ({change.where})")


def _log(outcome: Outcome, name: str, base: str, new: str) -> None:
    entries = [[_timeless(json.loads(line), ROUNDED) for line in text.splitlines()] for text in (base, new)]
    for before_entry, after_entry in zip(*entries, strict=False):
        if before_entry != after_entry:
            step = before_entry.get("step")
            if step is not None and (outcome.first_step is None or step < outcome.first_step):
                outcome.first_step = step
            key, before, after = next(unequal(before_entry, after_entry))
            outcome.differences.append(f"{name}: {key} of step {step} is {_brief(before)}, now {_brief(after)}")
            return
    if len(entries[0]) != len(entries[1]):
        outcome.differences.append(f"{name}: lines: {len(entries[0])}, now {len(entries[1])}")


def _values(outcome: Outcome, name: str, base: str, new: str) -> None:
    """Compare JSON documents, or JSON lines."""
    lines = [[text] if name.endswith(".json") else text.splitlines() for text in (base, new)]
    if len(lines[0]) != len(lines[1]):
        outcome.differences.append(f"{name}: lines: {len(lines[0])}, now {len(lines[1])}")
        return
    changes = [f"{key} is {_brief(before)}, now {_brief(after)}" for base_line, new_line in zip(*lines, strict=True)
               for key, before, after in unequal(_timeless(json.loads(base_line)), _timeless(json.loads(new_line)))]
    if changes and not any(changes[0] in reported for reported in outcome.differences):  # stdout repeats result.json
        more = f", and {len(changes) - MAX_SHOWN} more" if len(changes) > MAX_SHOWN else ""
        outcome.differences.append(f"{name}: {'; '.join(changes[:MAX_SHOWN])}{more}")


def _timeless(value: Any, ignored: tuple[str, ...] = ()) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner, ignored) for key, inner in value.items()
                if not IGNORED.fullmatch(key) and key not in ignored}
    return [_timeless(inner, ignored) for inner in value] if isinstance(value, list) else value


def unequal(a: Any, b: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, before, after) of every difference."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys((*a, *b)):
            if name not in a or name not in b:
                yield f"{key}.{name}".lstrip("."), a.get(name, MISSING), b.get(name, MISSING)
            else:
                yield from unequal(a[name], b[name], f"{key}.{name}".lstrip("."))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (before, after) in enumerate(zip(a, b, strict=True)):
            yield from unequal(before, after, f"{key}[{index}]")
    elif a != b or type(a) is not type(b):
        yield key or "the value", a, b


def _brief(value: Any) -> str:
    if value is MISSING:
        return "missing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass
class Report:
    """The result of a case."""

    case: str
    verdict: str  # equal, same distribution, differs, fails
    details: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    largest: float | None = None
    where: str | None = None
    first_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.verdict in ("equal", EQUAL, SAME_DISTRIBUTION)


def compare_case(case: Case, responses: dict[str, dict[str, Any]], work: Path) -> Report:
    """Compare the results of both versions."""
    report = Report(case.name, "equal", seconds={role: round(response["seconds"], 2)
                                                  for role, response in responses.items()})
    failed = [f"the {role} version: {response['error']}" for role, response in responses.items()
              if response["error"]]
    if failed:
        report.verdict, report.details = "fails", failed
        return report
    folders = work / BASE / case.name, work / NEW / case.name
    if case.init is not None:
        report.verdict, report.details = network_init_verdict(*(read_weights(folder / "initial.safetensors")[0]
                                                                for folder in folders))
        return report
    outcome = compare_folders(*folders, (str(work / BASE), str(work / NEW)))
    report.notes = responses[NEW]["notes"]
    report.details = outcome.differences + responses[NEW]["problems"]
    if responses[BASE]["networks"] != responses[NEW]["networks"]:
        report.details.append(f"trained networks: {responses[BASE]['networks']}, now {responses[NEW]['networks']}")
    report.largest, report.where, report.first_step = outcome.largest, outcome.where, outcome.first_step
    if report.details:
        report.verdict = "differs"
    return report
