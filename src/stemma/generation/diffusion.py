"""Generation by a masked diffusion model: the positions after the prompt begin as masks and are unmasked over many
steps (MDLM, arXiv:2406.07524, section 3.2.3).

In one step of ancestral sampling, time goes from t to s < t. A position that is still a mask stays one with probability
s / t; otherwise its token is sampled from the network's distribution, given the text so far. An unmasked token never
changes. With N equal steps this means: the step in which a position is unmasked is uniform among the N. So it is drawn
first, and the network runs only in steps in which a token changes. (The authors' cache saves the same passes.)

All positions of a step are sampled independently: fewer steps are faster and less coherent. A text that exceeds the
context length is generated in blocks, each after the last part of the text before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.generation.decoding_mode import DecodingSpec
from stemma.generation.options import GenerationOptions
from stemma.generation.partial_completion import PartialCompletion
from stemma.generation.sampling import mask_tokens, sample
from stemma.model import Model
from stemma.network.inputs_outputs import Stream
from stemma.visibility import Bidirectional

DEFAULT_STEPS = 128  # the authors'
NUMBERS_PER_TOKEN = 2  # uniform random numbers: the step, and the token


def check_options(model: Model, spec: DecodingSpec, options: GenerationOptions) -> None:
    """Refuse options that the model's way of generation does not have, all at once."""
    label = model.recipe.label
    if spec.mode != "diffusion":
        if options.steps is not None:
            raise UserError(f"--steps is for diffusion models, such as mdlm; {label} generates one token after "
                            "another: leave it out.")
        return
    problems = []
    if options.beams > 1:
        problems.append(("beams", "keeps several beginnings of a text, and here tokens come in any order; leave it "
                                  "out"))
    if options.repetition_penalty != 1:
        problems.append(("repetition_penalty", "is not supported: positions of one step do not see each other; leave "
                                               "it out"))
    if problems:
        raise UserError(f"{label} is a diffusion model and cannot follow "
                        f"{'these options' if len(problems) > 1 else 'this option'}", problems)


class Unmasking:
    """A batch of texts of equal length that grow by blocks of masks, which are then unmasked."""

    def __init__(self, model: Model, spec: DecodingSpec, prompts: Sequence[Sequence[int]], options: GenerationOptions,
                 uniform: Tensor, vocab_size: int):
        """`uniform` (R, 2, tokens): random numbers for the steps and for the tokens."""
        assert spec.mask_token_id is not None
        self.model, self.spec, self.options, self.vocab_size = model, spec, options, vocab_size
        self.num_steps = DEFAULT_STEPS if options.steps is None else options.steps
        self.text = torch.tensor([list(prompt) for prompt in prompts], device=model.device)  # (R, T)
        self.prompt_length = self.text.shape[1]
        self.uniform = uniform
        self.context_truncated = False
        self.max_length = spec.max_length

    def add_block(self, remaining: int) -> Tensor:
        """Generate the next at most `remaining` tokens; returns their log-probabilities (R, block)."""
        length, block = self.text.shape[1], remaining
        context = length
        if self.spec.max_length is not None:
            capacity = self.spec.max_length - len(self.spec.row_template) + 1
            if length + remaining > capacity:
                block = min(remaining, max(capacity - length, capacity // 2, 1))
                context = min(length, capacity - block)
                self.context_truncated |= context < length
        masks = self.text.new_full((len(self.text), block), self.spec.mask_token_id or 0)
        tokens, log_probabilities = self._unmask(self.text[:, length - context:], masks)
        self.text = torch.cat([self.text, tokens], 1)
        return log_probabilities

    def _unmask(self, context: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(R, C) context, (R, N) masks -> (R, N) tokens and their log-probabilities."""
        done = self.text.shape[1] - self.prompt_length
        numbers = self.uniform[:, :, done:done + tokens.shape[1]]
        step_of = (numbers[:, 0] * self.num_steps).long()  # (R, N)
        values = torch.zeros(tokens.shape, device=tokens.device)
        steps = step_of.unique().tolist() if self.options.cache else range(self.num_steps)
        for step in steps:
            chosen = step_of == step
            rows = chosen.any(1) if self.options.cache else torch.ones_like(chosen[:, 0])
            logits = self._logits(torch.cat([context, tokens], 1)[rows], chosen[rows], context.shape[1], done)
            if not len(logits):  # without a cache the network also runs in steps that change nothing
                continue
            scores = logits if self.options.min_tokens <= done else self._forbid_end(logits, chosen[rows], done)
            new = scores.argmax(-1) if self.options.greedy else sample(scores, self.options, numbers[:, 1][chosen])
            tokens = tokens.masked_scatter(chosen, new)
            values[chosen] = logits.float().log_softmax(-1).gather(1, new[:, None]).squeeze(1)
        return tokens, values

    def _logits(self, text: Tensor, chosen: Tensor, context: int, done: int) -> Tensor:
        """(M, C + N) texts, (M, N) bool -> (K, vocabulary) logits at the chosen positions. Never the mask token."""
        columns = [text if slot is None else text.new_full((len(text), 1), slot) for slot in self.spec.row_template]
        first = context + self.spec.row_template.index(None)
        ids = torch.cat(columns, 1)
        at = torch.zeros_like(ids, dtype=torch.bool)
        at[:, first:first + chosen.shape[1]] = chosen
        positions = at.flatten().nonzero()[:, 0]
        stream = Stream(ids, Bidirectional(), output_positions=positions if len(positions) else None)
        hidden = self.model.network({"encoder": stream})["encoder"].flatten(0, 1)[positions]
        return mask_tokens(self.model.lm_head()(hidden), [self.spec.mask_token_id or 0], self.vocab_size)

    def _forbid_end(self, logits: Tensor, chosen: Tensor, done: int) -> Tensor:
        """Logits without an end of the text among the first `min_tokens` tokens."""
        early = (chosen.nonzero()[:, 1] + done < self.options.min_tokens)[:, None]
        return torch.where(early, mask_tokens(logits, self.spec.eos_token_ids, self.vocab_size), logits)


def decode_by_unmasking(state: Unmasking, completions: Sequence[PartialCompletion],
                        max_new_tokens: Sequence[int]) -> Iterator[list[tuple[PartialCompletion, str]]]:
    """Yields the new text of each row, block by block; a row ends at its first end token."""
    total, done = max(max_new_tokens), 0
    while done < total and any(completion.finish_reason is None for completion in completions):
        log_probabilities = state.add_block(total - done)
        tokens = state.text[:, state.prompt_length + done:]
        pieces = []
        for completion, limit, row, values in zip(completions, max_new_tokens, tokens.tolist(),
                                                  log_probabilities.tolist(), strict=True):
            piece = ""
            for index, (token, value) in enumerate(zip(row, values, strict=True)):
                if completion.finish_reason is None:
                    piece += completion.append(token, value, done + index == limit - 1)
            pieces.append((completion, piece))
        done += tokens.shape[1]
        yield pieces
