"""How near a written answer comes to the right one, as SQuAD counts it (arXiv:1606.05250): case, punctuation and
articles do not matter; the best of several right answers counts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    bare = answer.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(said: str, right: Sequence[str]) -> bool:
    return any(normalise(said) == normalise(one) for one in right)


def f1(said: str, right: Sequence[str]) -> float:
    return max(_overlap(normalise(said).split(), normalise(one).split()) for one in right)


def _overlap(said: list[str], right: list[str]) -> float:
    if not said or not right:  # no answer is right only where there is none
        return float(said == right)
    shared = sum((Counter(said) & Counter(right)).values())
    return 2 * shared / (len(said) + len(right))
