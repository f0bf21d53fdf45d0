"""Tests of word vectors: analogies in Google's file format, and pairs of words with similarity judgements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stemma.errors import UserError, first_problems
from stemma.text.text_io import read_text
from stemma.vectors.word_vectors import Neighbor, WordVectors, normalize

QUESTIONS_AT_ONCE = 512


@dataclass(frozen=True)
class Section:
    """One kind of relation: `: capital-common-countries` and its questions of four words."""

    name: str
    questions: list[list[str]] = field(default_factory=list)


def read_questions(path: str | Path) -> list[Section]:
    """Google's format: lines of four words, in sections that begin with `: name`."""
    sections: list[Section] = []
    problems: list[tuple[str, str]] = []
    for number, line in _lines(path, "analogies"):
        words = line.split()
        if words[0].startswith(":"):
            sections.append(Section(" ".join([words[0][1:], *words[1:]]).strip() or "questions"))
        elif len(words) != 4:
            problems.append((f"line {number:,}", f'"{line[:60]}" has {len(words)} words and not 4'))
        else:
            if not sections:
                sections.append(Section("questions"))
            sections[-1].questions.append(words)
    if problems:
        raise UserError(f"{path} is no file of analogies: each line must have four words, or begin a section with :",
                        first_problems(problems))
    if not any(section.questions for section in sections):
        raise UserError(f"{path} has no analogies; each line must have four words, such as `Athens Greece Oslo "
                        "Norway`.")
    return sections


def solve(vectors: WordVectors, a: str, b: str, c: str, top: int = 10) -> list[Neighbor]:
    """The words that are to c what b is to a: nearest to b - a + c (3CosAdd, arXiv:1301.3781)."""
    one, two, three = (normalize(vectors.require_vector(word)[None]) for word in (a, b, c))
    return vectors.nearest(two - one + three, top, [[a, b, c]])[0]


def analogy_accuracy(vectors: WordVectors, sections: Sequence[Section], limit: int | None = None) -> dict[str, Any]:
    """The share of questions whose fourth word is the answer, by section. A question with a word that has no vector is
    counted as unknown and not as wrong. `limit`: only the first words of the file are known, as answers and
    questions."""
    if limit is not None:
        vectors = vectors.first(limit)
    results: dict[str, dict[str, Any]] = {}
    for section in sections:
        rows = np.array([[-1 if (row := vectors.find(word)) is None else row for word in question]
                         for question in section.questions], np.int64).reshape(-1, 4)
        known = rows[(rows >= 0).all(1)]
        correct = int(_correct(vectors, known).sum())
        results[section.name] = {"accuracy": correct / len(known) if len(known) else None, "correct": correct,
                                 "questions": len(known), "unknown": len(rows) - len(known)}
    correct, questions, unknown = (sum(result[key] for result in results.values())
                                   for key in ("correct", "questions", "unknown"))
    return {"accuracy": correct / questions if questions else None, "correct": correct, "questions": questions,
            "unknown": unknown, "sections": results}


def _correct(vectors: WordVectors, rows: np.ndarray) -> np.ndarray:
    """(questions, 4) rows -> whether the answer is found."""
    unit, parts = vectors.unit, [np.zeros(0, bool)]
    for start in range(0, len(rows), QUESTIONS_AT_ONCE):
        part = rows[start:start + QUESTIONS_AT_ONCE]
        a, b, c, d = part.T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        np.put_along_axis(scores, part[:, :3], -np.inf, axis=1)
        parts.append(scores.argmax(1) == d)
    return np.concatenate(parts)


def read_pairs(path: str | Path) -> list[tuple[str, str, float]]:
    """Two words and a score on each line, separated by tabs, commas or spaces; the score is the first number after the
    words (SimLex-999 has the part of speech before it). A title line and lines that begin with # are skipped."""
    pairs: list[tuple[str, str, float]] = []
    problems: list[tuple[str, str]] = []
    first = True
    for number, line in _lines(path, "word pairs"):
        if line.startswith("#"):
            continue
        separator = next((mark for mark in "\t,;" if mark in line), None)
        fields = [part.strip() for part in line.split(separator)]
        score = next((value for part in fields[2:] if (value := _number(part)) is not None), None)
        if score is not None and fields[0] and fields[1]:
            pairs.append((fields[0], fields[1], score))
        elif not first:
            problems.append((f"line {number:,}", f'"{line[:60]}" has no two words and a number'))
        first = False
    if problems:
        raise UserError(f"{path} has broken lines; each must have two words and a score", first_problems(problems))
    if len(pairs) < 2:
        raise UserError(f"{path} has fewer than two word pairs; each line must have two words and a score.")
    return pairs


def similarity_scores(vectors: WordVectors, pairs: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    """Spearman's and Pearson's correlation of cosines with the judgements. Pairs with a word that has no vector are
    counted as unknown and left out."""
    from scipy import stats

    one, known_one = vectors.for_words([pair[0] for pair in pairs])
    other, known_other = vectors.for_words([pair[1] for pair in pairs])
    known = known_one & known_other
    cosines = (normalize(one[known]) * normalize(other[known])).sum(1)
    scores = np.array([pair[2] for pair in pairs])[known]
    result: dict[str, Any] = {"spearman": None, "pearson": None, "pairs": int(known.sum()),
                              "unknown": int((~known).sum())}
    if len(scores) >= 2 and np.ptp(scores) > 0 and np.ptp(cosines) > 0:
        result |= {"spearman": float(stats.spearmanr(cosines, scores)[0]),
                   "pearson": float(stats.pearsonr(cosines, scores)[0])}
    return result


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _lines(path: str | Path, what: str) -> list[tuple[int, str]]:
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file of {what} {path}.")
    lines = "".join(read_text(path)).splitlines()
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
