"""The one loop: ask what comes next, take one token in every row, let the rows that have ended go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stemma.generation.decoding_state import DecodingState
from stemma.generation.options import GenerationOptions
from stemma.generation.partial_completion import PartialCompletion
from stemma.generation.sampling import apply_repetition_penalty, mask_tokens, sample


def process_logits(state: DecodingState, logits: Tensor, options: GenerationOptions, step: int,
                   eos_token_ids: Sequence[int], vocab_size: int) -> Tensor:
    """The scores (R, V) that the next token is chosen by."""
    logits = apply_repetition_penalty(logits, state.input_ids, options.repetition_penalty)
    return mask_tokens(logits, eos_token_ids if step < options.min_tokens else (), vocab_size)


def decode_step_by_step(state: DecodingState, completions: Sequence[PartialCompletion], max_new_tokens: Sequence[int],
                        options: GenerationOptions,
          uniform: Tensor | None, eos_token_ids: Sequence[int],
                        vocab_size: int) -> Iterator[list[tuple[PartialCompletion, str]]]:
    """Yields, step by step, what became readable in each row, which has at most so many tokens; `uniform` (R, tokens)
    is what rows draw with (None: the likeliest token is taken)."""
    alive, left = list(completions), list(max_new_tokens)
    for step in range(max(max_new_tokens)):
        logits = state.next_logits()
        scores = process_logits(state, logits, options, step, eos_token_ids, vocab_size)
        chosen = scores.argmax(-1) if uniform is None else sample(scores, options, uniform[:, step])
        chances = logits.float().log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)
        state.append(chosen)
        pieces = [(writing, writing.append(token, chance, step == limit - 1)) for writing, token, chance, limit
                  in zip(alive, chosen.tolist(), chances.tolist(), left, strict=True)]
        going_on = [row for row, writing in enumerate(alive) if writing.finish_reason is None]
        if len(going_on) < len(alive):
            alive, left = [alive[row] for row in going_on], [left[row] for row in going_on]
            if alive:
                state.select_rows(going_on)
                uniform = None if uniform is None else uniform[torch.tensor(going_on)]
        yield pieces
        if not alive:
            return
