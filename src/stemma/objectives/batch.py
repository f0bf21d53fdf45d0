"""A finished batch: streams by part, and what is scored by which head. Unscored places never reach a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.seq2seq_rows import DECODER, ENCODER, EncoderDraft, PaddedRows
from stemma.network.inputs_outputs import Stream
from stemma.objectives.base import LM_HEAD
from stemma.schema.objective import AttentionMaskKind
from stemma.schema.parts import InputSettings
from stemma.visibility import Bidirectional, Causal, PaddingRule, Permutation, Prefix, ReverseCausal, Visibility

SPARSE_OUTPUT_MASKS: tuple[AttentionMaskKind, ...] = ("full", "prefix", "later")  # here many places are read by nobody


@dataclass(frozen=True)
class Target:
    """`index`: flat places (or rows); `labels`: the answers; `total`: what a sum of losses is divided by, which is the
    whole step's count even where the step is computed in slices, so that slicing never changes a gradient."""

    index: Tensor
    labels: Tensor
    denominator: float
    row_stride: int = 1  # how many places of each row `index` counts: all, those of the second stream, or the row
    #                      itself

    def to(self, device: torch.device | str) -> Target:
        return Target(self.index.to(device, non_blocking=True), self.labels.to(device, non_blocking=True),
                      self.denominator,
                      self.row_stride)

    def rows(self, start: int, stop: int) -> Target:
        """What is scored in some rows only."""
        edges = torch.tensor([start * self.row_stride, stop * self.row_stride], device=self.index.device)
        first, last = torch.searchsorted(self.index, edges).tolist()
        return Target(self.index[first:last] - start * self.row_stride, self.labels[first:last], self.denominator,
                      self.row_stride)


@dataclass(frozen=True)
class Batch:
    streams: dict[str, Stream]
    token_targets: dict[str, Target] = field(default_factory=dict)  # by head: places
    row_targets: dict[str, Target] = field(default_factory=dict)  # by head: rows
    num_tokens: int = 0  # real tokens of the whole step, padding not counted; as with targets, a slice keeps the number
    num_rows: int = 0
    continues_previous: bool = False  # every row goes on where the same row of its feed's batch before ended
    lengths: Tensor | None = None  # (rows,) places in use, where a head must know (fine-tuning)
    rows_per_example: int = 1  # so many neighbouring rows are one example, and are never computed apart
    objectives: tuple[str, ...] = ()  # the objectives to be scored
    row_fraction: float = 1.0  # of the step's rows that a slice has
    held_out: bool = False  # judged, not learned from: without label smoothing and auxiliary losses

    def to(self, device: torch.device | str) -> Batch:
        return replace(self, streams={name: stream.to(device) for name, stream in self.streams.items()},
                       token_targets={name: target.to(device) for name, target in self.token_targets.items()},
                       row_targets={name: target.to(device) for name, target in self.row_targets.items()},
                       lengths=None if self.lengths is None else self.lengths.to(device, non_blocking=True))

    def slices(self, rows: int) -> list[Batch]:
        """The same step in pieces of at most `rows` examples."""
        rows = max(self.rows_per_example, rows - rows % self.rows_per_example)
        if rows >= self.num_rows:
            return [self]
        return [self._slice(start, min(start + rows, self.num_rows)) for start in range(0, self.num_rows, rows)]

    def _slice(self, start: int, stop: int) -> Batch:
        return replace(self, streams={name: stream.rows(slice(start, stop)) for name, stream in self.streams.items()},
                       token_targets={name: target.rows(start, stop) for name, target in self.token_targets.items()},
                       row_targets={name: target.rows(start, stop) for name, target in self.row_targets.items()},
                       num_rows=stop - start, row_fraction=self.row_fraction * (stop - start) / self.num_rows,
                       lengths=None if self.lengths is None else self.lengths[start:stop])


def collate(draft: Draft, attention_mask_kind: AttentionMaskKind = "full", task_id: int | None = None,
           inputs: Mapping[str, InputSettings] | None = None) -> Batch:
    """From numpy to torch; rows are cut to the longest one, and where nothing is padded no mask is made. `task` is the
    number of the task vector that all rows carry, `inputs` are what the network reads besides tokens."""
    if draft.seq2seq_rows:
        return _collate_seq2seq(draft.corpus, draft.seq2seq_rows[ENCODER], draft.seq2seq_rows[DECODER], inputs or {})
    longest = int(draft.lengths.max())
    query = _query_positions(draft)
    scores = {}
    for head, scored in draft.token_targets.items():
        row, place = np.divmod(scored.index, draft.template.length)
        width = longest if query is None or not scored.query_stream else query.shape[1]
        index = row * width + (_rank_in_row(row) if scored.query_stream else place)
        scores[head] = Target(torch.from_numpy(index), torch.from_numpy(scored.labels), max(1.0, float(len(index))),
                              width)
    labels = {head: _row_target(values) for head, values in draft.row_labels.items()}
    read = [target.index for target in scores.values()]
    if draft.extra_outputs is not None:
        read.append(torch.from_numpy(np.flatnonzero(draft.extra_outputs[:, :longest])))
    if labels:
        read.append(torch.arange(draft.rows) * longest)  # heads that judge a whole row read its first place
    backward = draft.reversed_rows is not None and draft.reversed_rows.any()
    stream = Stream(input_ids=torch.from_numpy(draft.input_ids[:, :longest].astype("int64")),
                    attention_mask=_attention_mask(draft, attention_mask_kind),
                    segment_ids=torch.from_numpy(draft.segment_ids[:, :longest].copy()),
                    task_ids=None if task_id is None else torch.full((draft.rows,), task_id),
                    output_positions=torch.unique(torch.cat(read)) if read
                    and attention_mask_kind in SPARSE_OUTPUT_MASKS else None,
                    query_positions=None if query is None else torch.from_numpy(query),
                    reversed_rows=torch.from_numpy(draft.reversed_rows) if backward else None,
                    reuse_length=draft.template.reuse_length or None,
                    skip_padding=True, inputs=_inputs(draft, inputs or {}, longest))
    return Batch({ENCODER: stream}, scores, labels, int(draft.lengths.sum()), draft.rows, draft.continues_previous)


def _row_target(values: np.ndarray) -> Target:
    """Rows that have an answer; -1 stands where there is none."""
    rows = np.flatnonzero(values >= 0)
    return Target(torch.from_numpy(rows), torch.from_numpy(values[rows]), max(1.0, float(len(rows))))


def _inputs(shown: Draft | EncoderDraft, inputs: Mapping[str, InputSettings], longest: int) -> dict[str, Tensor]:
    """What a stream holds besides the text's own; what is made from token ids is made by the network."""
    return {name: torch.from_numpy(np.ascontiguousarray(one.from_draft(name, shown)[:, :longest]))
            for name, one in inputs.items() if not one.from_ids}


def _collate_seq2seq(corpus: Corpus, source_rows: PaddedRows, target_rows: PaddedRows,
                     inputs: Mapping[str, InputSettings]) -> Batch:
    """What an encoder reads, and what a decoder writes: it sees what it wrote before, and filling comes last there."""
    assert target_rows.labels is not None, "a decoder's text is there to be guessed"
    index = np.flatnonzero(target_rows.labels >= 0)
    labels = target_rows.labels.reshape(-1)[index].astype(np.int64)
    positions = None if target_rows.position_ids is None else torch.from_numpy(target_rows.position_ids)
    asked = {name: one for name, one in inputs.items() if not one.from_ids}
    beside = _inputs(EncoderDraft.from_rows(corpus, source_rows), asked, source_rows.input_ids.shape[1]) if asked else {}
    streams = {ENCODER: Stream(torch.from_numpy(source_rows.input_ids.astype(np.int64)),
                               _padding_mask(torch.from_numpy(source_rows.lengths)),
                               skip_padding=True, inputs=beside),
               DECODER: Stream(torch.from_numpy(target_rows.input_ids.astype(np.int64)), Causal(), positions,
                               causal_token_mask=_token_mask(torch.from_numpy(target_rows.lengths)))}
    target = Target(torch.from_numpy(index), torch.from_numpy(labels), max(1.0, float(len(index))),
                    target_rows.input_ids.shape[1])
    return Batch(streams, {LM_HEAD: target}, {}, int(source_rows.lengths.sum() + target_rows.lengths.sum()),
                 len(source_rows.input_ids))


def _attention_mask(draft: Draft, kind: AttentionMaskKind) -> Visibility:
    """The rule of a group. Filling needs its own rule only where it could be seen: it comes last in every order."""
    lengths = torch.from_numpy(draft.lengths)
    longest = int(lengths.max())
    if kind == "causal":
        return Causal()
    if kind == "prefix":
        assert draft.prefix_lengths is not None, "no objective has said where the prefix ends"
        return Prefix(torch.from_numpy(draft.prefix_lengths))
    if kind == "later":
        return ReverseCausal(lengths)
    if kind == "permuted":
        assert draft.factorization_order is not None, "no objective has drawn an order"
        return Permutation(torch.from_numpy(draft.factorization_order[:, :longest].copy()))
    return _padding_mask(lengths)


def _padding_mask(lengths: Tensor) -> Visibility:
    """Everybody sees everybody but filling."""
    tokens = _token_mask(lengths)
    return Bidirectional() if tokens is None else PaddingRule(tokens)


def _token_mask(lengths: Tensor) -> Tensor | None:
    """(B, L) False at padding; None: there is none."""
    longest = int(lengths.max())
    return None if bool((lengths == longest).all()) else torch.arange(longest)[None, :] < lengths[:, None]


def _query_positions(draft: Draft) -> np.ndarray | None:
    """(rows, P) the places that are guessed through the second stream, in ascending order. Rows that have fewer repeat
    the one that comes last in the order: it sees something, and nobody reads what it guesses."""
    found = [scored.index for scored in draft.token_targets.values() if scored.query_stream]
    if not found:
        return None
    assert len(found) == 1 and draft.factorization_order is not None, "the second stream serves one objective, which draws an order"
    row, place = np.divmod(found[0], draft.template.length)
    rank = _rank_in_row(row)
    used = np.arange(draft.template.length) < draft.lengths[:, None]
    last = np.argmax(np.where(used, draft.factorization_order, -1), axis=1)
    query = np.repeat(last[:, None], int(rank.max(initial=0)) + 1, axis=1)
    query[row, rank] = place
    return query


def _rank_in_row(row: np.ndarray) -> np.ndarray:
    """Of ascending rows: the how manieth of its row each entry is."""
    return np.arange(len(row)) - np.searchsorted(row, row)
