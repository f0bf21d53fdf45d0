"""Pseudo-log-likelihood of masked and permuted language models.

- masked: each token is replaced by the mask token in turn and predicted from all others (arXiv:1910.14659), at its own
  position or at the one before it (masked next-token prediction).
- permuted: each token comes last in the factorization order, so the query stream predicts it from all others
  (XLNet, arXiv:1906.08237). Training predicts one token in six with the rest as context; left-to-right scoring
  (kind `causal`) is further from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stemma.evaluation.sentence_scores.masked_rows import (
    MaskedBatch,
    OnProgress,
    SentenceRow,
    check_lengths,
    pseudo_log_likelihoods,
)
from stemma.generation.decoding_mode import max_input_tokens
from stemma.model import Model
from stemma.network.inputs_outputs import QUERY
from stemma.registry import register
from stemma.schema.objective import ObjectiveSettings
from stemma.tasks.objectives.input_encoder import InputEncoder


@register("sentence_score", "masked")
def masked(model: Model, objective: ObjectiveSettings, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    mask_id = model.require_tokenizer().special_id("mask")

    def target_states(batch: MaskedBatch) -> Tensor:
        stream = model.encoder_stream(batch.masked(mask_id), None, batch.segment_ids)
        index = batch.flat_columns() - objective.target_shift
        return model.network({"encoder": replace(stream, output_positions=index)})["encoder"].flatten(0, 1)[index]

    excluded = None if objective.predicts_mask_token else mask_id
    return pseudo_log_likelihoods(model, encoder_rows(model, objective, texts), target_states, on_progress, excluded)


@register("sentence_score", "permuted")
def permuted(model: Model, objective: ObjectiveSettings, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    def target_states(batch: MaskedBatch) -> Tensor:
        visible = torch.ones_like(batch.ids, dtype=torch.bool).scatter(1, batch.columns[:, None], False)
        stream = model.encoder_stream(batch.ids, visible, batch.segment_ids)
        return model.network({"encoder": replace(stream, query_positions=batch.columns[:, None])})[QUERY][:, 0]

    return pseudo_log_likelihoods(model, encoder_rows(model, objective, texts), target_states, on_progress)


def encoder_rows(model: Model, objective: ObjectiveSettings, texts: Sequence[str]) -> list[SentenceRow]:
    """Each sentence with the special tokens of the objective's template."""
    tokenizer, corpus = model.require_tokenizer(), model.recipe.settings.corpus
    encoder = InputEncoder(tokenizer, objective.single or corpus.single, objective.pair or corpus.pair,
                           max_input_tokens(model) or 2**31)
    all_ids = encoder.encode_texts(texts)
    check_lengths(model, texts, [len(ids) for ids in all_ids], encoder.text_capacity(1))
    rows = []
    for ids in all_ids:
        sequence = encoder.build_sequence([ids])
        rows.append(SentenceRow(sequence.input_ids, sequence.segment_ids, *sequence.text_spans[0]))
    return rows
