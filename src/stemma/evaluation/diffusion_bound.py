"""Upper bound on the negative log-likelihood of a text under a masked diffusion model (MDLM, arXiv:2406.07524).

The bound is the mean, over masking rates t and masks, of the sum of -log p / t over the masked tokens. If n tokens are
masked independently at a uniform rate, their number m is uniform in 1..n (and 0 costs nothing), and given m every set
of m tokens is equally likely. So the same bound is the mean over m of n / m times the loss of m random tokens, which
needs no small t with large weights. It is estimated with `samples` masks per window: m is stratified (one in each of as
many equal parts of 1..n), and all random numbers follow from the tokens, so a text has the same score each time.

A document longer than the context is scored in sliding windows, each given the tokens before it. The sum over windows
bounds the negative log-likelihood of the document that is generated in such blocks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.evaluation.likelihood import BATCH_TOKENS, log_probabilities
from stemma.generation.decoding_mode import decoding_spec, max_input_tokens
from stemma.model import Model
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Bidirectional, PaddingRule

DEFAULT_SAMPLES = 8


@dataclass(frozen=True)
class TokenBounds:
    """The bound of a text, as the share of each token, and the variance of their sum."""

    log_probabilities: np.ndarray  # (tokens,): the bound is minus their sum; a single one is no probability
    variance: float  # of the estimate, without the gain of stratification


@dataclass(frozen=True)
class _Window:
    text: int  # index
    start: int  # first target in the text
    tokens: np.ndarray  # context, then the targets
    num_targets: int


class DiffusionScorer:
    """A masked diffusion model that bounds the likelihood of text. `length` and `stride` as in `LMScorer`."""

    right_to_left, has_memory, memory = False, False, None

    def __init__(self, model: Model, length: int | None = None, stride: int | None = None, samples: int | None = None):
        spec = decoding_spec(model)
        assert spec is not None and spec.mode == "diffusion" and spec.mask_token_id is not None
        model.lm_head()
        self.model, self.template, self.mask_token_id = model.in_eval_mode(), spec.row_template, spec.mask_token_id
        maximum = max_input_tokens(model)
        self.length = length if length is not None else maximum or model.recipe.settings.corpus.sequence_length
        self.stride = stride if stride is not None else max(1, self.capacity // 2)
        self.samples = DEFAULT_SAMPLES if samples is None else samples
        limit, special = model.recipe.settings.network.max_length, len(self.template) - 1
        problems = []
        if self.capacity < 1 or (limit is not None and self.length > limit):
            problems.append((f"--length {self.length}", f"must lie between {special + 1} and {limit}"))
        elif not 1 <= self.stride <= self.capacity:
            problems.append((f"--stride {self.stride}", f"must lie between 1 and the {self.capacity} tokens of text in "
                                                        "a window"))
        if self.samples < 1:
            problems.append((f"--samples {self.samples}", "must be 1 or more"))
        if problems:
            raise UserError(f"{model.recipe.label} cannot read like this", problems)
        self.bos_id = spec.row_template[0]

    @property
    def capacity(self) -> int:
        """Text tokens in a window, besides the special tokens of a row."""
        return self.length - len(self.template) + 1

    def windows(self, text: int, tokens: np.ndarray) -> Iterator[_Window]:
        """Sliding windows: the first is scored whole, the others at their new tokens only."""
        scored = 0
        while scored < len(tokens):
            end = min(len(tokens), scored + self.stride if scored else self.capacity)
            yield _Window(text, scored, tokens[max(0, end - self.capacity):end], end - scored)
            scored = end

    def masks(self, window: _Window) -> np.ndarray:
        """(samples, targets) bool: the masked targets of each sample."""
        count = window.num_targets
        rng = np.random.default_rng([zlib.crc32(window.tokens.astype(np.int64).tobytes()), count])
        numbers = 1 + ((np.arange(self.samples) + rng.random(self.samples)) / self.samples * count).astype(np.int64)
        ranks = rng.random((self.samples, count)).argsort(1).argsort(1)
        masks: np.ndarray = ranks < np.minimum(numbers, count)[:, None]
        return masks


@torch.inference_mode()
def bound_tokens(scorer: DiffusionScorer, texts: Sequence[np.ndarray],
                 on_progress: Callable[[int], None] = lambda tokens: None) -> list[TokenBounds]:
    """The bound of each text."""
    values = [np.zeros(len(text)) for text in texts]
    variances = [0.0] * len(texts)
    windows = [window for index, text in enumerate(texts) for window in scorer.windows(index, text)]
    windows.sort(key=lambda window: -len(window.tokens))
    start = 0
    while start < len(windows):
        row_length = len(windows[start].tokens) + len(scorer.template) - 1
        stop = start + max(1, BATCH_TOKENS // (row_length * scorer.samples))
        batch = windows[start:stop]
        for window, samples in zip(batch, _sample_windows(scorer, batch), strict=True):
            values[window.text][window.start:window.start + window.num_targets] = samples.mean(0)
            if scorer.samples > 1:
                variances[window.text] += float(samples.sum(1).var(ddof=1)) / scorer.samples
            on_progress(window.num_targets)
        start = stop
    return [TokenBounds(*pair) for pair in zip(values, variances, strict=True)]


def _sample_windows(scorer: DiffusionScorer, windows: Sequence[_Window]) -> Iterator[np.ndarray]:
    """(samples, targets) of each window: n / m log p at the masked targets, 0 elsewhere."""
    longest = max(len(window.tokens) for window in windows)
    special, first = len(scorer.template) - 1, scorer.template.index(None)
    ids = np.zeros((len(windows), scorer.samples, longest + special), np.int64)
    masked, real = np.zeros(ids.shape, bool), np.zeros(ids.shape, bool)
    for row, window in enumerate(windows):
        end = first + len(window.tokens)
        line = [token for slot in scorer.template for token in (window.tokens if slot is None else [slot])]
        ids[row, :, :len(line)] = line
        real[row, :, :len(line)] = True
        masked[row, :, end - window.num_targets:end] = scorer.masks(window)
    device = scorer.model.device
    original, at = (torch.from_numpy(array).flatten(0, 1).to(device) for array in (ids, masked))
    positions = at.flatten().nonzero()[:, 0]
    padding = PaddingRule(torch.from_numpy(real).flatten(0, 1).to(device)) if not real.all() else Bidirectional()
    stream = Stream(original.masked_fill(at, scorer.mask_token_id), padding, output_positions=positions)
    hidden: Tensor = scorer.model.network({"encoder": stream})["encoder"].flatten(0, 1)[positions]
    values, _ = log_probabilities(scorer.model.lm_head(), hidden, original[at], scorer.model.network.vocab_size,
                                  excluded=scorer.mask_token_id)
    scores = np.zeros(masked.shape)
    scores[masked] = values.double().cpu().numpy()
    for row, window in enumerate(windows):
        end = first + len(window.tokens)
        targets = slice(end - window.num_targets, end)
        counts = masked[row, :, targets].sum(1, keepdims=True)
        yield scores[row, :, targets] * (window.num_targets / counts)
