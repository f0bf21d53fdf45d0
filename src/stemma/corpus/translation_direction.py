"""Which language is which: how often the common tokens occur in the sources and in the targets of parallel text.

A translator that is given its target language still writes something, and it looks almost right. So a model trained on
pairs keeps two small tables of log-frequencies, and a line is weighed by them: the sum of log target - log source over
its common tokens is the log of the odds that it is of the target's side. Where both sides are of one language
(summaries, or pairs in both directions) the tables are alike, less than `APART` on average, and nothing is said.
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
NUM_COMMON_TOKENS = 1000  # tokens of each side
MIN_DIVERGENCE = 1.5  # nats a token, the smaller of the two divergences: English and German 5 (2 from 300 pairs),
#                       summaries 0.15
MIN_LOG_ODDS = 10.0  # nats: odds of 22,000 to 1
PAIRS_PER_BLOCK = 100_000  # pairs that are counted at a time


@dataclass(frozen=True)
class DirectionDetector:
    token_ids: np.ndarray  # ids, ascending
    source_log_frequency: np.ndarray  # the log-frequency of each among the sources
    target_log_frequency: np.ndarray  # and among the targets

    @property
    def divergence(self) -> float:
        """How far the languages are apart, in nats a token."""
        odds = self.target_log_frequency - self.source_log_frequency
        return float(min(-(np.exp(self.source_log_frequency) * odds).sum(),
                         (np.exp(self.target_log_frequency) * odds).sum()))

    def log_odds(self, ids: Sequence[int]) -> float:
        """The log of the odds that these tokens are the target's rather than the source's."""
        given = np.asarray(ids, np.int64)
        place = np.searchsorted(self.token_ids, given).clip(max=len(self.token_ids) - 1)
        known = place[self.token_ids[place] == given]
        return float((self.target_log_frequency[known] - self.source_log_frequency[known]).sum())

    def find_swapped(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """The rows that are surely of the target's side, if these are more than those that are surely not."""
        if self.divergence < MIN_DIVERGENCE:
            return []
        odds = np.array([self.log_odds(row) for row in rows])
        found = np.flatnonzero(odds > MIN_LOG_ODDS)
        return found.tolist() if len(found) > (odds < -MIN_LOG_ODDS).sum() else []


def fit_directions(corpus: Corpus) -> DirectionDetector:
    """The two tables of a corpus of pairs."""
    size = len(corpus.token_counts)
    counts = np.zeros((2, size), np.int64)
    for first in range(0, len(corpus.sentence_starts) - 1, 2 * PAIRS_PER_BLOCK):
        bounds = corpus.sentence_starts[first:first + 2 * PAIRS_PER_BLOCK + 1]
        side = np.repeat(np.arange(len(bounds) - 1) % 2, np.diff(bounds))
        tokens = corpus.values_between("tokens", int(bounds[0]), int(bounds[-1]))
        counts += np.bincount(tokens + size * side, minlength=2 * size).reshape(2, size)
    common = np.unique(np.argsort(-counts, kind="stable", axis=1)[:, :NUM_COMMON_TOKENS])
    common = common[counts[:, common].sum(0) > 0]
    kept = counts[:, common] + 0.5  # never to have been seen among so many is rare, not impossible
    source, target = np.log(kept / kept.sum(1, keepdims=True))
    return DirectionDetector(common, source, target)


def write_directions(corpus: Corpus, folder: Path) -> None:
    """Beside a model's weights; nothing where the corpus is no pairs."""
    if corpus.manifest.get("pairs"):
        found = fit_directions(corpus)
        table = {"tokens": found.token_ids.tolist(), "source": found.source_log_frequency.round(4).tolist(),
                 "target": found.target_log_frequency.round(4).tolist()}
        (folder / FILE).write_text(json.dumps(table))


def read_directions(folder: Path) -> DirectionDetector | None:
    """None where the model's folder has none."""
    if not (folder / FILE).is_file():
        return None
    try:
        table = parse((folder / FILE).read_bytes())
        return DirectionDetector(np.array(table["tokens"], np.int64), np.array(table["source"]),
                                 np.array(table["target"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{folder / FILE} cannot be read ({error}); copy the model again, or delete the file: "
                               "it only guards against a swapped pair of languages.") from error
