"""From the scores of a step to the tokens that are written: penalties, temperature, cut-offs, and one draw a row.

Every row draws with its own numbers, made from the seed and its prompt. What stands beside it in a batch, or how the
batch shrinks, therefore never changes a text.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stemma.generation.options import GenerationOptions

NUCLEUS_SHORTLIST = 1024  # the nucleus is nearly always among so many; sorting a whole vocabulary takes longer than a
#                           layer


def apply_repetition_penalty(logits: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Lower the scores (R, V) of tokens that the text (R, T) has already (CTRL, arXiv:1909.05858, section 4.1):
    divided by the penalty, or multiplied where they are negative, so that both ways they fall."""
    if penalty == 1.0:
        return logits
    scores = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(scores > 0, scores / penalty, scores * penalty))


def mask_tokens(logits: Tensor, tokens: Sequence[int], vocab_size: int) -> Tensor:
    """Without these tokens and those beyond the `named`: published vocabularies are often filled up to a round
    number."""
    if not tokens and vocab_size >= logits.shape[1]:
        return logits
    logits = logits.clone()
    logits[:, vocab_size:] = -torch.inf
    logits[:, list(tokens)] = -torch.inf
    return logits


def uniform_numbers(options: GenerationOptions, prompts: Sequence[Sequence[int]], completion_indices: Sequence[int],
                    seed: int) -> Tensor:
    """(R, tokens): what each row will draw with. Rows of one prompt are told apart by their number."""
    rows = []
    for prompt, number in zip(prompts, completion_indices, strict=True):
        words = [seed & 0xFFFFFFFF, seed >> 32, zlib.crc32(np.array(prompt, np.int64).tobytes()), number]
        rows.append(np.random.Generator(np.random.SFC64(np.random.SeedSequence(words))).random(options.tokens))
    return torch.from_numpy(np.stack(rows))


def sample(logits: Tensor, options: GenerationOptions, uniform: Tensor) -> Tensor:
    """(R, V), (R,) -> (R,) tokens: where each row's number falls among the probabilities that are left."""
    if options.temperature is not None:
        logits = logits / options.temperature
    probabilities, tokens = filter_top_k_top_p(logits.float().softmax(-1), options.top_k, options.nucleus)
    reached = probabilities.double().cumsum(-1)  # in single precision 50,000 small steps do not add up to one
    place = torch.searchsorted(reached, uniform.to(reached)[:, None] * reached[:, -1:], right=True)
    place = place.clamp(max=reached.shape[1] - 1)
    return (place if tokens is None else tokens.gather(1, place)).squeeze(1)


def filter_top_k_top_p(probabilities: Tensor, top_k: int | None, top_p: float | None) -> tuple[Tensor, Tensor | None]:
    """(R, V) -> (R, C) the probabilities of those that may be drawn, 0 where a row has fewer, and which tokens they
    are (None: all, in their order)."""
    vocabulary = probabilities.shape[1]
    if top_k is None and (top_p is None or top_p >= 1):
        return probabilities, None
    if top_k is not None:
        likely, tokens = probabilities.topk(min(top_k, vocabulary))
        whole = likely.sum(-1, keepdim=True)  # the nucleus is that of what top_k has left
    else:
        likely, tokens = probabilities.topk(min(NUCLEUS_SHORTLIST, vocabulary))
        if bool((likely.sum(-1) < (top_p or 1)).any()):
            likely, tokens = probabilities.sort(descending=True)
        whole = probabilities.sum(-1, keepdim=True)
    if top_p is not None and top_p < 1:
        before = likely.cumsum(-1) - likely  # the token that crosses the line still belongs
        likely = likely * (before < top_p * whole)
    return likely, tokens
