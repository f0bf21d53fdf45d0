"""A finished batch: one stream per network part, and the targets of each head. Heads run on scored positions only."""

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

SPARSE_OUTPUT_MASKS: tuple[AttentionMaskKind, ...] = ("full", "prefix", "later")  # only some outputs are needed


@dataclass(frozen=True)
class Target:
    """Scored positions of one head: `index` holds flat positions (or rows), `labels` the gold labels.

    The summed loss is divided by `denominator`, the count of the whole step. Slices of a step keep it, so that slicing
    does not change the gradient.
    """

    index: Tensor
    labels: Tensor
    denominator: float
    row_stride: int = 1  # positions per row in `index`: the row length, the number of query positions, or 1 for rows
    weights: Tensor | None = None  # (N,) of each loss; None: 1

    @property
    def denominators(self) -> float | Tensor:
        """What each loss is divided by: a number, or with weights one for each target."""
        return self.denominator if self.weights is None else self.denominator / self.weights

    def to(self, device: torch.device | str) -> Target:
        return Target(self.index.to(device, non_blocking=True), self.labels.to(device, non_blocking=True),
                      self.denominator, self.row_stride,
                      None if self.weights is None else self.weights.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> Target:
        """The targets of a range of rows."""
        edges = torch.tensor([start * self.row_stride, stop * self.row_stride], device=self.index.device)
        first, last = torch.searchsorted(self.index, edges).tolist()
        return Target(self.index[first:last] - start * self.row_stride, self.labels[first:last], self.denominator,
                      self.row_stride, None if self.weights is None else self.weights[first:last])


@dataclass(frozen=True)
class Batch:
    streams: dict[str, Stream]
    token_targets: dict[str, Target] = field(default_factory=dict)  # by head: positions
    row_targets: dict[str, Target] = field(default_factory=dict)  # by head: rows
    num_tokens: int = 0  # tokens of the whole step without padding; a slice keeps this number
    num_rows: int = 0
    continues_previous: bool = False  # each row continues the same row of the previous batch of its sampler
    lengths: Tensor | None = None  # (rows,) row lengths without padding, for heads that need them (fine-tuning)
    rows_per_example: int = 1  # adjacent rows that form one example and stay in one slice
    objectives: tuple[str, ...] = ()  # names of the objectives to compute
    row_fraction: float = 1.0  # fraction of the rows of the step that this slice has
    held_out: bool = False  # validation data: no label smoothing, no auxiliary losses

    def to(self, device: torch.device | str) -> Batch:
        return replace(self, streams={name: stream.to(device) for name, stream in self.streams.items()},
                       token_targets={name: target.to(device) for name, target in self.token_targets.items()},
                       row_targets={name: target.to(device) for name, target in self.row_targets.items()},
                       lengths=None if self.lengths is None else self.lengths.to(device, non_blocking=True))

    def slices(self, rows: int) -> list[Batch]:
        """Split the batch into slices of at most `rows` rows (gradient accumulation)."""
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
    """Turn a draft into tensors. Rows are cut to the longest one; a padding mask is made only if there is padding.

    `task_id` is the task embedding of all rows, `inputs` are the network's inputs besides token ids.
    """
    if draft.seq2seq_rows:
        return _collate_seq2seq(draft.corpus, draft.seq2seq_rows[ENCODER], draft.seq2seq_rows[DECODER], inputs or {})
    longest = int(draft.lengths.max())
    query = _query_positions(draft)
    token_targets = {}
    for head, scored in draft.token_targets.items():
        row, position = np.divmod(scored.index, draft.template.length)
        width = longest if query is None or not scored.query_stream else query.shape[1]
        index = row * width + (_rank_in_row(row) if scored.query_stream else position)
        token_targets[head] = Target(torch.from_numpy(index), torch.from_numpy(scored.labels),
                                     max(1.0, float(len(index) if scored.denominator is None else scored.denominator)),
                                     width, None if scored.weights is None else torch.from_numpy(scored.weights))
    row_targets = {head: _row_target(values) for head, values in draft.row_labels.items()}
    outputs = [target.index for target in token_targets.values()]
    if draft.extra_outputs is not None:
        outputs.append(torch.from_numpy(np.flatnonzero(draft.extra_outputs[:, :longest])))
    if row_targets:
        outputs.append(torch.arange(draft.rows) * longest)  # classification heads use the first position of a row
    reverses = draft.reversed_rows is not None and draft.reversed_rows.any()
    stream = Stream(input_ids=torch.from_numpy(draft.input_ids[:, :longest].astype("int64")),
                    attention_mask=_attention_mask(draft, attention_mask_kind),
                    segment_ids=torch.from_numpy(draft.segment_ids[:, :longest].copy()),
                    task_ids=None if task_id is None else torch.full((draft.rows,), task_id),
                    output_positions=torch.unique(torch.cat(outputs))
                    if outputs and attention_mask_kind in SPARSE_OUTPUT_MASKS else None,
                    query_positions=None if query is None else torch.from_numpy(query),
                    reversed_rows=torch.from_numpy(draft.reversed_rows) if reverses else None,
                    reuse_length=draft.template.reuse_length or None,
                    skip_padding=True, inputs=_inputs(draft, inputs or {}, longest))
    return Batch({ENCODER: stream}, token_targets, row_targets, int(draft.lengths.sum()), draft.rows,
                 draft.continues_previous)


def _row_target(values: np.ndarray) -> Target:
    """Targets of the rows that have a label; -1 means none."""
    rows = np.flatnonzero(values >= 0)
    return Target(torch.from_numpy(rows), torch.from_numpy(values[rows]), max(1.0, float(len(rows))))


def _inputs(draft: Draft | EncoderDraft, inputs: Mapping[str, InputSettings], longest: int) -> dict[str, Tensor]:
    """Tensors of the inputs that come from the corpus; the network computes those that follow from token ids."""
    return {name: torch.from_numpy(np.ascontiguousarray(settings.from_draft(name, draft)[:, :longest]))
            for name, settings in inputs.items() if not settings.from_ids or settings.reads_text}


def _collate_seq2seq(corpus: Corpus, source_rows: PaddedRows, target_rows: PaddedRows,
                     inputs: Mapping[str, InputSettings]) -> Batch:
    """Streams of the encoder and of the decoder, which is causal: padding is on the right and needs no mask."""
    assert target_rows.labels is not None, "the rows of a decoder have labels"
    index = np.flatnonzero(target_rows.labels >= 0)
    labels = target_rows.labels.reshape(-1)[index].astype(np.int64)
    positions = None if target_rows.position_ids is None else torch.from_numpy(target_rows.position_ids)
    corpus_inputs = {name: settings for name, settings in inputs.items() if not settings.from_ids}
    encoder_inputs = _inputs(EncoderDraft.from_rows(corpus, source_rows), corpus_inputs,
                             source_rows.input_ids.shape[1]) if corpus_inputs else {}
    streams = {ENCODER: Stream(torch.from_numpy(source_rows.input_ids.astype(np.int64)),
                               _padding_mask(torch.from_numpy(source_rows.lengths)),
                               skip_padding=True, inputs=encoder_inputs),
               DECODER: Stream(torch.from_numpy(target_rows.input_ids.astype(np.int64)), Causal(), positions,
                               causal_token_mask=_token_mask(torch.from_numpy(target_rows.lengths)))}
    target = Target(torch.from_numpy(index), torch.from_numpy(labels), max(1.0, float(len(index))),
                    target_rows.input_ids.shape[1])
    return Batch(streams, {LM_HEAD: target}, {}, int(source_rows.lengths.sum() + target_rows.lengths.sum()),
                 len(source_rows.input_ids))


def _attention_mask(draft: Draft, kind: AttentionMaskKind) -> Visibility:
    """The attention mask of a group. Only the bidirectional one must mask padding: in all others padding comes last."""
    lengths = torch.from_numpy(draft.lengths)
    longest = int(lengths.max())
    if kind == "causal":
        return Causal()
    if kind == "prefix":
        assert draft.prefix_lengths is not None, "no objective has set the prefix lengths"
        return Prefix(torch.from_numpy(draft.prefix_lengths))
    if kind == "later":
        return ReverseCausal(lengths)
    if kind == "permuted":
        assert draft.factorization_order is not None, "no objective has sampled a factorization order"
        return Permutation(torch.from_numpy(draft.factorization_order[:, :longest].copy()))
    return _padding_mask(lengths)


def _padding_mask(lengths: Tensor) -> Visibility:
    """Bidirectional attention over all positions but padding."""
    tokens = _token_mask(lengths)
    return Bidirectional() if tokens is None else PaddingRule(tokens)


def _token_mask(lengths: Tensor) -> Tensor | None:
    """(B, L) False at padding; None if there is no padding."""
    longest = int(lengths.max())
    return None if bool((lengths == longest).all()) else torch.arange(longest)[None, :] < lengths[:, None]


def _query_positions(draft: Draft) -> np.ndarray | None:
    """(rows, P) positions predicted through the query stream, in ascending order. Rows with fewer of them repeat the
    last one in the factorization order: it has context, and its output is not used."""
    indexes = [scored.index for scored in draft.token_targets.values() if scored.query_stream]
    if not indexes:
        return None
    assert len(indexes) == 1 and draft.factorization_order is not None, "one objective uses the query stream"
    row, position = np.divmod(indexes[0], draft.template.length)
    rank = _rank_in_row(row)
    used = np.arange(draft.template.length) < draft.lengths[:, None]
    last = np.argmax(np.where(used, draft.factorization_order, -1), axis=1)
    query = np.repeat(last[:, None], int(rank.max(initial=0)) + 1, axis=1)
    query[row, rank] = position
    return query


def _rank_in_row(row: np.ndarray) -> np.ndarray:
    """Rank of each entry within its row (`row` is sorted)."""
    return np.arange(len(row)) - np.searchsorted(row, row)
