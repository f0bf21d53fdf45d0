"""Text generation: what `stemma generate` and `stemma.generate` do.

    for completion in stemma.generate(model, ["Once upon a time", "The"], tokens=40, top_p=0.9, seed=1):
        print(completion.text)
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from stemma.errors import UserError
from stemma.generation.beam import beam_search
from stemma.generation.decoding_mode import DecodingSpec, decoding_spec, needs_equal_lengths
from stemma.generation.decoding_state import DecodingState, start_decoding
from stemma.generation.diffusion import NUMBERS_PER_TOKEN, Unmasking, check_options, decode_by_unmasking
from stemma.generation.options import GenerationOptions
from stemma.generation.partial_completion import FinishReason, PartialCompletion, encode_prompts, new_completion
from stemma.generation.sampling import uniform_numbers
from stemma.generation.sampling_loop import decode_step_by_step
from stemma.model import Model
from stemma.network.prepacked_linear import prepacked_view

logger = logging.getLogger(__name__)

MIN_STEPS_TO_PREPACK = 16  # prepacking the weights is faster from this many steps on

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Completion:
    text: str  # after the prompt, before it (right-to-left models), or made from it (sequence to sequence)
    tokens: tuple[int, ...]  # in the order of generation, with the end token and those of a stop string
    log_probability: float  # of these tokens, without temperature, top-k, top-p or penalty
    finish_reason: FinishReason
    prompt_index: int  # from 0


def generate(model: Model, prompts: str | Sequence[Prompt], **options: Any) -> list[Completion]:
    """The completions of each prompt, in order. `options` are the fields of
    `stemma.generation.options.GenerationOptions`."""
    job = GenerationJob(model, [prompts] if isinstance(prompts, str) else prompts, GenerationOptions(**options))
    completions = [completion for batch in job.batches() for completion in job.complete(batch)]
    # A stable sort: completions of one prompt keep their order.
    return sorted(completions, key=lambda completion: completion.prompt_index)


def stream(model: Model, prompt: Prompt, **options: Any) -> Iterator[str]:
    """The completion of one prompt, as an iterator over pieces of text."""
    settings = GenerationOptions(**options)
    if settings.beams > 1 or settings.completions > 1:
        raise UserError("only one text can be streamed; for beams or several completions, use generate.")
    return _stream_text(GenerationJob(model, [prompt], settings))


def _stream_text(job: GenerationJob) -> Iterator[str]:
    (batch,) = job.batches()
    for step in job.sample_batch(batch, [job.new_completion(0)]):
        for _, piece in step:
            if piece:
                yield piece


@dataclass(frozen=True)
class BatchRow:
    prompt_index: int
    completion_index: int  # counts all completions of equal prompts, so that each samples with other random numbers


class GenerationJob:
    """A model, its prompts and the options: what all batches share."""

    def __init__(self, model: Model, prompts: Sequence[Prompt], options: GenerationOptions,
                 max_new_tokens: Sequence[int] | None = None):
        """`max_new_tokens`: a limit for each prompt, if it is not the same for all."""
        self.model, self.options = model, options
        self.spec = require_generative(model)
        check_options(model, self.spec, options)
        self.prompts = encode_prompts(model, self.spec, prompts, options)
        self.max_new_tokens = [min(options.tokens, self.spec.max_new_tokens(len(row)) or options.tokens)
                               for row in self.prompts]
        if max_new_tokens is not None:
            self.max_new_tokens = [min(pair) for pair in zip(self.max_new_tokens, max_new_tokens, strict=True)]
        self.seed = new_seed() if options.seed is None else options.seed
        self.vocab_size = model.network.vocab_size if model.tokenizer is None else model.tokenizer.vocab_size
        self.warned_truncated = False
        self._view: tuple[int, Model] | None = None

    def new_completion(self, prompt: int) -> PartialCompletion:
        return new_completion(self.model, self.spec, self.prompts[prompt], self.options)

    def batches(self) -> Iterator[list[BatchRow]]:
        """Batches of prompts of similar length, longest first; of equal length if the network needs it."""
        counts: Counter[tuple[int, ...]] = Counter()
        rows = []
        for prompt, ids in enumerate(self.prompts):
            for _ in range(1 if self.options.beams > 1 else self.options.completions):
                rows.append(BatchRow(prompt, counts[tuple(ids)]))
                counts[tuple(ids)] += 1
        rows.sort(key=lambda row: -len(self.prompts[row.prompt_index]))
        equal_lengths = needs_equal_lengths(self.model)
        batch: list[BatchRow] = []
        for row in rows:
            longest = len(self.prompts[(batch or [row])[0].prompt_index])
            max_rows = self.options.batch if self.options.places is None else self.options.places // longest
            if batch and (len(batch) >= max(1, max_rows // self.options.beams)
                          or equal_lengths and len(self.prompts[row.prompt_index]) != longest):
                yield batch
                batch = []
            batch.append(row)
        yield batch

    def complete(self, batch: list[BatchRow]) -> list[Completion]:
        if self.options.beams > 1:
            return self.beam_search_batch(batch)
        completions = [self.new_completion(row.prompt_index) for row in batch]
        for _ in self.sample_batch(batch, completions):
            pass
        return [_finish_completion(completion, row.prompt_index)
                for row, completion in zip(batch, completions, strict=True)]

    @torch.inference_mode()
    def sample_batch(self, batch: list[BatchRow],
                     completions: list[PartialCompletion]) -> Iterator[list[tuple[PartialCompletion, str]]]:
        """The new text of each row, step by step."""
        if self.spec.mode == "diffusion":
            yield from self._unmask_batch(batch, completions)
            return
        ids, limits = self._prompts_and_limits(batch)
        uniform = None
        if not self.options.greedy:
            indices = [row.completion_index for row in batch]
            uniform = uniform_numbers(self.options, ids, indices, self.seed).to(self.model.device)
        state = start_decoding(self.model_for_rows(len(batch)), ids, self.options.cache)
        yield from decode_step_by_step(state, completions, limits, self.options, uniform, self.spec.eos_token_ids,
                                       self.vocab_size)
        self.warn_truncated(state)

    def _unmask_batch(self, batch: list[BatchRow],
                      completions: list[PartialCompletion]) -> Iterator[list[tuple[PartialCompletion, str]]]:
        """The new text of each row of a diffusion model, block by block."""
        ids, limits = self._prompts_and_limits(batch)
        # The order of positions is random in greedy search too; it is always the same unless a seed is given.
        seed = 0 if self.options.greedy and self.options.seed is None else self.seed
        uniform = uniform_numbers(self.options, ids, [row.completion_index for row in batch], seed, NUMBERS_PER_TOKEN)
        state = Unmasking(self.model.in_eval_mode(), self.spec, ids, self.options,
                          uniform.view(len(ids), NUMBERS_PER_TOKEN, -1).to(self.model.device), self.vocab_size)
        yield from decode_by_unmasking(state, completions, limits)
        self.warn_truncated(state)

    @torch.inference_mode()
    def beam_search_batch(self, batch: list[BatchRow]) -> list[Completion]:
        ids, limits = self._prompts_and_limits(batch)
        state = start_decoding(self.model_for_rows(len(batch) * self.options.beams), ids, self.options.cache)
        results = beam_search(state, [partial(self.new_completion, row.prompt_index) for row in batch], limits,
                              self.options, self.spec.eos_token_ids, self.vocab_size)
        self.warn_truncated(state)
        return [_finish_completion(completion, row.prompt_index)
                for row, best in zip(batch, results, strict=True) for completion in best]

    def _prompts_and_limits(self, batch: list[BatchRow]) -> tuple[list[list[int]], list[int]]:
        indices = [row.prompt_index for row in batch]
        return [self.prompts[index] for index in indices], [self.max_new_tokens[index] for index in indices]

    def model_for_rows(self, rows: int) -> Model:
        """The model over a view of its network with weights prepacked for this many rows. The network itself does not
        change, since other threads may use it. Batches of the same size share the view."""
        rows = rows if self.options.tokens >= MIN_STEPS_TO_PREPACK else 1
        if self._view is None or self._view[0] != rows:
            self._view = None  # free the old copy of the weights before the next one is made
            self._view = rows, replace(self.model, network=prepacked_view(self.model.network, rows))
        return self._view[1]

    def warn_truncated(self, state: DecodingState | Unmasking) -> None:
        if state.context_truncated and not self.warned_truncated:
            self.warned_truncated = True
            logger.warning(
                f"the text exceeded the context length of {self.model.recipe.label} ({state.max_length:,} tokens); "
                "later tokens were generated from its last part alone.")


def new_seed() -> int:
    return secrets.randbits(32)


def require_generative(model: Model) -> DecodingSpec:
    """The model's decoding spec; refuses a model that cannot generate."""
    spec = decoding_spec(model)
    if spec is None:
        raise UserError(f"{model.recipe.title} ({model.recipe.label}) reads a text from both sides and cannot continue "
                        "a prompt; predict masked words with `stemma fill`, or load a generative model, such as gpt2.")
    model.lm_head()
    return spec


def _finish_completion(completion: PartialCompletion, prompt_index: int) -> Completion:
    assert completion.finish_reason is not None
    return Completion(completion.text, tuple(completion.tokens), completion.log_probability, completion.finish_reason,
                      prompt_index)
