"""Pseudo-log-likelihood of encoder-decoders, each by the task that it was trained on, with one token missing.

- infilling: a gap takes the place of the token in the source. The decoder of T5 (arXiv:1910.10683) predicts it after
  the sentinel of the gap; the decoder of BART (arXiv:1910.13461) writes the whole sentence again, and the token is
  scored after those before it.
- masked_span: a span of one token is masked in the source, and the decoder predicts it at its position (MASS,
  arXiv:1905.02450).
"""

from __future__ import annotations

from collections.abc import Sequence

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
from stemma.generation.decoding_mode import decoding_spec
from stemma.model import Model
from stemma.network.inputs_outputs import Stream
from stemma.registry import register
from stemma.schema.objective import ObjectiveSettings
from stemma.visibility import Bidirectional, Causal


@register("sentence_score", "infilling")
def infilling(model: Model, objective: ObjectiveSettings, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    assert objective.generation is not None and objective.generation.gap is not None
    gap = objective.generation.gap
    gap_id = model.require_tokenizer().special_id(gap.special_token)
    rows, decoder_prefix = _source_rows(model, texts)

    def target_states(batch: MaskedBatch) -> Tensor:
        prefix = batch.ids.new_tensor(decoder_prefix).expand(len(batch.ids), -1)
        if not gap.repeats_text:
            ids = torch.cat([prefix, torch.full_like(prefix[:, :1], gap_id)], 1)
            return _decode(model, batch.masked(gap_id), ids)[:, -1]
        longest = int(batch.text_index.max())  # tokens before the one to predict
        columns = batch.text_start[:, None] + torch.arange(longest, device=batch.ids.device)
        # tokens after the predicted one are not attended to; the clamp only keeps the index valid
        ids = torch.cat([prefix, batch.ids.gather(1, columns.clamp(max=batch.ids.shape[1] - 1))], 1)
        hidden = _decode(model, batch.masked(gap_id), ids)
        return hidden[torch.arange(len(ids), device=ids.device), len(decoder_prefix) - 1 + batch.text_index]

    return pseudo_log_likelihoods(model, rows, target_states, on_progress)


@register("sentence_score", "masked_span")
def masked_span(model: Model, objective: ObjectiveSettings, texts: Sequence[str],
                on_progress: OnProgress) -> np.ndarray:
    mask_id = model.require_tokenizer().special_id("mask")
    rows, _ = _source_rows(model, texts)

    def target_states(batch: MaskedBatch) -> Tensor:
        columns = batch.columns[:, None]
        return _decode(model, batch.masked(mask_id), torch.full_like(columns, mask_id), columns)[:, -1]

    return pseudo_log_likelihoods(model, rows, target_states, on_progress)


def _source_rows(model: Model, texts: Sequence[str]) -> tuple[list[SentenceRow], tuple[int, ...]]:
    """Each sentence in the format of a source, and what the decoder reads before the sentence."""
    spec = decoding_spec(model)
    assert spec is not None
    all_ids = [encoding.ids for encoding in model.require_tokenizer().encode_batch(list(texts), special=False)]
    capacity = spec.max_prompt_tokens
    if capacity is not None and spec.max_length is not None:
        capacity = min(capacity, spec.max_length - len(spec.decoder_prefix) + 1)
    check_lengths(model, texts, [len(ids) for ids in all_ids], capacity)
    start = [token for token, _ in spec.prompt_template].index(None)
    rows = []
    for ids in all_ids:
        row = np.array(spec.format_prompt(ids), np.int64)
        rows.append(SentenceRow(row, np.zeros_like(row), start, len(ids)))
    return rows, spec.decoder_prefix


def _decode(model: Model, source: Tensor, decoder_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """(B, L), (B, D) -> (B, D, width) hidden states of the decoder."""
    streams = {"encoder": Stream(source, Bidirectional()), "decoder": Stream(decoder_ids, Causal(), position_ids)}
    return model.network(streams)["decoder"]
