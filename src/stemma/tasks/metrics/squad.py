"""How near a written answer comes to the right one, as SQuAD counts it (arXiv:1606.05250): case, punctuation and
articles do not matter; the best of several right answers counts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(answer: str) -> str:
    bare = answer.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(predicted: str, gold: Sequence[str]) -> bool:
    return any(normalize_answer(predicted) == normalize_answer(one) for one in gold)


def token_f1(predicted: str, gold: Sequence[str]) -> float:
    return max(_single_f1(normalize_answer(predicted).split(), normalize_answer(one).split()) for one in gold)


def _single_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:  # no answer is right only where there is none
        return float(predicted == gold)
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold))
