"""How near an extracted answer comes to the right ones, each data set by the rules of its official script.

- `squad` (evaluate-v1.1.py, arXiv:1606.05250): case, punctuation and articles do not matter; F1 over words.
- `squad2` (evaluate-v2.0.py, arXiv:1806.03822): the same, and a question may have no answer, to which only an empty
  answer is right; the threshold above which a model had better say nothing is searched as there.
- `cmrc` (cmrc2018_evaluate.py, arXiv:1810.07366): Chinese by characters, everything else by NLTK's words; F1 over the
  longest run that both answers share. DRCD publishes no script and is scored in this way (github.com/ymcui/cmrc2018).
- `cjrc` (CAIL 2019, arXiv:1912.09156): letters and digits only, F1 over characters; of several right answers each in
  turn is left out, and the scores are averaged, since people were scored so too.

Scores are in percent, as the scripts print them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stemma.errors import UserError, did_you_mean
from stemma.tasks.answers import exact_match, f1, normalise
from stemma.tasks.metrics.library import library
from stemma.tasks.metrics.metric import averaged
from stemma.text.words import CJK_RUN

# CMRC's own list: it lacks the opening single quote and a single ellipsis
CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CMRC_SEGMENT = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
Scores = tuple[float, float]  # exact match and F1 of one answer, in 0..1


def squad(said: str, right: Sequence[str]) -> Scores:
    """Answers without any word share none, so two of them match exactly and have an F1 of 0."""
    return float(exact_match(said, right)), f1(said, right) if normalise(said) else 0.0


def squad2(said: str, right: Sequence[str]) -> Scores:
    real = [one for one in right if normalise(one)] or [""]
    return float(exact_match(said, real)), f1(said, real)


def cmrc(said: str, right: Sequence[str]) -> Scores:
    """A question without an answer, which CMRC does not have, is treated as in SQuAD 2.0."""
    bare = _cmrc_bare(said)
    exact = float(any(bare == _cmrc_bare(one) for one in right or [""]))
    if not right:
        return exact, exact
    segments = _cmrc_segments(bare)
    return exact, max(_shared_run(segments, _cmrc_segments(_cmrc_bare(one))) for one in right)


def cjrc(said: str, right: Sequence[str]) -> Scores:
    letters, *others = ["".join(letter for letter in text.lower() if letter.isdigit() or letter.isalpha())
                        for text in (said, *(right or [""]))]
    return (_leaving_one_out([float(letters == one) for one in others]),
            _leaving_one_out([_shared_letters(letters, one) for one in others]))


STYLES: dict[str, Callable[[str, Sequence[str]], Scores]] = {"squad": squad, "squad2": squad2, "cmrc": cmrc,
                                                             "cjrc": cjrc}


@dataclass(frozen=True)
class Judged:
    """One value a question."""

    exact: np.ndarray
    f1: np.ndarray
    answerable: np.ndarray
    silent: np.ndarray  # whether the model said nothing of its own accord
    no_answer: np.ndarray | None
    threshold: float | None

    def counted(self, scores: np.ndarray) -> np.ndarray:
        """What counts once the model says nothing wherever no_answer is above the threshold."""
        if self.threshold is None or self.no_answer is None:
            return scores
        return np.where(self.no_answer > self.threshold, ~self.answerable, scores)


def prepare(gold: Sequence[Sequence[str]], predicted: Sequence[str], *, style: str | None = None,
            no_answer: Sequence[float] | None = None, threshold: float | None = None) -> Judged:
    """`gold` are the right answers of each question, none where it has no answer; "" predicts that there is none.

    `no_answer` says how sure a model is that there is none: probabilities, for 0 is the threshold of whoever had better
    answer nothing at all."""
    style = style or style_of(gold)
    if style not in STYLES:
        raise UserError(f'no way "{style}" to compare answers; choose {", ".join(STYLES)}.'
                        f"{did_you_mean(style, STYLES)}")
    empty = sum(not right for right in gold)
    if style == "squad" and empty:
        raise UserError(f"{empty:,} of {len(gold):,} questions have no answer, which SQuAD 1.1 does not know; compare "
                        'answers as in "squad2".')
    if no_answer is not None and len(no_answer) != len(gold):
        raise UserError(f"there are {len(gold):,} questions and {len(no_answer):,} no-answer scores; each needs one.")
    if threshold is not None and no_answer is None:
        raise UserError("a no-answer threshold needs the no-answer scores of the questions.")
    exact, near = np.array([STYLES[style](said, right) for said, right in zip(predicted, gold, strict=True)]).T
    return Judged(exact, near, np.array([bool(right) for right in gold]), np.array([not said for said in predicted]),
                  None if no_answer is None else np.asarray(no_answer, dtype=np.float64), threshold)


def style_of(gold: Sequence[Sequence[str]]) -> str:
    """`cmrc` where most of the answers' letters are Chinese (digits say nothing), else `squad2` where a question has no
    answer."""
    letters = "".join(letter for right in gold for one in right for letter in one if letter.isalpha())
    if sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2:
        return "cmrc"
    return "squad" if all(gold) else "squad2"


def answer_table(gold: Sequence[Sequence[str]], predicted: Sequence[str], **extras: Any) -> dict[str, float]:
    """What the official script of SQuAD 2.0 prints, with its names (its `exact` is our `exact_match`): the parts with
    and without an answer where a question has none, and the best thresholds where there are no-answer scores."""
    case = prepare(gold, predicted, **extras)
    exact, near = case.counted(case.exact), case.counted(case.f1)
    table: dict[str, float] = {"exact_match": 100 * float(exact.mean()), "f1": 100 * float(near.mean()),
                               "total": len(exact)}
    if not case.answerable.all():
        for name, which in (("HasAns", case.answerable), ("NoAns", ~case.answerable)):
            if which.any():
                table |= {f"{name}_exact": 100 * float(exact[which].mean()),
                          f"{name}_f1": 100 * float(near[which].mean()), f"{name}_total": int(which.sum())}
    if case.no_answer is not None:
        for name, scores in (("exact", case.exact), ("f1", case.f1)):
            table[f"best_{name}"], table[f"best_{name}_thresh"] = best_threshold(case, scores)
    return table


def best_threshold(case: Judged, scores: np.ndarray) -> tuple[float, float]:
    """The best score in percent, and the no-answer threshold that reaches it.

    From saying nothing at all, questions are answered one by one, the surest first. As in the official script,
    questions that are equally sure come in the order given and a threshold may fall between them."""
    if case.no_answer is None:
        raise UserError("a threshold is found among the no-answer scores of the questions; give them.")
    order = np.argsort(case.no_answer, kind="stable")
    gains = np.where(case.answerable, scores, np.where(case.silent, 0.0, -1.0))[order]
    running = np.cumsum([float((~case.answerable).sum()), *gains])
    best = int(np.argmax(running))  # the first of several that are as good
    return 100 * float(running[best]) / len(scores), float(case.no_answer[order[best - 1]]) if best else 0.0


def _cmrc_bare(text: str) -> str:
    return text.lower().strip().translate(CMRC_PUNCTUATION)


def _cmrc_segments(bare: str) -> list[str]:
    """The script also parts sentences first, by a model that NLTK must download; without it a full stop within a run of
    Latin text stays with its word."""
    segments: list[str] = []
    for piece in CMRC_SEGMENT.findall(bare):
        chinese = "\u4e00" <= piece <= "\u9fa5"  # a character of its own
        segments += [piece] if chinese else library("nltk.tokenize").NLTKWordTokenizer().tokenize(piece)
    return segments


def _shared_run(left: list[str], right: list[str]) -> float:
    """F1 of the longest run of segments that both have."""
    longest, ending = 0, [0] * (len(right) + 1)  # the shared run that ends before each segment of `right`
    for segment in left:
        ending = [0, *(length + 1 if segment == other else 0 for length, other in zip(ending, right, strict=False))]
        longest = max(longest, *ending)
    return 2 * longest / (len(left) + len(right)) if longest else 0.0


def _shared_letters(left: str, right: str) -> float:
    if not left or not right:
        return float(left == right)
    return 2 * (Counter(left) & Counter(right)).total() / (len(left) + len(right))


def _leaving_one_out(scores: list[float]) -> float:
    if len(scores) == 1:
        return scores[0]
    return float(np.mean([max(scores[:number] + scores[number + 1:]) for number in range(len(scores))]))


METRICS = (
    averaged("exact_match", "spans", "share of answers like a right one, in percent",
             lambda case: case.counted(case.exact), scale=100),
    averaged("f1", "spans", "mean overlap with the nearest right answer, in percent",
             lambda case: case.counted(case.f1), scale=100),
)
