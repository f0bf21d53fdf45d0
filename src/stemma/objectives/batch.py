"""A finished batch: streams by part, and what is scored by which head. Unscored places never reach a head."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.network.streams import Stream
from stemma.visibility import Full, Padded, Visibility


@dataclass(frozen=True)
class Target:
    """`index`: flat places (or rows); `labels`: the answers; `total`: what a sum of losses is divided by, which is the
    whole step's count even where the step is computed in slices, so that slicing never changes a gradient."""

    index: Tensor
    labels: Tensor
    total: float

    def to(self, device: torch.device | str) -> Target:
        return Target(self.index.to(device, non_blocking=True), self.labels.to(device, non_blocking=True), self.total)


@dataclass(frozen=True)
class Batch:
    streams: dict[str, Stream]
    scores: dict[str, Target] = field(default_factory=dict)  # by head: places
    labels: dict[str, Target] = field(default_factory=dict)  # by head: rows
    tokens: int = 0  # real tokens, padding not counted
    rows: int = 0

    def to(self, device: torch.device | str) -> Batch:
        return Batch({name: stream.to(device) for name, stream in self.streams.items()},
                     {name: target.to(device) for name, target in self.scores.items()},
                     {name: target.to(device) for name, target in self.labels.items()}, self.tokens, self.rows)

    def slices(self, rows: int) -> list[Batch]:
        """The same step in pieces of at most `rows` examples."""
        if rows >= self.rows:
            return [self]
        length = next(iter(self.streams.values())).ids.shape[1]
        return [self._slice(start, min(start + rows, self.rows), length) for start in range(0, self.rows, rows)]

    def _slice(self, start: int, stop: int, length: int) -> Batch:
        streams = {name: stream.rows(slice(start, stop)) for name, stream in self.streams.items()}
        return Batch(streams, {name: _between(t, start * length, stop * length) for name, t in self.scores.items()},
                     {name: _between(t, start, stop) for name, t in self.labels.items()}, 0, stop - start)


def _between(target: Target, start: int, stop: int) -> Target:
    first, last = torch.searchsorted(target.index, torch.tensor([start, stop], device=target.index.device)).tolist()
    return Target(target.index[first:last] - start, target.labels[first:last], target.total)


def finish(draft: Draft) -> Batch:
    """From numpy to torch; rows are cut to the longest one, and where nothing is padded no mask is made."""
    lengths = torch.from_numpy(draft.lengths)
    longest = int(lengths.max())
    width = draft.layout.length
    padded = Padded(torch.arange(longest)[None, :] < lengths[:, None])
    sees: Visibility = Full() if bool((lengths == longest).all()) else padded
    segments = torch.from_numpy(draft.segments[:, :longest].copy())
    scores = {}
    for head, scored in draft.scores.items():
        index = scored.index // width * longest + scored.index % width
        scores[head] = Target(torch.from_numpy(index), torch.from_numpy(scored.labels), max(1.0, float(len(index))))
    labels = {head: Target(torch.arange(len(values)), torch.from_numpy(values), float(len(values)))
              for head, values in draft.labels.items()}
    read = [target.index for target in scores.values()]
    if labels:
        read.append(torch.arange(draft.rows) * longest)  # heads that judge a whole row read its first place
    stream = Stream(ids=torch.from_numpy(draft.ids[:, :longest].astype("int64")), sees=sees, segments=segments,
                    wanted=torch.unique(torch.cat(read)) if read else None)
    return Batch({"encoder": stream}, scores, labels, int(lengths.sum()), draft.rows)
