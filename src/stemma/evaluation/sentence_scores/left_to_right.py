"""Log-likelihood of sentences by the chain rule, for models that predict the next token.

- causal: the sentence after the document separator, as a text begins in training.
- after_first: without the separator; the first token is given and not scored. Tokenizers that add no token before a
  text are scored like this by tools that call transformers (GPT-2 in the BabyLM pipeline of 2025).
- prefix: a prefix LM, whose prefix is the separator alone.

Minimal pairs begin alike, so the sentences are sorted, and a token that follows the same tokens as in the sentence
before is scored once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.evaluation.likelihood import log_probabilities, score_tokens, score_windows
from stemma.evaluation.lm_scorer import LMScorer, ScoringWindow
from stemma.evaluation.sentence_scores.masked_rows import BATCH_TOKENS, OnProgress, check_lengths
from stemma.generation.decoding_mode import max_input_tokens
from stemma.model import Model
from stemma.network.inputs_outputs import Stream
from stemma.registry import register
from stemma.schema.objective import ObjectiveSettings
from stemma.visibility import Prefix


@register("sentence_score", "causal")
def causal(model: Model, objective: ObjectiveSettings, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    return _score(LMScorer(model), texts, on_progress)


@register("sentence_score", "after_first")
def after_first(model: Model, objective: ObjectiveSettings, texts: Sequence[str],
                on_progress: OnProgress) -> np.ndarray:
    scorer = LMScorer(model)
    scorer.bos_id = None
    return _score(scorer, texts, on_progress)


@register("sentence_score", "prefix")
def prefix(model: Model, objective: ObjectiveSettings, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    separator = model.document_separator_id
    if separator is None:
        raise UserError(f"the vocabulary of {model.recipe.label} has no document separator, so its prefix would be "
                        "empty; use a vocabulary with one.")
    all_ids = _encode(model, texts, max_input_tokens(model))
    rows = [np.concatenate([[separator], ids]) for ids in all_ids]
    scores = np.zeros(len(rows))
    head, vocab_size, device = model.lm_head(), model.network.vocab_size, model.device
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    start = 0
    with torch.inference_mode():
        while start < len(order):
            length = len(rows[order[start]])
            batch = [index for index in order[start:start + max(1, BATCH_TOKENS // length)]
                     if len(rows[index]) == length]
            ids = torch.from_numpy(np.stack([rows[index] for index in batch])).to(device)
            hidden = _prefix_states(model, ids[:, :-1])
            values, _ = log_probabilities(head, hidden.flatten(0, 1), ids[:, 1:].flatten(), vocab_size)
            scores[batch] = values.view(len(batch), -1).double().sum(1).cpu().numpy()
            on_progress(len(batch))
            start += len(batch)
    return scores


def _prefix_states(model: Model, ids: Tensor) -> Tensor:
    prefix_lengths = torch.ones(len(ids), dtype=torch.int64, device=ids.device)
    return model.network({"encoder": Stream(ids, Prefix(prefix_lengths))})["encoder"]


def _encode(model: Model, texts: Sequence[str], capacity: int | None) -> list[np.ndarray]:
    encodings = model.require_tokenizer().encode_batch(list(texts), special=False)
    check_lengths(model, texts, [len(encoding.ids) for encoding in encodings], capacity)
    return [np.array(encoding.ids, np.int64) for encoding in encodings]


def _score(scorer: LMScorer, texts: Sequence[str], on_progress: OnProgress) -> np.ndarray:
    """(texts,) log-likelihoods. Sentences longer than the window, and models with a memory, are scored as any text."""
    all_ids = _encode(scorer.model, texts, None)
    rows = [scorer.with_bos(ids) for ids in all_ids]
    scores = np.zeros(len(rows))
    long = [index for index, row in enumerate(rows) if scorer.has_memory or len(row) > scorer.length + 1]
    for index, values in zip(long, score_tokens(scorer, [all_ids[index] for index in long]), strict=True):
        scores[index] = np.nansum(values)
    on_progress(len(long))
    is_long = set(long)
    order = sorted((index for index in range(len(rows)) if index not in is_long), key=lambda index: tuple(rows[index]))
    shared = [0, *(_shared_tokens(rows[a], rows[b]) for a, b in zip(order, order[1:], strict=False))]
    windows = [ScoringWindow(rows[index], len(rows[index]) - max(1, count))
               for index, count in zip(order, shared, strict=False)]
    scored = [number for number, window in enumerate(windows) if window.num_targets > 0]
    new_values: dict[int, np.ndarray] = {}
    with torch.inference_mode():
        for number, losses, _ in score_windows(scorer, [windows[number] for number in scored],
                                               with_greedy=False):
            new_values[scored[number]] = losses.double().cpu().numpy()
            on_progress(1)
    previous = np.zeros(0)
    for number, index in enumerate(order):  # a row begins with the values of the shared tokens of the row before
        previous = np.concatenate([previous[:max(0, shared[number] - 1)], new_values.get(number, np.zeros(0))])
        scores[index] = previous.sum()
    on_progress(len(windows) - len(scored))
    return scores


def _shared_tokens(first: np.ndarray, second: np.ndarray) -> int:
    """The number of tokens with which both begin."""
    size = min(len(first), len(second))
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if len(different) else size
