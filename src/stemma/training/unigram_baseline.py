"""The unigram baseline: log-probabilities of the labels in the training text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stemma.objectives import ObjectiveGroup, collate

if TYPE_CHECKING:
    from stemma.training.pretrain_loader import PretrainLoader

PAIRS_PER_COUNT = 65_536  # pairs counted at once


def unigram_log_probs(loader: PretrainLoader) -> np.ndarray:
    """(vocabulary,) log-probability of each token in the training text, with add-one smoothing. Of pairs, only the
    targets are counted, since only they are predicted."""
    corpus, settings, groups = loader.corpus, loader.settings, loader.groups
    if all(group.packing_settings.reads == "pairs" for group in groups):
        counts = _target_counts(loader)
    else:
        counts = corpus.token_counts.copy()
        for start, stop in loader.validation.document_ranges:
            counts -= np.bincount(corpus.values_between("tokens", start, stop), minlength=len(counts))
    boundary = corpus.tokenizer.document_separator_id(settings.boundary) if settings.boundary != "none" else None
    generating = [group for group in groups if (group.is_seq2seq or group.packing_settings.reads == "pairs")
                  and any(objective.predicts_tokens for objective in group.objectives)]
    if boundary is not None and any(objective.predicts_next or objective.predicts_separators
                                    for group in groups if group not in generating for objective in group.objectives):
        counts[boundary] += len(loader.training.document_ranges)  # document separators are predicted like tokens
    for group in generating:
        counts += _special_counts(loader, group, int(counts.sum()))
    logs: np.ndarray = np.log((counts + 1) / (counts.sum() + len(counts)))
    return logs


def _target_counts(loader: PretrainLoader) -> np.ndarray:
    """Token counts of the target side of the training pairs."""
    corpus = loader.corpus
    counts = np.zeros_like(corpus.token_counts)
    documents = loader.samplers.training_documents(loader.groups[0]).document_ranges
    sentences = np.asarray(corpus.sentence_starts)
    for first in range(0, len(documents), PAIRS_PER_COUNT):
        start, stop = documents[first:first + PAIRS_PER_COUNT].T
        middle = np.minimum(sentences[np.searchsorted(sentences, start, side="right")], stop)
        lengths = stop - middle
        offsets = np.arange(lengths.sum()) + np.repeat(middle - (np.cumsum(lengths) - lengths), lengths)
        counts += np.bincount(corpus.values_at("tokens", offsets), minlength=len(counts))
    return counts


def _special_counts(loader: PretrainLoader, group: ObjectiveGroup, num_text_tokens: int) -> np.ndarray:
    """Expected counts of special tokens (sentinels, end) per `num_text_tokens`, estimated from a sample batch."""
    corpus = loader.corpus
    draft = loader.sample_draft(group, loader.settings.sequence_length)
    targets = collate(draft, group.attention_mask_kind).token_targets
    labels = np.concatenate([target.labels.numpy() for target in targets.values()])
    counts = np.bincount(labels, minlength=len(corpus.token_counts))
    special = np.zeros_like(counts)
    special[corpus.tokenizer.special_ids] = counts[corpus.tokenizer.special_ids]
    ratio: np.ndarray = special / max(1, counts.sum() - special.sum())
    return (ratio * num_text_tokens).round().astype(corpus.token_counts.dtype)
