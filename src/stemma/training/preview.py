"""`stemma inspect`: training examples of a recipe as readable tokens. No network is built.

The `position` of a target is the position that predicts it. With `"guesses": "next"` (causal models) the label is the
next token in reading order; with `"own"` it is the original token at that position. For an encoder-decoder, `original`
is the source before corruption, `input` the encoder input, and the `targets` are in the decoder, which reads
`decoder_input` and predicts `decoder_targets`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.objectives import Batch, Objective, build_objectives, check_requirements, collate, drop_unsupported
from stemma.objectives.base import LM_HEAD
from stemma.recipe_loading import Recipe
from stemma.training.pretrain_loader import PretrainLoader
from stemma.visibility import ExcludeSelf, Visibility

logger = logging.getLogger(__name__)

GRID_POSITIONS = 12  # positions in the attention-mask grid


def inspect(recipe: Recipe, corpus: Corpus, examples: int = 3, seed: int = 0, step: int = 0) -> dict[str, Any]:
    """The first examples of a run with this seed from this step on, and statistics of that batch. The number of steps
    in the recipe determines the active objectives and the sequence length."""
    recipe, warnings = drop_unsupported(recipe, corpus)
    for warning in warnings:
        logger.warning(warning)
    check_requirements(recipe, corpus)
    loader = PretrainLoader(recipe, corpus, build_objectives(recipe), seed)
    try:
        steps = recipe.settings.training.steps
        progress = [min(index / steps, 1.0) for index in range(step + 1 + examples)]
        for earlier in range(step):
            loader.skip(earlier, loader.sequence_length_at(progress[earlier]), progress[earlier])
        length = loader.sequence_length_at(progress[step])
        draft, active = loader.build_draft(step, length, progress[step])
        batch = collate(draft, active[0].attention_mask_kind)
        shown_examples = _examples(draft, batch, active, examples)
        for next_step in range(step + 1, step + 1 + examples):  # one batch has too few rows
            if len(shown_examples) == examples:
                break
            next_draft, next_active = loader.build_draft(next_step, length, progress[next_step])
            next_batch = collate(next_draft, next_active[0].attention_mask_kind)
            shown_examples += _examples(next_draft, next_batch, next_active, examples - len(shown_examples))
    finally:
        loader.close()
    mask = corpus.tokenizer.special_token_ids.get("mask")
    positions = sum(stream.batch * stream.length for stream in batch.streams.values())
    return {"recipe": recipe.label, "step": step, "objectives": [objective.name for objective in active],
            "task": active[0].settings.task_id,
            "mask": None if mask is None else corpus.tokenizer.id_to_token(mask),
            "batch": {"rows": draft.rows, "length": length, "tokens": batch.num_tokens,
                      "padding": 1 - batch.num_tokens / positions,
                      "scored": {head: len(target.index) for head, target in batch.token_targets.items()}},
            "examples": shown_examples}


def _examples(draft: Draft, batch: Batch, active: tuple[Objective, ...], max_examples: int) -> list[dict[str, Any]]:
    next_token = any(objective.predicts_next or objective.settings.target_shift for objective in active)
    rows = range(min(max_examples, draft.rows))
    if draft.seq2seq_rows:
        mask, lengths = batch.streams[ENCODER].attention_mask, draft.seq2seq_rows[ENCODER].lengths
        return [{**describe_row(draft, row), **_describe_seq2seq(draft, row), "guesses": "next",
                 "visibility": mask.grid(min(GRID_POSITIONS, int(lengths[row])), row).int().tolist()} for row in rows]
    attention_mask = batch.streams[ENCODER].attention_mask
    return [{**describe_row(draft, row), "guesses": "next" if next_token else "own",
             **_attention_grids(draft, attention_mask, row)} for row in rows]


def _describe_seq2seq(draft: Draft, row: int) -> dict[str, Any]:
    tokens = draft.corpus.tokenizer.ids_to_tokens
    source, target = draft.seq2seq_rows[ENCODER], draft.seq2seq_rows[DECODER]
    length = int(target.lengths[row])
    assert target.labels is not None
    labels = tokens(target.labels[row, :length].tolist())
    description = {"input": tokens(source.input_ids[row, :int(source.lengths[row])].tolist()),
                   "decoder_input": tokens(target.input_ids[row, :length].tolist()), "decoder_targets": labels,
                   "targets": [{"position": position, "token": token, "head": LM_HEAD}
                               for position, token in enumerate(labels)]}
    if target.position_ids is not None:
        description["decoder_positions"] = target.position_ids[row, :length].tolist()
    return description


def _attention_grids(draft: Draft, attention_mask: Visibility, row: int) -> dict[str, Any]:
    """The attention mask as a grid: the first positions, or those around the end of a prefix. For a permutation, all
    positions, and one row per target for the query stream."""
    length = int(draft.lengths[row])
    if draft.prefix_lengths is not None:
        prefix = int(draft.prefix_lengths[row])
        first = max(0, min(prefix - GRID_POSITIONS // 2, length - GRID_POSITIONS))
        shown = slice(first, min(first + GRID_POSITIONS, length))
        return {"prefix": prefix, "visibility": attention_mask.grid(length, row)[shown, shown].int().tolist()}
    if draft.factorization_order is None:
        return {"visibility": attention_mask.grid(min(GRID_POSITIONS, length), row).int().tolist()}
    index = np.concatenate([scored.index for scored in draft.token_targets.values() if scored.query_stream])
    targets = index[index // draft.template.length == row] % draft.template.length
    return {"order": draft.factorization_order[row, :length].tolist(),
            "visibility": attention_mask.grid(length, row).int().tolist(),
            "query_visibility": (attention_mask & ExcludeSelf()).grid(length, row)[targets].int().tolist()}


def describe_row(draft: Draft, row: int) -> dict[str, Any]:
    tokenizer = draft.corpus.tokenizer
    length = int(draft.lengths[row])
    width = draft.template.length
    targets = []
    for head, scored in draft.token_targets.items():
        if not scored.are_token_ids:
            continue
        in_row = scored.index // width == row
        targets += [{"position": int(index % width), "token": tokenizer.id_to_token(int(label)), "head": head}
                    for index, label in zip(scored.index[in_row], scored.labels[in_row], strict=True)]
    return {"original": tokenizer.ids_to_tokens(draft.original_ids[row, :length].tolist()),
            "input": tokenizer.ids_to_tokens(draft.input_ids[row, :length].tolist()),
            "targets": sorted(targets, key=lambda target: target["position"]),
            "words": _unit_spans(draft.word_ids[row, :length]),
            **({} if draft.unit_ids is None else {"units": _unit_spans(draft.unit_ids[row, :length])}),
            "segments": draft.segment_ids[row, :length].tolist(),
            "direction": "backward" if draft.reversed_rows is not None and draft.reversed_rows[row] else "forward",
            "past": int(draft.reuse_lengths[row]),
            "labels": {head: int(values[row]) for head, values in draft.row_labels.items()},
            **({"classes": classes} if (classes := _token_labels(draft, row)) else {})}


def _token_labels(draft: Draft, row: int) -> dict[str, list[int | None]]:
    """By objective: the class label of each position; None if it has none."""
    length, width = int(draft.lengths[row]), draft.template.length
    labels: dict[str, list[int | None]] = {}
    for name, scored in draft.token_targets.items():
        if not scored.are_token_ids:
            in_row = scored.index // width == row
            positions = scored.index[in_row] % width
            by_position = dict(zip(positions.tolist(), scored.labels[in_row].tolist(), strict=True))
            labels[name] = [by_position.get(position) for position in range(length)]
    return labels


def _unit_spans(units: np.ndarray) -> list[list[int]]:
    """[start, end) of each unit; positions without text belong to none."""
    edges = np.flatnonzero(np.diff(units, prepend=-2, append=-2))
    return [[int(start), int(stop)] for start, stop in zip(edges[:-1], edges[1:], strict=True) if units[start] >= 0]
