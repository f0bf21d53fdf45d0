"""Minimal pairs: does a model prefer the acceptable of two sentences that differ in one point (BLiMP,
arXiv:1912.00582)?

A pair is correct if its acceptable sentence has the higher (pseudo-)log-likelihood. A tie counts as half. If ties
counted as correct, a model that gives every sentence the same score would be perfect; with half it is at chance level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stemma.errors import UserError, first_problems, pluralize
from stemma.evaluation.accuracy import wilson_interval
from stemma.evaluation.sentence_likelihood import choose_sentence_score, sentence_log_likelihoods
from stemma.json_files import parse
from stemma.model import Model
from stemma.text.readers import list_files
from stemma.text.text_io import COMPRESSED, display_name, read_text

GOOD, BAD = "sentence_good", "sentence_bad"
PAIR_SUFFIXES = tuple(f"{suffix}{packed}" for packed in ("", *COMPRESSED) for suffix in (".jsonl", ".ndjson"))
TIE = 1e-6  # relative difference of two log-likelihoods that fp32 arithmetic does not resolve
FIELD_NAMES = {"syntax_semantics": "syntax/semantics"}  # BLiMP's files spell one field in both ways
EXAMPLE = '{"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps."}'


@dataclass(frozen=True)
class MinimalPair:
    good: str
    bad: str
    phenomenon: str  # UID, or the name of the file
    term: str | None  # linguistics_term: a group of phenomena
    field: str | None  # a group of terms: morphology, syntax, semantics, ...


def minimal_pairs(model: Model, path: str | Path, limit: int | None = None, scoring: str | None = None,
                  on_progress: Callable[[int], None] = lambda sentences: None) -> dict[str, Any]:
    """Accuracy on the pairs of a folder or file, by phenomenon, term and field, each with its 95% interval.

    `accuracy` is the mean over the phenomena, as BLiMP defines it; `limit`: pairs of each phenomenon, the first ones.
    """
    return score_pairs(model, read_pairs(path, limit), scoring, on_progress)


def num_sentences(pairs: Sequence[MinimalPair]) -> int:
    """The number of different sentences: as many are scored."""
    return len({text for pair in pairs for text in (pair.good, pair.bad)})


def score_pairs(model: Model, pairs: Sequence[MinimalPair], scoring: str | None = None,
                on_progress: Callable[[int], None] = lambda sentences: None) -> dict[str, Any]:
    """The result of `minimal_pairs` on these pairs."""
    kind = choose_sentence_score(model, scoring)
    start = time.perf_counter()
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    likelihoods = sentence_log_likelihoods(model, texts, kind, on_progress)
    seconds = time.perf_counter() - start
    return {**summarize_pairs(pairs, pair_scores(likelihoods[::2], likelihoods[1::2])), "scoring": kind,
            "sentences": num_sentences(pairs), "seconds": seconds,
            "sentences_per_second": num_sentences(pairs) / max(seconds, 1e-9)}


def pair_scores(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """(pairs,) 1 if the acceptable sentence has the higher log-likelihood, 0.5 for a tie, 0 otherwise."""
    tied = np.abs(good - bad) <= TIE * np.maximum(1.0, np.maximum(np.abs(good), np.abs(bad)))
    return np.where(tied, 0.5, (good > bad).astype(float))


def summarize_pairs(pairs: Sequence[MinimalPair], scores: np.ndarray) -> dict[str, Any]:
    """Accuracies by phenomenon and group. A group's accuracy is the mean over its phenomena."""
    by_phenomenon: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        by_phenomenon.setdefault(pair.phenomenon, []).append(index)
    details: dict[str, dict[str, Any]] = {}
    for name, indices in sorted(by_phenomenon.items()):
        values, first = scores[indices], pairs[indices[0]]
        details[name] = {"accuracy": float(values.mean()),
                         "interval": list(wilson_interval(float(values.sum()), len(values))), "pairs": len(values),
                         "ties": int((values == 0.5).sum()), "term": first.term, "field": first.field}
    groups = {key: {name: _mean_accuracy([detail for detail in details.values() if detail[singular] == name])
                    for name in sorted({detail[singular] for detail in details.values() if detail[singular]})}
              for key, singular in (("fields", "field"), ("terms", "term"))}
    return {**_mean_accuracy(list(details.values())), "chance": 0.5,
            "phenomena": {name: detail["accuracy"] for name, detail in details.items()},
            **groups, "details": details}


def _mean_accuracy(details: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over phenomena. Its interval combines theirs (Zou and Donner 2008, MOVER); ties make it conservative."""
    mean = float(np.mean([detail["accuracy"] for detail in details]))
    below, above = (float(np.sqrt(sum((detail["accuracy"] - detail["interval"][side]) ** 2 for detail in details)))
                    / len(details) for side in (0, 1))
    return {"accuracy": mean, "interval": [max(0.0, mean - below), min(1.0, mean + above)],
            "pairs": sum(detail["pairs"] for detail in details), "ties": sum(detail["ties"] for detail in details)}


def read_pairs(path: str | Path, limit: int | None = None) -> list[MinimalPair]:
    """The pairs of all jsonl files of a folder (or of one file); with `limit`, the first ones of each phenomenon."""
    if limit is not None and limit < 1:
        raise UserError(f"--limit must be 1 or more, not {limit}.")
    files = list_files([path], PAIR_SUFFIXES)
    pairs: list[MinimalPair] = []
    problems: list[tuple[str, str]] = []
    counts: dict[str, int] = {}
    for file in files:
        for number, line in enumerate("".join(read_text(file, choice=False)).split("\n"), 1):
            if not line.strip():
                continue
            pair = _parse_pair(line, file)
            if isinstance(pair, str):
                problems.append((f"{display_name(file)}, line {number}", pair))
            elif limit is None or counts.get(pair.phenomenon, 0) < limit:
                counts[pair.phenomenon] = counts.get(pair.phenomenon, 0) + 1
                pairs.append(pair)
    if problems:
        raise UserError(f"{path} has {pluralize(len(problems), 'line')} that cannot be read as minimal pairs, such as "
                        f"{EXAMPLE}", first_problems(problems))
    if not pairs:
        raise UserError(f"{path} has no minimal pairs in it; every line of a .jsonl file should look like {EXAMPLE}.")
    return pairs


def _parse_pair(line: str, file: Path) -> MinimalPair | str:
    """The pair of a line, or what is wrong with it."""
    try:
        row = parse(line)
    except ValueError as error:
        return f"is not JSON ({getattr(error, 'msg', error)})"
    if not isinstance(row, dict):
        return "is not a JSON object"
    if missing := [key for key in (GOOD, BAD) if not isinstance(row.get(key), str)]:
        return f"has no {' and no '.join(missing)}"
    if empty := [key for key in (GOOD, BAD) if not row[key].strip()]:
        return f"{' and '.join(empty)} {'are' if len(empty) > 1 else 'is'} empty"
    if wrong := [key for key in ("UID", "linguistics_term", "field") if isinstance(row.get(key), list | dict)]:
        return f"{' and '.join(wrong)} {'are' if len(wrong) > 1 else 'is'} not a string"
    uid, term, field = (row.get(key) for key in ("UID", "linguistics_term", "field"))
    return MinimalPair(row[GOOD], row[BAD], str(uid) if uid else file.name.split(".")[0],
                       str(term) if term else None, FIELD_NAMES.get(field, str(field)) if field else None)
