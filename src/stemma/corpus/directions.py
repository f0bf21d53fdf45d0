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

from stemma.corpus.shards import Corpus
from stemma.errors import CorruptFileError
from stemma.json_files import parse

FILE = "directions.json"
COMMONEST = 1000  # tokens of each side
APART = 1.5  # nats a token, the smaller of the two divergences: English and German 5 (2 from 300 pairs), summaries 0.15
SURE = 10.0  # nats: odds of 22,000 to 1
BLOCK = 100_000  # pairs that are counted at a time


@dataclass(frozen=True)
class Directions:
    tokens: np.ndarray  # ids, ascending
    source: np.ndarray  # the log-frequency of each among the sources
    target: np.ndarray  # and among the targets

    @property
    def apart(self) -> float:
        """How far the languages are apart, in nats a token."""
        odds = self.target - self.source
        return float(min(-(np.exp(self.source) * odds).sum(), (np.exp(self.target) * odds).sum()))

    def odds(self, ids: Sequence[int]) -> float:
        """The log of the odds that these tokens are the target's rather than the source's."""
        given = np.asarray(ids, np.int64)
        place = np.searchsorted(self.tokens, given).clip(max=len(self.tokens) - 1)
        known = place[self.tokens[place] == given]
        return float((self.target[known] - self.source[known]).sum())

    def swapped(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """The rows that are surely of the target's side, if these are more than those that are surely not."""
        if self.apart < APART:
            return []
        odds = np.array([self.odds(row) for row in rows])
        found = np.flatnonzero(odds > SURE)
        return found.tolist() if len(found) > (odds < -SURE).sum() else []


def directions(corpus: Corpus) -> Directions:
    """The two tables of a corpus of pairs."""
    size = len(corpus.counts)
    counts = np.zeros((2, size), np.int64)
    for first in range(0, len(corpus.sentences) - 1, 2 * BLOCK):
        bounds = corpus.sentences[first:first + 2 * BLOCK + 1]
        side = np.repeat(np.arange(len(bounds) - 1) % 2, np.diff(bounds))
        tokens = corpus.slice("tokens", int(bounds[0]), int(bounds[-1]))
        counts += np.bincount(tokens + size * side, minlength=2 * size).reshape(2, size)
    common = np.unique(np.argsort(-counts, kind="stable", axis=1)[:, :COMMONEST])
    common = common[counts[:, common].sum(0) > 0]
    kept = counts[:, common] + 0.5  # never to have been seen among so many is rare, not impossible
    source, target = np.log(kept / kept.sum(1, keepdims=True))
    return Directions(common, source, target)


def write_directions(corpus: Corpus, folder: Path) -> None:
    """Beside a model's weights; nothing where the corpus is no pairs."""
    if corpus.manifest.get("pairs"):
        found = directions(corpus)
        table = {"tokens": found.tokens.tolist(), "source": found.source.round(4).tolist(),
                 "target": found.target.round(4).tolist()}
        (folder / FILE).write_text(json.dumps(table))


def read_directions(folder: Path) -> Directions | None:
    """None where the model's folder has none."""
    if not (folder / FILE).is_file():
        return None
    try:
        table = parse((folder / FILE).read_bytes())
        return Directions(np.array(table["tokens"], np.int64), np.array(table["source"]), np.array(table["target"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{folder / FILE} cannot be read ({error}); copy the model again, or delete the file: "
                               "it only guards against a swapped pair of languages.") from error
