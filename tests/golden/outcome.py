"""What a case left behind in two folders, compared: weights, losses, scores, answers; not times and places."""

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
from tensors import ALIKE, EQUAL, difference, draws_verdict, read_weights

BASE, NEW = "base", "new"
WEIGHTS, LOG = "model.safetensors", "log.jsonl"
VALUES = ("result.json", "results.json", "scores.json", "measures.json", "config.json", "tasks.json", "tokenizer.json",
          "predictions.jsonl")
ANSWERS = re.compile(r"((dev|test|ensemble)\b.*|\d+-stdout)\.jsonl")
# what a clock says, and what made a lab (version, date); a lab's curve has seconds in it, its losses are in the log
TIMES = re.compile(r"(.*_)?(seconds|per_second|span|curve|command)|made")
ORDER = ("gradient_norm",)  # a sum over parameters: its last digits follow their order, and no weight need follow it
MISSING = object()
SHOWN = 3  # differences of a kind that are told one by one


@dataclass
class Outcome:
    """Nothing in `differences`: all is equal."""

    differences: list[str] = field(default_factory=list)
    largest: float | None = None  # difference between two weights
    where: str | None = None
    first_step: int | None = None  # whose loss differs

    @property
    def equal(self) -> bool:
        return not self.differences


def compare_folders(base: Path, new: Path, places: tuple[str, str]) -> Outcome:
    """`places` are the folders that paths in these files begin with: one of the base, one of the new version."""
    found = Outcome()
    names = [set(_told_files(folder)) for folder in (base, new)]
    for name in sorted(names[0] ^ names[1]):
        found.differences.append(f"{name}: only in {'the base' if name in names[0] else 'the new version'}")
    for name in sorted(names[0] & names[1], key=lambda name: (_rank(name), name)):
        files = base / name, new / name
        if name.endswith(WEIGHTS):
            _weights(found, name, *files)
        elif name.endswith(".npy"):
            arrays = [numpy.load(file) for file in files]
            if arrays[0].dtype != arrays[1].dtype or arrays[0].tobytes() != arrays[1].tobytes():
                found.differences.append(f"{name}: other numbers")
        else:
            texts = [file.read_text(encoding="utf-8").replace(place, "") for file, place in
                     zip(files, places, strict=True)]
            _log(found, name, *texts) if name.endswith(LOG) else _values(found, name, *texts)
    if not names[0] & names[1]:
        found.differences.append("there is nothing to compare")
    return found


def _rank(name: str) -> int:
    """What is told first: weights, losses, scores, then what follows from them."""
    return next((rank for rank, end in enumerate((WEIGHTS, LOG, "result.json")) if name.endswith(end)), 9)


def _told_files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if "checkpoints" not in name.parts and path.is_file() and (
                path.name in (WEIGHTS, LOG, *VALUES) or path.suffix == ".npy" or ANSWERS.fullmatch(path.name)):
            yield str(name)


def _weights(found: Outcome, name: str, base: Path, new: Path) -> None:
    differ = difference(load_file(base), load_file(new))
    if differ is None:
        return
    if found.largest is None or differ.largest > found.largest:
        found.largest, found.where = differ.largest, f"{name}: {differ.where}"
    lonely = f", without a counterpart: {differ.lonely}" if differ.lonely else ""
    found.differences.append(f"{name}: tensors that differ: {differ.unequal}{lonely}, by {differ.largest:.2g} at most "
                             f"({differ.where})")


def _log(found: Outcome, name: str, base: str, new: str) -> None:
    entries = [[_timeless(json.loads(line), ORDER) for line in text.splitlines()] for text in (base, new)]
    for one, other in zip(*entries, strict=False):
        if one != other:
            step = one.get("step")
            if step is not None and (found.first_step is None or step < found.first_step):
                found.first_step = step
            key, before, after = next(unequal(one, other))
            found.differences.append(f"{name}: {key} of step {step} is {_brief(before)}, now {_brief(after)}")
            return
    if len(entries[0]) != len(entries[1]):
        found.differences.append(f"{name}: lines: {len(entries[0])}, now {len(entries[1])}")


def _values(found: Outcome, name: str, base: str, new: str) -> None:
    """A JSON document, or one a line."""
    lines = [[text] if name.endswith(".json") else text.splitlines() for text in (base, new)]
    if len(lines[0]) != len(lines[1]):
        found.differences.append(f"{name}: lines: {len(lines[0])}, now {len(lines[1])}")
        return
    told = [f"{key} is {_brief(before)}, now {_brief(after)}" for one, other in zip(*lines, strict=True)
            for key, before, after in unequal(_timeless(json.loads(one)), _timeless(json.loads(other)))]
    if told and not any(told[0] in known for known in found.differences):  # stdout says what result.json says
        more = f", and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        found.differences.append(f"{name}: {'; '.join(told[:SHOWN])}{more}")


def _timeless(value: Any, aside: tuple[str, ...] = ()) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner, aside) for key, inner in value.items()
                if not TIMES.fullmatch(key) and key not in aside}
    return [_timeless(inner, aside) for inner in value] if isinstance(value, list) else value


def unequal(a: Any, b: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(where, before, after) of all that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys((*a, *b)):
            if name not in a or name not in b:
                yield f"{key}.{name}".lstrip("."), a.get(name, MISSING), b.get(name, MISSING)
            else:
                yield from unequal(a[name], b[name], f"{key}.{name}".lstrip("."))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from unequal(one, other, f"{key}[{number}]")
    elif a != b or type(a) is not type(b):
        yield key or "it", a, b


def _brief(value: Any) -> str:
    if value is MISSING:
        return "missing"
    told = json.dumps(value, ensure_ascii=False)
    return told if len(told) <= 40 else f"{told[:37]}..."


@dataclass
class Report:
    """What is said of a case."""

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
        return self.verdict in ("equal", EQUAL, ALIKE)


def judge(case: Case, answers: dict[str, dict[str, Any]], work: Path) -> Report:
    """What the two versions left behind."""
    report = Report(case.name, "equal", seconds={role: round(told["seconds"], 2) for role, told in answers.items()})
    failed = [f"the {role} version: {told['error']}" for role, told in answers.items() if told["error"]]
    if failed:
        report.verdict, report.details = "fails", failed
        return report
    folders = work / BASE / case.name, work / NEW / case.name
    if case.draw is not None:
        report.verdict, report.details = draws_verdict(*(read_weights(folder / "draw.safetensors")[0]
                                                         for folder in folders))
        return report
    found = compare_folders(*folders, (str(work / BASE), str(work / NEW)))
    report.notes = answers[NEW]["notes"]
    report.details = found.differences + answers[NEW]["problems"]
    if answers[BASE]["networks"] != answers[NEW]["networks"]:
        report.details.append(f"networks that are trained: {answers[BASE]['networks']}, now {answers[NEW]['networks']}")
    report.largest, report.where, report.first_step = found.largest, found.where, found.first_step
    if report.details:
        report.verdict = "differs"
    return report
