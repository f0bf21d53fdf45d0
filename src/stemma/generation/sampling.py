"""From logits to tokens: repetition penalty, temperature, top-k and top-p, and sampling.

Every row samples with its own random numbers, which depend on the seed and its prompt. So a text does not depend on
the other rows of the batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stemma.generation.options import GenerationOptions

NUCLEUS_SHORTLIST = 1024  # nearly always contains the nucleus; sorting the whole vocabulary is slower than a layer


def apply_repetition_penalty(logits: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Lower the logits (R, V) of tokens that are already in the text (R, T) (CTRL, arXiv:1909.05858, section 4.1):
    positive logits are divided by the penalty and negative ones multiplied."""
    if penalty == 1.0:
        return logits
    scores = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(scores > 0, scores / penalty, scores * penalty))


def mask_tokens(logits: Tensor, tokens: Sequence[int], vocab_size: int) -> Tensor:
    """Set these tokens, and ids from `vocab_size` on, to -inf: embedding matrices are often padded to a round size."""
    if not tokens and vocab_size >= logits.shape[1]:
        return logits
    logits = logits.clone()
    logits[:, vocab_size:] = -torch.inf
    logits[:, list(tokens)] = -torch.inf
    return logits


def uniform_numbers(options: GenerationOptions, prompts: Sequence[Sequence[int]], completion_indices: Sequence[int],
                    seed: int, per_token: int = 1) -> Tensor:
    """(R, per_token x tokens): the uniform random numbers of each row. Rows of one prompt differ by their completion
    index."""
    rows = []
    for prompt, index in zip(prompts, completion_indices, strict=True):
        entropy = [seed & 0xFFFFFFFF, seed >> 32, zlib.crc32(np.array(prompt, np.int64).tobytes()), index]
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))
        rows.append(generator.random(per_token * options.tokens))
    return torch.from_numpy(np.stack(rows))


def sample(logits: Tensor, options: GenerationOptions, uniform: Tensor) -> Tensor:
    """(R, V), (R,) -> (R,) tokens: inverse-CDF sampling from the filtered distribution."""
    if options.temperature is not None:
        logits = logits / options.temperature
    probabilities, tokens = filter_top_k_top_p(logits.float().softmax(-1), options.top_k, options.nucleus)
    cdf = probabilities.double().cumsum(-1)  # in single precision 50,000 small steps do not add up to one
    index = torch.searchsorted(cdf, uniform.to(cdf)[:, None] * cdf[:, -1:], right=True)
    index = index.clamp(max=cdf.shape[1] - 1)
    return (index if tokens is None else tokens.gather(1, index)).squeeze(1)


def filter_top_k_top_p(probabilities: Tensor, top_k: int | None, top_p: float | None) -> tuple[Tensor, Tensor | None]:
    """(R, V) -> (R, C) probabilities of the tokens to sample from (0 where a row has fewer), and their ids (None: all
    tokens in order)."""
    vocabulary = probabilities.shape[1]
    if top_k is None and (top_p is None or top_p >= 1):
        return probabilities, None
    if top_k is not None:
        likely, tokens = probabilities.topk(min(top_k, vocabulary))
        total = likely.sum(-1, keepdim=True)  # top_p applies after top_k
    else:
        likely, tokens = probabilities.topk(min(NUCLEUS_SHORTLIST, vocabulary))
        if bool((likely.sum(-1) < (top_p or 1)).any()):
            likely, tokens = probabilities.sort(descending=True)
        total = probabilities.sum(-1, keepdim=True)
    if top_p is not None and top_p < 1:
        cumulative_before = likely.cumsum(-1) - likely  # the token that crosses top_p is included
        likely = likely * (cumulative_before < top_p * total)
    return likely, tokens
