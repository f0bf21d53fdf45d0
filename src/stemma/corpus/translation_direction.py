"""Detects inputs in the target language, from token frequencies of the sources and the targets of parallel text.

A translation model that gets text in its target language still writes something plausible. So a model trained on pairs
stores the log-frequencies of common tokens on both sides. The sum of (log target - log source) over a line's common
tokens is the log-odds that the line is in the target language. If both sides have the same language (summaries, or
pairs in both directions), the divergence of the two distributions is below `MIN_DIVERGENCE` and nothing is reported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.errors import CorruptFileError
from stemma.json_files import parse

FILE = "directions.json"
NUM_COMMON_TOKENS = 1000  # of each side
# Nats per token, the smaller of the two KL divergences: English and German 5 (2 from 300 pairs), summaries 0.15.
MIN_DIVERGENCE = 1.5
MIN_LOG_ODDS = 10.0  # nats: odds of 22,000 to 1
PAIRS_PER_BLOCK = 100_000  # pairs counted at a time


@dataclass(frozen=True)
class DirectionDetector:
    """Unigram log-frequencies of common tokens in sources and targets."""

    token_ids: np.ndarray  # ascending
    source_log_frequency: np.ndarray
    target_log_frequency: np.ndarray

    @property
    def divergence(self) -> float:
        """The smaller KL divergence between the two distributions, in nats per token."""
        odds = self.target_log_frequency - self.source_log_frequency
        return float(min(-(np.exp(self.source_log_frequency) * odds).sum(),
                         (np.exp(self.target_log_frequency) * odds).sum()))

    def log_odds(self, ids: Sequence[int]) -> float:
        """Log-odds that these tokens are in the target language rather than the source language."""
        tokens = np.asarray(ids, np.int64)
        index = np.searchsorted(self.token_ids, tokens).clip(max=len(self.token_ids) - 1)
        common = index[self.token_ids[index] == tokens]
        return float((self.target_log_frequency[common] - self.source_log_frequency[common]).sum())

    def find_swapped(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Indices of the rows that are clearly in the target language, if they outnumber those clearly in the source
        language."""
        if self.divergence < MIN_DIVERGENCE:
            return []
        odds = np.array([self.log_odds(row) for row in rows])
        swapped = np.flatnonzero(odds > MIN_LOG_ODDS)
        return swapped.tolist() if len(swapped) > (odds < -MIN_LOG_ODDS).sum() else []


def fit_directions(corpus: Corpus) -> DirectionDetector:
    """Count the common tokens of a corpus of pairs."""
    size = len(corpus.token_counts)
    counts = np.zeros((2, size), np.int64)
    for first in range(0, len(corpus.sentence_starts) - 1, 2 * PAIRS_PER_BLOCK):
        bounds = corpus.sentence_starts[first:first + 2 * PAIRS_PER_BLOCK + 1]
        side = np.repeat(np.arange(len(bounds) - 1) % 2, np.diff(bounds))
        tokens = corpus.values_between("tokens", int(bounds[0]), int(bounds[-1]))
        counts += np.bincount(tokens + size * side, minlength=2 * size).reshape(2, size)
    common = np.unique(np.argsort(-counts, kind="stable", axis=1)[:, :NUM_COMMON_TOKENS])
    common = common[counts[:, common].sum(0) > 0]
    smoothed = counts[:, common] + 0.5  # additive smoothing: an unseen token is rare, not impossible
    source, target = np.log(smoothed / smoothed.sum(1, keepdims=True))
    return DirectionDetector(common, source, target)


def write_directions(corpus: Corpus, folder: Path) -> None:
    """Write the frequencies to a model's folder, if the corpus has pairs."""
    if corpus.manifest.get("pairs"):
        detector = fit_directions(corpus)
        table = {"tokens": detector.token_ids.tolist(), "source": detector.source_log_frequency.round(4).tolist(),
                 "target": detector.target_log_frequency.round(4).tolist()}
        (folder / FILE).write_text(json.dumps(table))


def read_directions(folder: Path) -> DirectionDetector | None:
    """The detector of a model's folder; None if it has none."""
    if not (folder / FILE).is_file():
        return None
    try:
        table = parse((folder / FILE).read_bytes())
        return DirectionDetector(np.array(table["tokens"], np.int64), np.array(table["source"]),
                                 np.array(table["target"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{folder / FILE} cannot be read ({error}); copy the model again, or delete the file: "
                               "it only guards against a swapped pair of languages.") from error
