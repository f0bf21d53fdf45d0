"""Class weights of the loss, for imbalanced classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stemma.errors import UserError
from stemma.tasks.kinds import head_task

BALANCED = "balanced"


def class_weights(setting: str, kind: str, labels: Sequence[str], counts: Sequence[int]) -> list[float]:
    """Parse `balanced`, or a number for each class in the order of the labels. `balanced` gives n / (classes * count),
    as in scikit-learn; a class that does not occur has weight 1."""
    if not head_task(kind).has_classes:
        raise UserError(f"--class-weights goes with classes, and {kind} has none; leave it out.")
    if setting == BALANCED:
        present = sum(count > 0 for count in counts)
        return [sum(counts) / (present * count) if count else 1.0 for count in counts]
    try:
        weights = [float(word) for word in setting.split(",")]
    except ValueError as error:
        raise UserError(f'--class-weights is "{setting}"; write balanced, or a number for each of {", ".join(labels)}, '
                        "such as 1,2.5.") from error
    if len(weights) != len(labels):
        raise UserError(f"--class-weights has {len(weights)} number{'s' if len(weights) > 1 else ''}, and there are "
                        f"{len(labels)} classes: {', '.join(labels)}; give one for each, in this order.")
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise UserError(f'--class-weights is "{setting}"; weights are 0 or more, and not all of them 0.')
    return weights
