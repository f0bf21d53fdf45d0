"""The one loop: ask what comes next, take one token in every row, let the rows that have ended go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stemma.generation.options import Options
from stemma.generation.reader import Reader
from stemma.generation.sampling import draw, forbid, penalise
from stemma.generation.text import Writing


def allowed(reader: Reader, logits: Tensor, options: Options, step: int, ends: Sequence[int], named: int) -> Tensor:
    """The scores (R, V) that the next token is chosen by."""
    logits = penalise(logits, reader.ids, options.repetition_penalty)
    return forbid(logits, ends if step < options.min_tokens else (), named)


def write(reader: Reader, writings: Sequence[Writing], limits: Sequence[int], options: Options,
          uniform: Tensor | None, ends: Sequence[int], named: int) -> Iterator[list[tuple[Writing, str]]]:
    """Yields, step by step, what became readable in each row, which has at most so many tokens; `uniform` (R, tokens)
    is what rows draw with (None: the likeliest token is taken)."""
    alive, left = list(writings), list(limits)
    for step in range(max(limits)):
        logits = reader.expect()
        scores = allowed(reader, logits, options, step, ends, named)
        chosen = scores.argmax(-1) if uniform is None else draw(scores, options, uniform[:, step])
        chances = logits.float().log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)
        reader.add(chosen)
        pieces = [(writing, writing.add(token, chance, step == limit - 1)) for writing, token, chance, limit
                  in zip(alive, chosen.tolist(), chances.tolist(), left, strict=True)]
        going_on = [row for row, writing in enumerate(alive) if writing.ended is None]
        if len(going_on) < len(alive):
            alive, left = [alive[row] for row in going_on], [left[row] for row in going_on]
            if alive:
                reader.choose(going_on)
                uniform = None if uniform is None else uniform[torch.tensor(going_on)]
        yield pieces
        if not alive:
            return
