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
    """The first examples of the batch that a run with this seed would see at this step."""
    check_needs(recipe, corpus)
    supply = Supply(recipe, corpus, build_objectives(recipe), seed)
    try:
        length = supply.length_at(0.0)
        for earlier in range(step):
            supply.skip(earlier, length)
        draft, active = supply.draft(step, length)
    finally:
        supply.close()
    batch = finish(draft)
    count = min(examples, draft.rows)
    grids = [batch.streams["encoder"].sees.grid(min(GRID, int(draft.lengths[row])), row).int().tolist()
             for row in range(count)]
    mask = corpus.tokenizer.roles.get("mask")
    return {"recipe": recipe.label, "step": step, "objectives": [objective.name for objective in active],
            "mask": None if mask is None else corpus.tokenizer.token(mask),
            "batch": {"rows": draft.rows, "length": length, "tokens": batch.tokens,
                      "padding": 1 - batch.tokens / (draft.rows * length),
                      "scored": {head: len(scored.index) for head, scored in draft.scores.items()}},
            "examples": [{**describe(draft, row), "visibility": grids[row]} for row in range(count)]}


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
