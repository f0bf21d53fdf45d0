"""What an objective really does to text: a few drafts as readable tokens. No network is built."""

from __future__ import annotations

from typing import Any

import numpy as np

from stemma.corpus.draft import Draft
from stemma.corpus.shards import Corpus
from stemma.lineage import Recipe
from stemma.objectives import build_objectives, check_needs, finish
from stemma.training.supply import Supply

GRID = 12  # places of the visibility picture


def inspect(recipe: Recipe, corpus: Corpus, examples: int = 3, seed: int = 0, step: int = 0) -> dict[str, Any]:
    """The first examples that a run with this seed would see from this step on, and figures of that step's batch."""
    check_needs(recipe, corpus)
    supply = Supply(recipe, corpus, build_objectives(recipe), seed)
    try:
        length = supply.length_at(0.0)
        for earlier in range(step):
            supply.skip(earlier, length)
        draft, active = supply.draft(step, length)
        shown = _examples(draft, examples)
        for later in range(step + 1, step + 1 + examples):  # more than one batch holds: go on in the next ones
            if len(shown) == examples:
                break
            shown += _examples(supply.draft(later, length)[0], examples - len(shown))
    finally:
        supply.close()
    tokens, mask = int(draft.lengths.sum()), corpus.tokenizer.roles.get("mask")
    return {"recipe": recipe.label, "step": step, "objectives": [objective.name for objective in active],
            "mask": None if mask is None else corpus.tokenizer.token(mask),
            "batch": {"rows": draft.rows, "length": length, "tokens": tokens,
                      "padding": 1 - tokens / (draft.rows * length),
                      "scored": {head: len(scored.index) for head, scored in draft.scores.items()}},
            "examples": shown}


def _examples(draft: Draft, most: int) -> list[dict[str, Any]]:
    sees = finish(draft).streams["encoder"].sees
    return [{**describe(draft, row), "visibility": sees.grid(min(GRID, int(draft.lengths[row])), row).int().tolist()}
            for row in range(min(most, draft.rows))]


def describe(draft: Draft, row: int) -> dict[str, Any]:
    tokenizer = draft.corpus.tokenizer
    length = int(draft.lengths[row])
    width = draft.layout.length
    targets = []
    for head, scored in draft.scores.items():
        here = scored.index // width == row
        targets += [{"position": int(index % width), "token": tokenizer.token(int(label)), "head": head}
                    for index, label in zip(scored.index[here], scored.labels[here], strict=True)]
    return {"original": tokenizer.tokens(draft.original[row, :length].tolist()),
            "input": tokenizer.tokens(draft.ids[row, :length].tolist()),
            "targets": sorted(targets, key=lambda target: target["position"]),
            "words": _spans(draft.words[row, :length]),
            "segments": draft.segments[row, :length].tolist(),
            "labels": {head: int(values[row]) for head, values in draft.labels.items()}}


def _spans(units: np.ndarray) -> list[list[int]]:
    """[start, end) of each run of one unit; places without text belong to none."""
    edges = np.flatnonzero(np.diff(units, prepend=-2, append=-2))
    return [[int(start), int(stop)] for start, stop in zip(edges[:-1], edges[1:], strict=True) if units[start] >= 0]
