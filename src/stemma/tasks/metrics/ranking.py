"""How high the right candidates of a query stand: MAP, MRR and precision at 1, as trec_eval counts them.

- A candidate is relevant from a grade of 1 on.
- A query without a relevant candidate counts as 0 (trec_eval since version 8; older ones and some papers leave it out).
- Candidates with equal scores are ordered by their ids, the greatest first, where there are ids. Without ids the
  irrelevant come first, so that a model which always says the same gains nothing from the order of a file.

Rules: https://github.com/usnistgov/trec_eval (form_res_rels.c, m_map.c, README).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stemma.errors import UserError
from stemma.tasks.metrics.metric import mean_metric
from stemma.tasks.metrics.regression import require_finite


@dataclass(frozen=True)
class RankingScores:
    """One value a query."""

    average_precision: np.ndarray
    reciprocal_rank: np.ndarray
    precision_at_1: np.ndarray  # whether a relevant candidate stands first


def metric_inputs(gold: Sequence[Any], predicted: Sequence[float], *, groups: Sequence[str | None],
            ids: Sequence[str] | None = None) -> RankingScores:
    """`gold` are grades and `predicted` scores, one a candidate; `groups` says whose candidate it is."""
    for name, values in (("queries", groups), ("ids", ids)):
        if values is not None and len(values) != len(gold):
            raise UserError(f"there are {len(gold):,} candidates and {len(values):,} {name}; each needs one.")
    nobody = sum(group is None for group in groups)
    if nobody:
        raise UserError(f"{nobody:,} of {len(groups):,} candidates belong to no query; a ranking needs the query of "
                        "each.")
    relevant = require_finite(gold, "grades") >= 1
    scores = require_finite(predicted, "scores")
    # the one that comes later in a comparison stands higher: see the rules above
    ties: Sequence[Any] = [one.encode() for one in ids] if ids is not None else (~relevant).tolist()
    queries: dict[str | None, list[int]] = {}
    for number, group in enumerate(groups):
        queries.setdefault(group, []).append(number)
    rows = []
    for members in queries.values():
        order = sorted(members, key=lambda number: (scores[number], ties[number]), reverse=True)
        places = np.flatnonzero(relevant[order]) + 1
        found = np.arange(1, len(places) + 1)
        rows.append((float(np.mean(found / places)), 1 / places[0], places[0] == 1) if len(places) else (0, 0, 0))
    table = np.array(rows, dtype=np.float64)
    return RankingScores(*table.T)


METRICS = (
    mean_metric("map", "scores", "mean average precision of the relevant candidates",
                lambda case: case.average_precision),
    mean_metric("mrr", "scores", "mean reciprocal rank of the first relevant candidate",
             lambda case: case.reciprocal_rank),
    mean_metric("precision_at_1", "scores", "share of queries with a relevant candidate on top",
                lambda case: case.first),
)
