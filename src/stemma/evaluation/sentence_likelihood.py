"""Log-likelihood, or pseudo-log-likelihood, of sentences under any model that has one.

How a model scores a sentence is declared by its body or its objectives (`sentence_scores`), as kinds of the slot
`sentence_score`: functions of (model, objective, texts, on_progress) that return (texts,) nats. A new objective
declares a kind, which may be its own; nothing here tests for families.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stemma import registry
from stemma.errors import UserError, did_you_mean
from stemma.model import Model
from stemma.schema.objective import ObjectiveSettings


def sentence_score_kinds(model: Model) -> dict[str, ObjectiveSettings]:
    """The ways in which this model scores a sentence, its default first, each with the objective that declares it."""
    settings = model.recipe.settings
    objectives = list(settings.objective.values())
    if (own := settings.network.depth.sentence_scores) and objectives:
        return dict.fromkeys(own, objectives[0])
    kinds: dict[str, ObjectiveSettings] = {}
    for objective in objectives:
        for kind in objective.sentence_scores[:1]:  # each objective's first choice comes before any second choice
            kinds.setdefault(kind, objective)
    for objective in objectives:
        for kind in objective.sentence_scores[1:]:
            kinds.setdefault(kind, objective)
    return kinds


def choose_sentence_score(model: Model, kind: str | None = None) -> str:
    """The kind to score with: the given one, or the model's default. A model without a likelihood is refused."""
    if model.is_discriminator:
        raise UserError(f"this {model.recipe.title} model is a discriminator, which has no likelihood: it judges "
                        "tokens and does not predict them; score its generator, in the folder generator/ below the "
                        "model's.")
    model.lm_head()
    kinds = sentence_score_kinds(model)
    if not kinds:
        raise UserError(f"{model.recipe.label} does not score sentences: none of its objectives "
                        f"({', '.join(model.recipe.settings.objective)}) gives a sentence alone a likelihood; use a "
                        "causal, masked, permuted, prefix or infilling model.")
    if kind is not None and kind not in kinds:
        raise UserError(f'{model.recipe.label} has no scoring "{kind}"; it has {", ".join(kinds)}.'
                        f"{did_you_mean(kind, kinds)}")
    return next(iter(kinds)) if kind is None else kind


def sentence_log_likelihoods(model: Model, texts: Sequence[str], kind: str | None = None,
                             on_progress: Callable[[int], None] = lambda sentences: None) -> np.ndarray:
    """(texts,) log-likelihood of each sentence in nats; equal sentences are computed once.

    `kind` is one of `sentence_score_kinds(model)`; pseudo-log-likelihoods (masked, permuted, infilling, masked_span)
    are sums of log-probabilities that are no probability of the whole sentence. Compare sentences of one kind only.
    """
    kind = choose_sentence_score(model, kind)
    objective = sentence_score_kinds(model)[kind]
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return np.zeros(0)
    values = registry.get("sentence_score", kind).build(model.in_eval_mode(), objective, distinct, on_progress)
    by_text = dict(zip(distinct, values.tolist(), strict=True))
    return np.array([by_text[text] for text in texts])
