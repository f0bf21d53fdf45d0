"""Exact match and F1 of extracted answers, with the rules of each data set's official script.

- `squad` (evaluate-v1.1.py, arXiv:1606.05250): ignores case, punctuation and articles; F1 over words.
- `squad2` (evaluate-v2.0.py, arXiv:1806.03822): the same, with unanswerable questions, for which only the empty answer
  is correct; the best no-answer threshold is searched as in the script.
- `cmrc` (cmrc2018_evaluate.py, arXiv:1810.07366): Chinese by characters, other text by NLTK words; F1 over the longest
  common span. DRCD publishes no script and is scored the same way (github.com/ymcui/cmrc2018).
- `cjrc` (CAIL 2019, arXiv:1912.09156): letters and digits only, F1 over characters; with several gold answers, each is
  left out in turn and the scores are averaged, since human performance was measured that way.

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
    """An answer that normalizes to nothing has F1 0, even if it matches exactly."""
    return float(exact_match(predicted, gold)), token_f1(predicted, gold) if normalize_answer(predicted) else 0.0


def squad2(predicted: str, gold: Sequence[str]) -> Scores:
    nonempty = [answer for answer in gold if normalize_answer(answer)] or [""]
    return float(exact_match(predicted, nonempty)), token_f1(predicted, nonempty)


def cmrc(predicted: str, gold: Sequence[str]) -> Scores:
    """CMRC has no unanswerable questions; they are scored as in SQuAD 2.0."""
    normalized = _cmrc_normalize(predicted)
    exact = float(any(normalized == _cmrc_normalize(answer) for answer in gold or [""]))
    if not gold:
        return exact, exact
    segments = _cmrc_segments(normalized)
    return exact, max(_longest_common_f1(segments, _cmrc_segments(_cmrc_normalize(answer))) for answer in gold)


def cjrc(predicted: str, gold: Sequence[str]) -> Scores:
    letters, *gold_letters = ["".join(letter for letter in text.lower() if letter.isdigit() or letter.isalpha())
                              for text in (predicted, *(gold or [""]))]
    return (_best_leaving_one_out([float(letters == answer) for answer in gold_letters]),
            _best_leaving_one_out([_character_f1(letters, answer) for answer in gold_letters]))


ANSWER_MATCHERS: dict[str, Callable[[str, Sequence[str]], Scores]] = {
    "squad": squad, "squad2": squad2, "cmrc": cmrc, "cjrc": cjrc}


@dataclass(frozen=True)
class AnswerScores:
    """Scores of each question."""

    exact: np.ndarray
    f1: np.ndarray
    answerable: np.ndarray
    predicted_no_answer: np.ndarray  # whether the predicted answer is empty
    no_answer: np.ndarray | None
    threshold: float | None

    def with_threshold(self, scores: np.ndarray) -> np.ndarray:
        """The scores when no answer is predicted wherever no_answer exceeds the threshold."""
        if self.threshold is None or self.no_answer is None:
            return scores
        return np.where(self.no_answer > self.threshold, ~self.answerable, scores)


def metric_inputs(gold: Sequence[Sequence[str]], predicted: Sequence[str], *, matching: str | None = None,
                  no_answer: Sequence[float] | None = None, threshold: float | None = None) -> AnswerScores:
    """`gold` lists the gold answers of each question, empty if it is unanswerable; "" predicts no answer.

    `no_answer` is the probability of no answer. The best threshold is 0 if all questions are best left unanswered, so
    the values must not be negative."""
    matching = matching or detect_answer_matching(gold)
    if matching not in ANSWER_MATCHERS:
        raise UserError(f'no way "{matching}" to compare answers; choose {", ".join(ANSWER_MATCHERS)}.'
                        f"{did_you_mean(matching, ANSWER_MATCHERS)}")
    empty = sum(not answers for answers in gold)
    if matching == "squad" and empty:
        raise UserError(f"{empty:,} of {len(gold):,} questions have no answer, which SQuAD 1.1 does not know; compare "
                        'answers as in "squad2".')
    if no_answer is not None and len(no_answer) != len(gold):
        raise UserError(f"there are {len(gold):,} questions and {len(no_answer):,} no-answer scores; each needs one.")
    if threshold is not None and no_answer is None:
        raise UserError("a no-answer threshold needs the no-answer scores of the questions.")
    exact, f1 = np.array([ANSWER_MATCHERS[matching](answer, answers)
                          for answer, answers in zip(predicted, gold, strict=True)]).T
    return AnswerScores(exact, f1, np.array([bool(answers) for answers in gold]),
                        np.array([not answer for answer in predicted]),
                        None if no_answer is None else np.asarray(no_answer, dtype=np.float64), threshold)


def detect_answer_matching(gold: Sequence[Sequence[str]]) -> str:
    """`cmrc` if most letters of the answers are Chinese, else `squad2` if a question is unanswerable, else `squad`."""
    letters = "".join(letter for answers in gold for answer in answers for letter in answer if letter.isalpha())
    if sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2:
        return "cmrc"
    return "squad" if all(gold) else "squad2"


def squad2_summary(gold: Sequence[Sequence[str]], predicted: Sequence[str], **extras: Any) -> dict[str, float]:
    """The output of the official SQuAD 2.0 script, with its names (its `exact` is our `exact_match`): answerable and
    unanswerable questions separately, and the best thresholds if there are no-answer scores."""
    inputs = metric_inputs(gold, predicted, **extras)
    exact, f1 = inputs.with_threshold(inputs.exact), inputs.with_threshold(inputs.f1)
    table: dict[str, float] = {"exact_match": 100 * float(exact.mean()), "f1": 100 * float(f1.mean()),
                               "total": len(exact)}
    if not inputs.answerable.all():
        for name, mask in (("HasAns", inputs.answerable), ("NoAns", ~inputs.answerable)):
            if mask.any():
                table |= {f"{name}_exact": 100 * float(exact[mask].mean()),
                          f"{name}_f1": 100 * float(f1[mask].mean()), f"{name}_total": int(mask.sum())}
    if inputs.no_answer is not None:
        for name, scores in (("exact", inputs.exact), ("f1", inputs.f1)):
            table[f"best_{name}"], table[f"best_{name}_thresh"] = best_threshold(inputs, scores)
    return table


def best_threshold(answer_scores: AnswerScores, scores: np.ndarray) -> tuple[float, float]:
    """The best score in percent, and the no-answer threshold that reaches it.

    Starting with no answers, questions are answered one by one, by increasing no-answer probability. As in the official
    script, ties keep the given order and a threshold may fall between them."""
    if answer_scores.no_answer is None:
        raise UserError("a threshold is found among the no-answer scores of the questions; give them.")
    order = np.argsort(answer_scores.no_answer, kind="stable")
    gains = np.where(answer_scores.answerable, scores, np.where(answer_scores.predicted_no_answer, 0.0, -1.0))[order]
    running = np.cumsum([float((~answer_scores.answerable).sum()), *gains])
    best = int(np.argmax(running))  # the first of equal maxima
    return 100 * float(running[best]) / len(scores), float(answer_scores.no_answer[order[best - 1]]) if best else 0.0


def _cmrc_normalize(text: str) -> str:
    return text.lower().strip().translate(CMRC_PUNCTUATION)


def _cmrc_segments(text: str) -> list[str]:
    """Characters of Chinese and words of other text. The script also splits sentences, with a model of NLTK;
    without it, a full stop within Latin text stays attached to its word."""
    segments: list[str] = []
    for piece in CMRC_SEGMENT.findall(text):
        chinese = "\u4e00" <= piece <= "\u9fa5"  # a single character
        segments += [piece] if chinese else optional_import("nltk.tokenize").NLTKWordTokenizer().tokenize(piece)
    return segments


def _longest_common_f1(left: list[str], right: list[str]) -> float:
    """F1 of the longest common span of segments."""
    longest, ending = 0, [0] * (len(right) + 1)  # length of the common span that ends before each segment of `right`
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
    return float(np.mean([max(scores[:i] + scores[i + 1:]) for i in range(len(scores))]))


METRICS = (
    mean_metric("exact_match", "spans", "fraction of answers that match a gold answer, in percent",
                lambda inputs: inputs.with_threshold(inputs.exact), scale=100),
    mean_metric("f1", "spans", "mean word overlap with the best matching gold answer, in percent",
                lambda inputs: inputs.with_threshold(inputs.f1), scale=100),
)
