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

from stemma.corpus.draft import Draft
from stemma.corpus.shards import Corpus
from stemma.corpus.sides import DECODER, ENCODER
from stemma.lineage import Recipe
from stemma.objectives import Batch, Objective, build_objectives, check_needs, finish, without_data
from stemma.objectives.base import VOCABULARY
from stemma.training.supply import Supply
from stemma.visibility import Others, Visibility

logger = logging.getLogger(__name__)

GRID = 12  # places of the visibility picture


def inspect(recipe: Recipe, corpus: Corpus, examples: int = 3, seed: int = 0, step: int = 0) -> dict[str, Any]:
    """The first examples that a run with this seed would see from this step on, and figures of that step's batch. Which
    tasks and what length that is follows from the recipe's own number of steps."""
    recipe, told = without_data(recipe, corpus)
    for text in told:
        logger.warning(text)
    check_needs(recipe, corpus)
    supply = Supply(recipe, corpus, build_objectives(recipe), seed)
    try:
        steps = recipe.settings.training.steps
        used = [min(number / steps, 1.0) for number in range(step + 1 + examples)]
        for earlier in range(step):
            supply.skip(earlier, supply.length_at(used[earlier]), used[earlier])
        length = supply.length_at(used[step])
        draft, active = supply.draft(step, length, used[step])
        batch = finish(draft, active[0].visibility)
        shown = _examples(draft, batch, active, examples)
        for later in range(step + 1, step + 1 + examples):  # more than one batch holds: go on in the next ones
            if len(shown) == examples:
                break
            following, others = supply.draft(later, length, used[later])
            more = finish(following, others[0].visibility)
            shown += _examples(following, more, others, examples - len(shown))
    finally:
        supply.close()
    mask = corpus.tokenizer.roles.get("mask")
    places = sum(stream.batch * stream.length for stream in batch.streams.values())
    return {"recipe": recipe.label, "step": step, "objectives": [objective.name for objective in active],
            "task": active[0].settings.task_id,
            "mask": None if mask is None else corpus.tokenizer.token(mask),
            "batch": {"rows": draft.rows, "length": length, "tokens": batch.tokens,
                      "padding": 1 - batch.tokens / places,
                      "scored": {head: len(target.index) for head, target in batch.scores.items()}},
            "examples": shown}


def _examples(draft: Draft, batch: Batch, active: tuple[Objective, ...], most: int) -> list[dict[str, Any]]:
    next_token = any(objective.guesses_next for objective in active)
    rows = range(min(most, draft.rows))
    if draft.sides:
        return [{**describe(draft, row), **_two_sides(draft, row), "guesses": "next",
                 "visibility": batch.streams[ENCODER].sees.grid(min(GRID, int(draft.sides[ENCODER].lengths[row])),
                                                                row).int().tolist()} for row in rows]
    sees = batch.streams[ENCODER].sees
    return [{**describe(draft, row), "guesses": "next" if next_token else "own", **_grids(draft, sees, row)}
            for row in rows]


def _two_sides(draft: Draft, row: int) -> dict[str, Any]:
    tokens = draft.corpus.tokenizer.tokens
    read, written = draft.sides[ENCODER], draft.sides[DECODER]
    length = int(written.lengths[row])
    assert written.labels is not None
    guessed = tokens(written.labels[row, :length].tolist())
    found = {"input": tokens(read.ids[row, :int(read.lengths[row])].tolist()),
             "decoder_input": tokens(written.ids[row, :length].tolist()), "decoder_targets": guessed,
             "targets": [{"position": place, "token": token, "head": VOCABULARY}
                         for place, token in enumerate(guessed)]}
    if written.positions is not None:
        found["decoder_positions"] = written.positions[row, :length].tolist()
    return found


def _grids(draft: Draft, sees: Visibility, row: int) -> dict[str, Any]:
    """Who sees whom: among the first places, which show the rule, or around the end of a prefix; of a random order
    among all of them, and for the second stream one line a target."""
    length = int(draft.lengths[row])
    if draft.prefix is not None:
        prefix = int(draft.prefix[row])
        first = max(0, min(prefix - GRID // 2, length - GRID))
        shown = slice(first, min(first + GRID, length))
        return {"prefix": prefix, "visibility": sees.grid(length, row)[shown, shown].int().tolist()}
    if draft.order is None:
        return {"visibility": sees.grid(min(GRID, length), row).int().tolist()}
    index = np.concatenate([scored.index for scored in draft.scores.values() if scored.unseen])
    targets = index[index // draft.layout.length == row] % draft.layout.length
    return {"order": draft.order[row, :length].tolist(), "visibility": sees.grid(length, row).int().tolist(),
            "query_visibility": (sees & Others()).grid(length, row)[targets].int().tolist()}


def describe(draft: Draft, row: int) -> dict[str, Any]:
    tokenizer = draft.corpus.tokenizer
    length = int(draft.lengths[row])
    width = draft.layout.length
    targets = []
    for head, scored in draft.scores.items():
        if not scored.tokens:
            continue
        here = scored.index // width == row
        targets += [{"position": int(index % width), "token": tokenizer.token(int(label)), "head": head}
                    for index, label in zip(scored.index[here], scored.labels[here], strict=True)]
    return {"original": tokenizer.tokens(draft.original[row, :length].tolist()),
            "input": tokenizer.tokens(draft.ids[row, :length].tolist()),
            "targets": sorted(targets, key=lambda target: target["position"]),
            "words": _spans(draft.words[row, :length]),
            **({} if draft.parted is None else {"units": _spans(draft.parted[row, :length])}),
            "segments": draft.segments[row, :length].tolist(),
            "direction": "backward" if draft.backward is not None and draft.backward[row] else "forward",
            "past": int(draft.past[row]),
            "labels": {head: int(values[row]) for head, values in draft.labels.items()},
            **({"classes": classes} if (classes := _classes(draft, row)) else {})}


def _classes(draft: Draft, row: int) -> dict[str, list[int | None]]:
    """By task: the class that each place is asked for; None where it is not."""
    length, width = int(draft.lengths[row]), draft.layout.length
    found: dict[str, list[int | None]] = {}
    for name, scored in draft.scores.items():
        if not scored.tokens:
            here = scored.index // width == row
            answers = dict(zip((scored.index[here] % width).tolist(), scored.labels[here].tolist(), strict=True))
            found[name] = [answers.get(place) for place in range(length)]
    return found


def _spans(units: np.ndarray) -> list[list[int]]:
    """[start, end) of each run of one unit; places without text belong to none."""
    edges = np.flatnonzero(np.diff(units, prepend=-2, append=-2))
    return [[int(start), int(stop)] for start, stop in zip(edges[:-1], edges[1:], strict=True) if units[start] >= 0]
