"""The decoding loop for sampling and greedy search: one token per row and step; finished rows leave the batch."""

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
    """Logits (R, V) after the repetition penalty, with forbidden tokens masked."""
    logits = apply_repetition_penalty(logits, state.input_ids, options.repetition_penalty)
    return mask_tokens(logits, eos_token_ids if step < options.min_tokens else (), vocab_size)


def decode_step_by_step(state: DecodingState, completions: Sequence[PartialCompletion], max_new_tokens: Sequence[int],
                        options: GenerationOptions, uniform: Tensor | None, eos_token_ids: Sequence[int],
                        vocab_size: int) -> Iterator[list[tuple[PartialCompletion, str]]]:
    """Yields the new text of each row, step by step. `max_new_tokens` limits each row; `uniform` (R, tokens) are the
    random numbers to sample with (None: greedy)."""
    active, limits = list(completions), list(max_new_tokens)
    for step in range(max(max_new_tokens)):
        logits = state.next_logits()
        scores = process_logits(state, logits, options, step, eos_token_ids, vocab_size)
        tokens = scores.argmax(-1) if uniform is None else sample(scores, options, uniform[:, step])
        log_probabilities = logits.float().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
        state.append(tokens)
        pieces = [(completion, completion.append(token, log_probability, step == limit - 1))
                  for completion, token, log_probability, limit
                  in zip(active, tokens.tolist(), log_probabilities.tolist(), limits, strict=True)]
        unfinished = [row for row, completion in enumerate(active) if completion.finish_reason is None]
        if len(unfinished) < len(active):
            active, limits = [active[row] for row in unfinished], [limits[row] for row in unfinished]
            if active:
                state.select_rows(unfinished)
                uniform = None if uniform is None else uniform[torch.tensor(unfinished)]
        yield pieces
        if not active:
            return
