"""What an objective really does to text: a few drafts as readable tokens. No network is built.

A target's `position` is the place that guesses. Where an example says `"guesses": "next"` (causal models), the token is
the one that comes after that place in the order of reading; with `"own"` it is the one that stands there. Of an
encoder-decoder, `original` is the source before it was spoilt, `input` what the encoder reads, and `targets` lie in the
decoder: at each place it reads a token of `decoder_input` and guesses the one of `decoder_targets`.
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

GRID_POSITIONS = 12  # places of the visibility picture


def inspect(recipe: Recipe, corpus: Corpus, examples: int = 3, seed: int = 0, step: int = 0) -> dict[str, Any]:
    """The first examples that a run with this seed would see from this step on, and figures of that step's batch. Which
    tasks and what length that is follows from the recipe's own number of steps."""
    recipe, told = drop_unsupported(recipe, corpus)
    for text in told:
        logger.warning(text)
    check_requirements(recipe, corpus)
    supply = PretrainLoader(recipe, corpus, build_objectives(recipe), seed)
    try:
        steps = recipe.settings.training.steps
        used = [min(number / steps, 1.0) for number in range(step + 1 + examples)]
        for earlier in range(step):
            supply.skip(earlier, supply.sequence_length_at(used[earlier]), used[earlier])
        length = supply.sequence_length_at(used[step])
        draft, active = supply.build_draft(step, length, used[step])
        batch = collate(draft, active[0].attention_mask_kind)
        shown = _examples(draft, batch, active, examples)
        for later in range(step + 1, step + 1 + examples):  # more than one batch holds: go on in the next ones
            if len(shown) == examples:
                break
            following, others = supply.build_draft(later, length, used[later])
            more = collate(following, others[0].attention_mask_kind)
            shown += _examples(following, more, others, examples - len(shown))
    finally:
        supply.close()
    mask = corpus.tokenizer.special_token_ids.get("mask")
    places = sum(stream.batch * stream.length for stream in batch.streams.values())
    return {"recipe": recipe.label, "step": step, "objectives": [objective.name for objective in active],
            "task": active[0].settings.task_id,
            "mask": None if mask is None else corpus.tokenizer.id_to_token(mask),
            "batch": {"rows": draft.rows, "length": length, "tokens": batch.num_tokens,
                      "padding": 1 - batch.num_tokens / places,
                      "scored": {head: len(target.index) for head, target in batch.token_targets.items()}},
            "examples": shown}


def _examples(draft: Draft, batch: Batch, active: tuple[Objective, ...], max_examples: int) -> list[dict[str, Any]]:
    next_token = any(objective.predicts_next for objective in active)
    rows = range(min(max_examples, draft.rows))
    if draft.seq2seq_rows:
        return [{**describe_row(draft, row), **_describe_seq2seq(draft, row), "guesses": "next",
                 "visibility": batch.streams[ENCODER].attention_mask.grid(min(GRID_POSITIONS,
                     int(draft.seq2seq_rows[ENCODER].lengths[row])),
                                                                row).int().tolist()} for row in rows]
    sees = batch.streams[ENCODER].attention_mask
    return [{**describe_row(draft, row), "guesses": "next" if next_token else "own",
             **_attention_grids(draft, sees, row)}
            for row in rows]


def _describe_seq2seq(draft: Draft, row: int) -> dict[str, Any]:
    tokens = draft.corpus.tokenizer.ids_to_tokens
    read, written = draft.seq2seq_rows[ENCODER], draft.seq2seq_rows[DECODER]
    length = int(written.lengths[row])
    assert written.labels is not None
    guessed = tokens(written.labels[row, :length].tolist())
    found = {"input": tokens(read.input_ids[row, :int(read.lengths[row])].tolist()),
             "decoder_input": tokens(written.input_ids[row, :length].tolist()), "decoder_targets": guessed,
             "targets": [{"position": place, "token": token, "head": LM_HEAD}
                         for place, token in enumerate(guessed)]}
    if written.position_ids is not None:
        found["decoder_positions"] = written.position_ids[row, :length].tolist()
    return found


def _attention_grids(draft: Draft, attention_mask: Visibility, row: int) -> dict[str, Any]:
    """Who sees whom: among the first places, which show the rule, or around the end of a prefix; of a random order
    among all of them, and for the second stream one line a target."""
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
        here = scored.index // width == row
        targets += [{"position": int(index % width), "token": tokenizer.id_to_token(int(label)), "head": head}
                    for index, label in zip(scored.index[here], scored.labels[here], strict=True)]
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
    """By task: the class that each place is asked for; None where it is not."""
    length, width = int(draft.lengths[row]), draft.template.length
    found: dict[str, list[int | None]] = {}
    for name, scored in draft.token_targets.items():
        if not scored.are_token_ids:
            here = scored.index // width == row
            answers = dict(zip((scored.index[here] % width).tolist(), scored.labels[here].tolist(), strict=True))
            found[name] = [answers.get(place) for place in range(length)]
    return found


def _unit_spans(units: np.ndarray) -> list[list[int]]:
    """[start, end) of each run of one unit; places without text belong to none."""
    edges = np.flatnonzero(np.diff(units, prepend=-2, append=-2))
    return [[int(start), int(stop)] for start, stop in zip(edges[:-1], edges[1:], strict=True) if units[start] >= 0]
