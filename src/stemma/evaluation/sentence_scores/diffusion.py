"""Bound on the log-likelihood of sentences under a masked diffusion model (MDLM, arXiv:2406.07524)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stemma.evaluation.diffusion_bound import DiffusionScorer, bound_tokens
from stemma.evaluation.sentence_scores.masked_rows import OnProgress, check_lengths
from stemma.model import Model
from stemma.registry import register
from stemma.schema.objective import ObjectiveSettings

SAMPLES = 32  # masks per sentence; the two sentences of a pair have masks of their own


@register("sentence_score", "bound")
def bound(model: Model, objective: ObjectiveSettings, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    """Minus the bound that `stemma perplexity` computes."""
    tokenizer, scorer = model.require_tokenizer(), DiffusionScorer(model, samples=SAMPLES)
    ids = [np.array(tokenizer.encode(text, special=False).ids, dtype=np.int64) for text in texts]
    check_lengths(model, texts, [len(each) for each in ids], scorer.capacity)
    scores = [float(result.log_probabilities.sum()) for result in bound_tokens(scorer, ids)]
    on_progress(len(texts))
    return np.array(scores)
