"""Ranking metrics: MAP, MRR and precision at 1, as in trec_eval.

- A candidate is relevant if its grade is at least 1.
- A query without a relevant candidate counts as 0 (trec_eval since version 8; older ones and some papers leave it out).
- Ties are broken by descending id if there are ids. Without ids, irrelevant candidates come first, so a constant model
  gains nothing from the order of the file.

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
    """Scores of each query."""

    average_precision: np.ndarray
    reciprocal_rank: np.ndarray
    precision_at_1: np.ndarray  # whether the top candidate is relevant


def metric_inputs(gold: Sequence[Any], predicted: Sequence[float], *, groups: Sequence[str | None],
                  ids: Sequence[str] | None = None) -> RankingScores:
    """`gold` are grades and `predicted` are scores, one per candidate; `groups` holds the query of each candidate."""
    for name, values in (("queries", groups), ("ids", ids)):
        if values is not None and len(values) != len(gold):
            raise UserError(f"there are {len(gold):,} candidates and {len(values):,} {name}; each needs one.")
    without_query = sum(group is None for group in groups)
    if without_query:
        raise UserError(f"{without_query:,} of {len(groups):,} candidates belong to no query; a ranking needs the "
                        "query of each.")
    relevant = require_finite(gold, "grades") >= 1
    scores = require_finite(predicted, "scores")
    # candidates with equal scores are sorted by descending tie key: see the rules above
    ties: Sequence[Any] = [candidate_id.encode() for candidate_id in ids] if ids is not None else (~relevant).tolist()
    queries: dict[str | None, list[int]] = {}
    for index, group in enumerate(groups):
        queries.setdefault(group, []).append(index)
    rows = []
    for members in queries.values():
        order = sorted(members, key=lambda index: (scores[index], ties[index]), reverse=True)
        ranks = np.flatnonzero(relevant[order]) + 1  # of the relevant candidates
        hits = np.arange(1, len(ranks) + 1)
        rows.append((float(np.mean(hits / ranks)), 1 / ranks[0], ranks[0] == 1) if len(ranks) else (0, 0, 0))
    table = np.array(rows, dtype=np.float64)
    return RankingScores(*table.T)


METRICS = (
    mean_metric("map", "scores", "mean average precision of the relevant candidates",
                lambda inputs: inputs.average_precision),
    mean_metric("mrr", "scores", "mean reciprocal rank of the first relevant candidate",
                lambda inputs: inputs.reciprocal_rank),
    mean_metric("precision_at_1", "scores", "fraction of queries whose top candidate is relevant",
                lambda inputs: inputs.precision_at_1),
)
