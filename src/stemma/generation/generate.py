"""Write on from prompts: what `stemma generate` and `stemma.generate` do.

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
from stemma.generation.options import GenerationOptions
from stemma.generation.partial_completion import FinishReason, PartialCompletion, encode_prompts, new_completion
from stemma.generation.sampling import uniform_numbers
from stemma.generation.sampling_loop import decode_step_by_step
from stemma.model import Model
from stemma.network.prepacked_linear import prepacked_view

logger = logging.getLogger(__name__)

MIN_STEPS_TO_PREPACK = 16  # steps after which packing the weights has paid for itself

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Completion:
    text: str  # what follows the prompt (of a model that reads backwards, what stands before it), or is made of it
    tokens: tuple[int, ...]  # in the order of writing; also the token that ended the text, and those of a stop string
    log_probability: float  # of these tokens, as the model itself has it: no temperature, no cut-off, no penalty
    finish_reason: FinishReason  # by the token that ends a text, by a stop string, or because there were enough tokens
    prompt_index: int  # which prompt it belongs to, from 0


def generate(model: Model, prompts: str | Sequence[Prompt],
             **options: Any) -> list[Completion]:
    """The completions of each prompt, in order. `options` are the fields of `stemma.generation.options.Options`."""
    job = GenerationJob(model, [prompts] if isinstance(prompts, str) else prompts, GenerationOptions(**options))
    completions = [completion for batch in job.batches() for completion in job.complete(batch)]
    return sorted(completions, key=lambda completion: completion.prompt_index)  # stable: those of a prompt keep their
    #                                                                             order


def stream(model: Model, prompt: Prompt, **options: Any) -> Iterator[str]:
    """The completion of one prompt piece by piece, as soon as it can be read."""
    chosen = GenerationOptions(**options)
    if chosen.beams > 1 or chosen.completions > 1:
        raise UserError("only one text can be shown while it is written, and beams or several completions are known at "
                        "the end; use generate for these.")
    return _stream_text(GenerationJob(model, [prompt], chosen))


def _stream_text(job: GenerationJob) -> Iterator[str]:
    (batch,) = job.batches()
    for step in job.sample_batch(batch, [job.new_completion(0)]):
        for _, piece in step:
            if piece:
                yield piece


@dataclass(frozen=True)
class BatchRow:
    prompt_index: int
    completion_index: int  # of all completions of this very prompt, wherever it stands


class GenerationJob:
    """Some prompts, a model and how to write: what is the same for all batches."""

    def __init__(self, model: Model, prompts: Sequence[Prompt], options: GenerationOptions,
                 max_new_tokens: Sequence[int] | None = None):
        """`limits`: at most so many tokens for each prompt, where that is not the same for all."""
        self.model, self.options = model, options
        self.spec = require_generative(model)
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
        """Prompts of similar length together, the longest first; of the same length, where the network needs that."""
        beams = self.options.beams > 1
        seen: Counter[tuple[int, ...]] = Counter()
        rows = []
        for prompt, ids in enumerate(self.prompts):
            for _ in range(1 if beams else self.options.completions):
                rows.append(BatchRow(prompt, seen[tuple(ids)]))
                seen[tuple(ids)] += 1
        rows.sort(key=lambda row: -len(self.prompts[row.prompt_index]))
        equal = needs_equal_lengths(self.model)
        batch: list[BatchRow] = []
        for row in rows:
            longest = len(self.prompts[(batch or [row])[0].prompt_index])
            together = self.options.batch if self.options.places is None else self.options.places // longest
            if batch and (len(batch) >= max(1, together // self.options.beams)
                          or equal and len(self.prompts[row.prompt_index]) != longest):
                yield batch
                batch = []
            batch.append(row)
        yield batch

    def complete(self, batch: list[BatchRow]) -> list[Completion]:
        if self.options.beams > 1:
            return self.beam_search_batch(batch)
        writings = [self.new_completion(row.prompt_index) for row in batch]
        for _ in self.sample_batch(batch, writings):
            pass
        return [_finish_completion(writing, row.prompt_index) for row, writing in zip(batch, writings, strict=True)]

    @torch.inference_mode()
    def sample_batch(self, batch: list[BatchRow],
                     completions: list[PartialCompletion]) -> Iterator[list[tuple[PartialCompletion, str]]]:
        """Each step's new text, row by row."""
        ids, limits = self._prompts_and_limits(batch)
        uniform = None if self.options.greedy else uniform_numbers(self.options, ids,
                                                                   [row.completion_index for row in batch],
                                                                   self.seed).to(self.model.device)
        reader = start_decoding(self.model_for_rows(len(batch)), ids, self.options.cache)
        yield from decode_step_by_step(reader, completions, limits, self.options, uniform, self.spec.eos_token_ids,
                                       self.vocab_size)
        self.warn_truncated(reader)

    @torch.inference_mode()
    def beam_search_batch(self, batch: list[BatchRow]) -> list[Completion]:
        ids, limits = self._prompts_and_limits(batch)
        reader = start_decoding(self.model_for_rows(len(batch) * self.options.beams), ids, self.options.cache)
        found = beam_search(reader, [partial(self.new_completion, row.prompt_index) for row in batch], limits,
                            self.options,
                            self.spec.eos_token_ids, self.vocab_size)
        self.warn_truncated(reader)
        return [_finish_completion(writing, row.prompt_index) for row,
                best in zip(batch, found, strict=True) for writing in best]

    def _prompts_and_limits(self, batch: list[BatchRow]) -> tuple[list[list[int]], list[int]]:
        return [self.prompts[row.prompt_index] for row in batch], [self.max_new_tokens[row.prompt_index]
                                                                   for row in batch]

    def model_for_rows(self, rows: int) -> Model:
        """The model over a view of its network that suits so many rows: the network itself is left as it is, since
        other threads may be using it. Batches of equally many rows share the view, which ends with the job."""
        rows = rows if self.options.tokens >= MIN_STEPS_TO_PREPACK else 1
        if self._view is None or self._view[0] != rows:
            self._view = None  # never two copies of the weights at a time
            self._view = rows, replace(self.model, network=prepacked_view(self.model.network, rows))
        return self._view[1]

    def warn_truncated(self, state: DecodingState) -> None:
        if state.context_truncated and not self.warned_truncated:
            self.warned_truncated = True
            logger.warning(
                f"the text outgrew the {state.max_length:,} tokens that {self.model.recipe.label} reads at once; "
                "from there on it was written from its last part alone.")


def new_seed() -> int:
    return secrets.randbits(32)


def require_generative(model: Model) -> DecodingSpec:
    """How the model writes; one that never learned to is refused."""
    scheme = decoding_spec(model)
    if scheme is None:
        raise UserError(f"{model.recipe.title} ({model.recipe.label}) reads a text from both sides and cannot write on "
                        "from a prompt; guess masked words with `stemma fill`, or load a model that writes, such as "
                        "gpt2.")
    model.lm_head()
    return scheme


def _finish_completion(partial: PartialCompletion, prompt: int) -> Completion:
    assert partial.finish_reason is not None
    return Completion(partial.text, tuple(partial.tokens), partial.log_probability, partial.finish_reason, prompt)
