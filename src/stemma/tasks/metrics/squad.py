"""Exact match and F1 of an answer as in SQuAD (arXiv:1606.05250): case, punctuation and articles are ignored, and the
best matching gold answer counts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(answer: str) -> str:
    text = answer.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(predicted: str, gold: Sequence[str]) -> bool:
    return any(normalize_answer(predicted) == normalize_answer(answer) for answer in gold)


def token_f1(predicted: str, gold: Sequence[str]) -> float:
    return max(_single_f1(normalize_answer(predicted).split(), normalize_answer(answer).split()) for answer in gold)


def _single_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:  # an empty prediction is correct only for an empty gold answer
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))
