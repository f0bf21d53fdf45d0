"""How near a written text comes to what people wrote: the scores of `stemma.tasks.scores`, one by one, in percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stemma.tasks.metrics.bleu_rouge import summary_scores, translation_scores
from stemma.tasks.metrics.metric import Metric, mean_metric
from stemma.text.chinese_words import CJK_RUN


@dataclass(frozen=True)
class TextInputs:
    predicted: list[str]
    gold: list[list[str]]  # the references of each text
    tokenize: str

    def references(self) -> list[list[str]]:
        """`[k][i]`, the k-th of text i; one with fewer has its first several times, which changes no score."""
        most = max(len(right) for right in self.gold)
        return [[right[number] if number < len(right) else right[0] for right in self.gold] for number in range(most)]


def metric_inputs(gold: Sequence[str | Sequence[str]], predicted: Sequence[str], *,
                  tokenize: str | None = None) -> TextInputs:
    """A text has one reference or several; BLEU parts Chinese into characters unless `tokenize` says otherwise."""
    right = [[one] if isinstance(one, str) else list(one) for one in gold]
    letters = "".join(one[0] for one in right)
    chinese = sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2
    return TextInputs(list(predicted), right, tokenize or ("zh" if chinese else "13a"))


def bleu(case: TextInputs) -> float:
    return float(translation_scores(case.predicted, case.references(), tokenize=case.tokenize)["bleu"]["score"])


def chrf(case: TextInputs) -> float:
    return float(translation_scores(case.predicted, case.references(), tokenize=case.tokenize)["chrf"]["score"])


def rouge_l(case: TextInputs) -> float:
    return float(summary_scores(case.predicted, case.references())["rougeL"])


def matches_reference(case: TextInputs) -> np.ndarray:
    return np.array([said.strip() in [one.strip() for one in right]
                     for said, right in zip(case.predicted, case.gold, strict=True)], dtype=np.float64)


METRICS = (
    Metric("bleu", "texts", "BLEU by sacrebleu", bleu, None, requires="sacrebleu.metrics", scale=100),
    Metric("chrf", "texts", "chrF by sacrebleu", chrf, None, requires="sacrebleu.metrics", scale=100),
    Metric("rouge_l", "texts", "F1 of ROUGE-L by rouge-score", rouge_l, None, requires="rouge_score.rouge_scorer",
           scale=100),
    mean_metric("exact_match", "texts", "share of texts like a reference, in percent", matches_reference, scale=100),
)
