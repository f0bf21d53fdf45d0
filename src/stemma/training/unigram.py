"""The unigram baseline: how often each token is guessed in the training text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stemma.objectives import Group, finish

if TYPE_CHECKING:
    from stemma.training.supply import Supply

COUNTED_PAIRS = 65_536  # pairs whose tokens are counted at once


def unigram_of(supply: Supply) -> np.ndarray:
    """(vocabulary,) log-probability of each token in the training text, every token counted once more. Of pairs only
    the targets are guessed, so only they are counted."""
    corpus, settings, groups = supply.corpus, supply.settings, supply.groups
    if all(group.facts.reads == "pairs" for group in groups):
        counts = _target_counts(supply)
    else:
        counts = corpus.counts.copy()
        for start, stop in supply.validation.documents:
            counts -= np.bincount(corpus.slice("tokens", start, stop), minlength=len(counts))
    boundary = corpus.tokenizer.boundary(settings.boundary) if settings.boundary != "none" else None
    writing = [group for group in groups if (group.decodes or group.facts.reads == "pairs")
               and any(objective.guesses_tokens for objective in group.objectives)]
    if boundary is not None and any(objective.guesses_next for group in groups if group not in writing
                                    for objective in group.objectives):
        counts[boundary] += len(supply.training.documents)  # a document's end is guessed like a token
    for group in writing:
        counts += _special_counts(supply, group, int(counts.sum()))
    logs: np.ndarray = np.log((counts + 1) / (counts.sum() + len(counts)))
    return logs


def _target_counts(supply: Supply) -> np.ndarray:
    """How often each token occurs in the second texts of the training pairs."""
    corpus = supply.corpus
    counts = np.zeros_like(corpus.counts)
    documents, sentences = supply.feeds.texts(supply.groups[0]).documents, np.asarray(corpus.sentences)
    for first in range(0, len(documents), COUNTED_PAIRS):
        start, stop = documents[first:first + COUNTED_PAIRS].T
        middle = np.minimum(sentences[np.searchsorted(sentences, start, side="right")], stop)
        lengths = stop - middle
        places = np.arange(lengths.sum()) + np.repeat(middle - (np.cumsum(lengths) - lengths), lengths)
        counts += np.bincount(corpus.take("tokens", places), minlength=len(counts))
    return counts


def _special_counts(supply: Supply, group: Group, text: int) -> np.ndarray:
    """How often special tokens (sentinels, the end) are guessed beside so many of the text, judged by a batch."""
    corpus = supply.corpus
    draft = supply.sample(group, supply.settings.sequence_length)
    labels = np.concatenate([target.labels.numpy() for target in finish(draft, group.visibility).scores.values()])
    found = np.bincount(labels, minlength=len(corpus.counts))
    special = np.zeros_like(found)
    special[corpus.tokenizer.special_ids] = found[corpus.tokenizer.special_ids]
    share: np.ndarray = special / max(1, found.sum() - special.sum())
    return (share * text).round().astype(corpus.counts.dtype)
