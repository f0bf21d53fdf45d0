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
from stemma.tasks.metrics.metric import mean_metric
from stemma.tasks.metrics.optional_import import optional_import
from stemma.tasks.metrics.squad import exact_match, normalize_answer, token_f1
from stemma.text.chinese_words import CJK_RUN

# CMRC's own list: it lacks the opening single quote and a single ellipsis
CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CMRC_SEGMENT = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
Scores = tuple[float, float]  # exact match and F1 of one answer, in 0..1


def squad(predicted: str, gold: Sequence[str]) -> Scores:
    """Answers without any word share none, so two of them match exactly and have an F1 of 0."""
    return float(exact_match(predicted, gold)), token_f1(predicted, gold) if normalize_answer(predicted) else 0.0


def squad2(predicted: str, gold: Sequence[str]) -> Scores:
    real = [one for one in gold if normalize_answer(one)] or [""]
    return float(exact_match(predicted, real)), token_f1(predicted, real)


def cmrc(predicted: str, gold: Sequence[str]) -> Scores:
    """A question without an answer, which CMRC does not have, is treated as in SQuAD 2.0."""
    bare = _cmrc_normalize(predicted)
    exact = float(any(bare == _cmrc_normalize(one) for one in gold or [""]))
    if not gold:
        return exact, exact
    segments = _cmrc_segments(bare)
    return exact, max(_longest_common_f1(segments, _cmrc_segments(_cmrc_normalize(one))) for one in gold)


def cjrc(predicted: str, gold: Sequence[str]) -> Scores:
    letters, *others = ["".join(letter for letter in text.lower() if letter.isdigit() or letter.isalpha())
                        for text in (predicted, *(gold or [""]))]
    return (_best_leaving_one_out([float(letters == one) for one in others]),
            _best_leaving_one_out([_character_f1(letters, one) for one in others]))


ANSWER_MATCHERS: dict[str, Callable[[str, Sequence[str]], Scores]] = {"squad": squad, "squad2": squad2, "cmrc": cmrc,
                                                             "cjrc": cjrc}


@dataclass(frozen=True)
class AnswerScores:
    """One value a question."""

    exact: np.ndarray
    f1: np.ndarray
    answerable: np.ndarray
    predicted_no_answer: np.ndarray  # whether the model said nothing of its own accord
    no_answer: np.ndarray | None
    threshold: float | None

    def with_threshold(self, scores: np.ndarray) -> np.ndarray:
        """What counts once the model says nothing wherever no_answer is above the threshold."""
        if self.threshold is None or self.no_answer is None:
            return scores
        return np.where(self.no_answer > self.threshold, ~self.answerable, scores)


def metric_inputs(gold: Sequence[Sequence[str]], predicted: Sequence[str], *, matching: str | None = None,
            no_answer: Sequence[float] | None = None, threshold: float | None = None) -> AnswerScores:
    """`gold` are the right answers of each question, none where it has no answer; "" predicts that there is none.

    `no_answer` says how sure a model is that there is none: probabilities, for 0 is the threshold of whoever had better
    answer nothing at all."""
    matching = matching or detect_answer_matching(gold)
    if matching not in ANSWER_MATCHERS:
        raise UserError(f'no way "{matching}" to compare answers; choose {", ".join(ANSWER_MATCHERS)}.'
                        f"{did_you_mean(matching, ANSWER_MATCHERS)}")
    empty = sum(not right for right in gold)
    if matching == "squad" and empty:
        raise UserError(f"{empty:,} of {len(gold):,} questions have no answer, which SQuAD 1.1 does not know; compare "
                        'answers as in "squad2".')
    if no_answer is not None and len(no_answer) != len(gold):
        raise UserError(f"there are {len(gold):,} questions and {len(no_answer):,} no-answer scores; each needs one.")
    if threshold is not None and no_answer is None:
        raise UserError("a no-answer threshold needs the no-answer scores of the questions.")
    exact, near = np.array([ANSWER_MATCHERS[matching](said, right) for said,
                            right in zip(predicted, gold, strict=True)]).T
    return AnswerScores(exact, near, np.array([bool(right) for right in gold]),
                        np.array([not said for said in predicted]),
                  None if no_answer is None else np.asarray(no_answer, dtype=np.float64), threshold)


def detect_answer_matching(gold: Sequence[Sequence[str]]) -> str:
    """`cmrc` where most of the answers' letters are Chinese (digits say nothing), else `squad2` where a question has no
    answer."""
    letters = "".join(letter for right in gold for one in right for letter in one if letter.isalpha())
    if sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2:
        return "cmrc"
    return "squad" if all(gold) else "squad2"


def squad2_summary(gold: Sequence[Sequence[str]], predicted: Sequence[str], **extras: Any) -> dict[str, float]:
    """What the official script of SQuAD 2.0 prints, with its names (its `exact` is our `exact_match`): the parts with
    and without an answer where a question has none, and the best thresholds where there are no-answer scores."""
    case = metric_inputs(gold, predicted, **extras)
    exact, near = case.with_threshold(case.exact), case.with_threshold(case.f1)
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


def best_threshold(answer_scores: AnswerScores, scores: np.ndarray) -> tuple[float, float]:
    """The best score in percent, and the no-answer threshold that reaches it.

    From saying nothing at all, questions are answered one by one, the surest first. As in the official script,
    questions that are equally sure come in the order given and a threshold may fall between them."""
    if answer_scores.no_answer is None:
        raise UserError("a threshold is found among the no-answer scores of the questions; give them.")
    order = np.argsort(answer_scores.no_answer, kind="stable")
    gains = np.where(answer_scores.answerable, scores, np.where(answer_scores.predicted_no_answer, 0.0, -1.0))[order]
    running = np.cumsum([float((~answer_scores.answerable).sum()), *gains])
    best = int(np.argmax(running))  # the first of several that are as good
    return 100 * float(running[best]) / len(scores), float(answer_scores.no_answer[order[best - 1]]) if best else 0.0


def _cmrc_normalize(text: str) -> str:
    return text.lower().strip().translate(CMRC_PUNCTUATION)


def _cmrc_segments(bare: str) -> list[str]:
    """The script also parts sentences first, by a model that NLTK must download; without it a full stop within a run of
    Latin text stays with its word."""
    segments: list[str] = []
    for piece in CMRC_SEGMENT.findall(bare):
        chinese = "\u4e00" <= piece <= "\u9fa5"  # a character of its own
        segments += [piece] if chinese else optional_import("nltk.tokenize").NLTKWordTokenizer().tokenize(piece)
    return segments


def _longest_common_f1(left: list[str], right: list[str]) -> float:
    """F1 of the longest run of segments that both have."""
    longest, ending = 0, [0] * (len(right) + 1)  # the shared run that ends before each segment of `right`
    for segment in left:
        ending = [0, *(length + 1 if segment == other else 0 for length, other in zip(ending, right, strict=False))]
        longest = max(longest, *ending)
    return 2 * longest / (len(left) + len(right)) if longest else 0.0


def _character_f1(left: str, right: str) -> float:
    if not left or not right:
        return float(left == right)
    return 2 * (Counter(left) & Counter(right)).total() / (len(left) + len(right))


def _best_leaving_one_out(scores: list[float]) -> float:
    if len(scores) == 1:
        return scores[0]
    return float(np.mean([max(scores[:number] + scores[number + 1:]) for number in range(len(scores))]))


METRICS = (
    mean_metric("exact_match", "spans", "share of answers like a right one, in percent",
             lambda case: case.with_threshold(case.exact), scale=100),
    mean_metric("f1", "spans", "mean overlap with the nearest right answer, in percent",
             lambda case: case.with_threshold(case.f1), scale=100),
)
