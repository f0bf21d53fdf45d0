"""A finished batch: streams by part, and what is scored by which head. Unscored places never reach a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.draft import Draft
from stemma.corpus.shards import Corpus
from stemma.corpus.sides import DECODER, ENCODER, Shown, Side
from stemma.network.streams import Stream
from stemma.objectives.base import VOCABULARY
from stemma.schema.parts import InputSettings
from stemma.schema.task import Sees
from stemma.visibility import Causal, Full, Later, Padded, Permuted, Prefix, Visibility

FEW_READ: tuple[Sees, ...] = ("full", "prefix", "later")  # here many places are read by nobody


@dataclass(frozen=True)
class Target:
    """`index`: flat places (or rows); `labels`: the answers; `total`: what a sum of losses is divided by, which is the
    whole step's count even where the step is computed in slices, so that slicing never changes a gradient."""

    index: Tensor
    labels: Tensor
    total: float
    width: int = 1  # how many places of each row `index` counts: all, those of the second stream, or the row itself

    def to(self, device: torch.device | str) -> Target:
        return Target(self.index.to(device, non_blocking=True), self.labels.to(device, non_blocking=True), self.total,
                      self.width)

    def rows(self, start: int, stop: int) -> Target:
        """What is scored in some rows only."""
        edges = torch.tensor([start * self.width, stop * self.width], device=self.index.device)
        first, last = torch.searchsorted(self.index, edges).tolist()
        return Target(self.index[first:last] - start * self.width, self.labels[first:last], self.total, self.width)


@dataclass(frozen=True)
class Batch:
    streams: dict[str, Stream]
    scores: dict[str, Target] = field(default_factory=dict)  # by head: places
    labels: dict[str, Target] = field(default_factory=dict)  # by head: rows
    tokens: int = 0  # real tokens of the whole step, padding not counted; as with targets, a slice keeps the number
    rows: int = 0
    continues: bool = False  # every row goes on where the same row of its feed's batch before ended
    lengths: Tensor | None = None  # (rows,) places in use, where a head must know (fine-tuning)
    together: int = 1  # so many neighbouring rows are one example, and are never computed apart
    tasks: tuple[str, ...] = ()  # the objectives to be scored
    share: float = 1.0  # of the step's rows that a slice has
    held_out: bool = False  # judged, not learned from: without label smoothing and auxiliary losses

    def to(self, device: torch.device | str) -> Batch:
        return replace(self, streams={name: stream.to(device) for name, stream in self.streams.items()},
                       scores={name: target.to(device) for name, target in self.scores.items()},
                       labels={name: target.to(device) for name, target in self.labels.items()},
                       lengths=None if self.lengths is None else self.lengths.to(device, non_blocking=True))

    def slices(self, rows: int) -> list[Batch]:
        """The same step in pieces of at most `rows` examples."""
        rows = max(self.together, rows - rows % self.together)
        if rows >= self.rows:
            return [self]
        return [self._slice(start, min(start + rows, self.rows)) for start in range(0, self.rows, rows)]

    def _slice(self, start: int, stop: int) -> Batch:
        return replace(self, streams={name: stream.rows(slice(start, stop)) for name, stream in self.streams.items()},
                       scores={name: target.rows(start, stop) for name, target in self.scores.items()},
                       labels={name: target.rows(start, stop) for name, target in self.labels.items()},
                       rows=stop - start, share=self.share * (stop - start) / self.rows,
                       lengths=None if self.lengths is None else self.lengths[start:stop])


def finish(draft: Draft, visibility: Sees = "full", task: int | None = None,
           inputs: Mapping[str, InputSettings] | None = None) -> Batch:
    """From numpy to torch; rows are cut to the longest one, and where nothing is padded no mask is made. `task` is the
    number of the task vector that all rows carry, `inputs` are what the network reads besides tokens."""
    if draft.sides:
        return _two_sided(draft.corpus, draft.sides[ENCODER], draft.sides[DECODER], inputs or {})
    longest = int(draft.lengths.max())
    query = _unseen(draft)
    scores = {}
    for head, scored in draft.scores.items():
        row, place = np.divmod(scored.index, draft.layout.length)
        width = longest if query is None or not scored.unseen else query.shape[1]
        index = row * width + (_rank(row) if scored.unseen else place)
        scores[head] = Target(torch.from_numpy(index), torch.from_numpy(scored.labels), max(1.0, float(len(index))),
                              width)
    labels = {head: _labelled(values) for head, values in draft.labels.items()}
    read = [target.index for target in scores.values()]
    if draft.read is not None:
        read.append(torch.from_numpy(np.flatnonzero(draft.read[:, :longest])))
    if labels:
        read.append(torch.arange(draft.rows) * longest)  # heads that judge a whole row read its first place
    backward = draft.backward is not None and draft.backward.any()
    stream = Stream(ids=torch.from_numpy(draft.ids[:, :longest].astype("int64")), sees=_sees(draft, visibility),
                    segments=torch.from_numpy(draft.segments[:, :longest].copy()),
                    tasks=None if task is None else torch.full((draft.rows,), task),
                    wanted=torch.unique(torch.cat(read)) if read and visibility in FEW_READ else None,
                    query=None if query is None else torch.from_numpy(query),
                    backward=torch.from_numpy(draft.backward) if backward else None, keep=draft.layout.past or None,
                    skips_filling=True, inputs=_inputs(draft, inputs or {}, longest))
    return Batch({ENCODER: stream}, scores, labels, int(draft.lengths.sum()), draft.rows, draft.continues)


def _labelled(values: np.ndarray) -> Target:
    """Rows that have an answer; -1 stands where there is none."""
    rows = np.flatnonzero(values >= 0)
    return Target(torch.from_numpy(rows), torch.from_numpy(values[rows]), max(1.0, float(len(rows))))


def _inputs(shown: Draft | Shown, inputs: Mapping[str, InputSettings], longest: int) -> dict[str, Tensor]:
    """What a stream holds besides the text's own; what is made from token ids is made by the network."""
    return {name: torch.from_numpy(np.ascontiguousarray(one.from_draft(name, shown)[:, :longest]))
            for name, one in inputs.items() if not one.from_ids}


def _two_sided(corpus: Corpus, read: Side, written: Side, inputs: Mapping[str, InputSettings]) -> Batch:
    """What an encoder reads, and what a decoder writes: it sees what it wrote before, and filling comes last there."""
    assert written.labels is not None, "a decoder's text is there to be guessed"
    index = np.flatnonzero(written.labels >= 0)
    labels = written.labels.reshape(-1)[index].astype(np.int64)
    positions = None if written.positions is None else torch.from_numpy(written.positions)
    asked = {name: one for name, one in inputs.items() if not one.from_ids}
    beside = _inputs(Shown.of(corpus, read), asked, read.ids.shape[1]) if asked else {}
    streams = {ENCODER: Stream(torch.from_numpy(read.ids.astype(np.int64)), _unfilled(torch.from_numpy(read.lengths)),
                               skips_filling=True, inputs=beside),
               DECODER: Stream(torch.from_numpy(written.ids.astype(np.int64)), Causal(), positions,
                               padding=_tokens(torch.from_numpy(written.lengths)))}
    target = Target(torch.from_numpy(index), torch.from_numpy(labels), max(1.0, float(len(index))),
                    written.ids.shape[1])
    return Batch(streams, {VOCABULARY: target}, {}, int(read.lengths.sum() + written.lengths.sum()), len(read.ids))


def _sees(draft: Draft, visibility: Sees) -> Visibility:
    """The rule of a group. Filling needs its own rule only where it could be seen: it comes last in every order."""
    lengths = torch.from_numpy(draft.lengths)
    longest = int(lengths.max())
    if visibility == "causal":
        return Causal()
    if visibility == "prefix":
        assert draft.prefix is not None, "no objective has said where the prefix ends"
        return Prefix(torch.from_numpy(draft.prefix))
    if visibility == "later":
        return Later(lengths)
    if visibility == "permuted":
        assert draft.order is not None, "no objective has drawn an order"
        return Permuted(torch.from_numpy(draft.order[:, :longest].copy()))
    return _unfilled(lengths)


def _unfilled(lengths: Tensor) -> Visibility:
    """Everybody sees everybody but filling."""
    tokens = _tokens(lengths)
    return Full() if tokens is None else Padded(tokens)


def _tokens(lengths: Tensor) -> Tensor | None:
    """(B, L) False at padding; None: there is none."""
    longest = int(lengths.max())
    return None if bool((lengths == longest).all()) else torch.arange(longest)[None, :] < lengths[:, None]


def _unseen(draft: Draft) -> np.ndarray | None:
    """(rows, P) the places that are guessed through the second stream, in ascending order. Rows that have fewer repeat
    the one that comes last in the order: it sees something, and nobody reads what it guesses."""
    found = [scored.index for scored in draft.scores.values() if scored.unseen]
    if not found:
        return None
    assert len(found) == 1 and draft.order is not None, "the second stream serves one objective, which draws an order"
    row, place = np.divmod(found[0], draft.layout.length)
    rank = _rank(row)
    used = np.arange(draft.layout.length) < draft.lengths[:, None]
    last = np.argmax(np.where(used, draft.order, -1), axis=1)
    query = np.repeat(last[:, None], int(rank.max(initial=0)) + 1, axis=1)
    query[row, rank] = place
    return query


def _rank(row: np.ndarray) -> np.ndarray:
    """Of ascending rows: the how manieth of its row each entry is."""
    return np.arange(len(row)) - np.searchsorted(row, row)
