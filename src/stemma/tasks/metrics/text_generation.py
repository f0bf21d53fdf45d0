"""Metrics of generated text, in percent: BLEU, chrF and ROUGE (`bleu_rouge.py`), and exact match."""

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
        """`[k][i]` is the k-th reference of text i. Missing ones repeat the first, which changes no score."""
        count = max(len(references) for references in self.gold)
        return [[references[k] if k < len(references) else references[0] for references in self.gold]
                for k in range(count)]


def metric_inputs(gold: Sequence[str | Sequence[str]], predicted: Sequence[str], *,
                  tokenize: str | None = None) -> TextInputs:
    """A text has one or several references. By default, BLEU splits Chinese text into characters."""
    references = [[entry] if isinstance(entry, str) else list(entry) for entry in gold]
    letters = "".join(texts[0] for texts in references)
    chinese = sum(len(run[0]) for run in CJK_RUN.finditer(letters)) > len(letters) / 2
    return TextInputs(list(predicted), references, tokenize or ("zh" if chinese else "13a"))


def bleu(inputs: TextInputs) -> float:
    return float(translation_scores(inputs.predicted, inputs.references(), tokenize=inputs.tokenize)["bleu"]["score"])


def chrf(inputs: TextInputs) -> float:
    return float(translation_scores(inputs.predicted, inputs.references(), tokenize=inputs.tokenize)["chrf"]["score"])


def rouge_l(inputs: TextInputs) -> float:
    return float(summary_scores(inputs.predicted, inputs.references())["rougeL"])


def matches_reference(inputs: TextInputs) -> np.ndarray:
    return np.array([text.strip() in [reference.strip() for reference in references]
                     for text, references in zip(inputs.predicted, inputs.gold, strict=True)], dtype=np.float64)


METRICS = (
    Metric("bleu", "texts", "BLEU by sacrebleu", bleu, None, requires="sacrebleu.metrics", scale=100),
    Metric("chrf", "texts", "chrF by sacrebleu", chrf, None, requires="sacrebleu.metrics", scale=100),
    Metric("rouge_l", "texts", "F1 of ROUGE-L by rouge-score", rouge_l, None, requires="rouge_score.rouge_scorer",
           scale=100),
    mean_metric("exact_match", "texts", "fraction of texts equal to a reference, in percent", matches_reference,
                scale=100),
)
