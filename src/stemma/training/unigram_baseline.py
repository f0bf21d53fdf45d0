"""The unigram baseline: how often each token is guessed in the training text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stemma.objectives import ObjectiveGroup, collate

if TYPE_CHECKING:
    from stemma.training.pretrain_loader import PretrainLoader

PAIRS_PER_COUNT = 65_536  # pairs whose tokens are counted at once


def unigram_log_probs(loader: PretrainLoader) -> np.ndarray:
    """(vocabulary,) log-probability of each token in the training text, every token counted once more. Of pairs only
    the targets are guessed, so only they are counted."""
    corpus, settings, groups = loader.corpus, loader.settings, loader.groups
    if all(group.packing_settings.reads == "pairs" for group in groups):
        counts = _target_counts(loader)
    else:
        counts = corpus.token_counts.copy()
        for start, stop in loader.validation.document_ranges:
            counts -= np.bincount(corpus.values_between("tokens", start, stop), minlength=len(counts))
    boundary = corpus.tokenizer.document_separator_id(settings.boundary) if settings.boundary != "none" else None
    writing = [group for group in groups if (group.is_seq2seq or group.packing_settings.reads == "pairs")
               and any(objective.predicts_tokens for objective in group.objectives)]
    if boundary is not None and any(objective.predicts_next for group in groups if group not in writing
                                    for objective in group.objectives):
        counts[boundary] += len(loader.training.document_ranges)  # a document's end is guessed like a token
    for group in writing:
        counts += _special_counts(loader, group, int(counts.sum()))
    logs: np.ndarray = np.log((counts + 1) / (counts.sum() + len(counts)))
    return logs


def _target_counts(loader: PretrainLoader) -> np.ndarray:
    """How often each token occurs in the second texts of the training pairs."""
    corpus = loader.corpus
    counts = np.zeros_like(corpus.token_counts)
    documents, sentences = loader.samplers.training_documents(loader.groups[0]).document_ranges, np.asarray(corpus.sentence_starts)
    for first in range(0, len(documents), PAIRS_PER_COUNT):
        start, stop = documents[first:first + PAIRS_PER_COUNT].T
        middle = np.minimum(sentences[np.searchsorted(sentences, start, side="right")], stop)
        lengths = stop - middle
        places = np.arange(lengths.sum()) + np.repeat(middle - (np.cumsum(lengths) - lengths), lengths)
        counts += np.bincount(corpus.values_at("tokens", places), minlength=len(counts))
    return counts


def _special_counts(loader: PretrainLoader, group: ObjectiveGroup, num_text_tokens: int) -> np.ndarray:
    """How often special tokens (sentinels, the end) are guessed beside so many of the text, judged by a batch."""
    corpus = loader.corpus
    draft = loader.sample_draft(group, loader.settings.sequence_length)
    labels = np.concatenate([target.labels.numpy() for target in collate(draft,
        group.attention_mask_kind).token_targets.values()])
    found = np.bincount(labels, minlength=len(corpus.token_counts))
    special = np.zeros_like(found)
    special[corpus.tokenizer.special_ids] = found[corpus.tokenizer.special_ids]
    share: np.ndarray = special / max(1, found.sum() - special.sum())
    return (share * num_text_tokens).round().astype(corpus.token_counts.dtype)
