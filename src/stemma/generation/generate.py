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
from stemma.exchange.model import Model
from stemma.generation.beam import beam_search
from stemma.generation.decode import write
from stemma.generation.options import Options
from stemma.generation.reader import Reader, read_rows
from stemma.generation.sampling import uniform_numbers
from stemma.generation.text import Ended, Writing, begin_writing, read_prompts
from stemma.generation.ways import Scheme, needs_equal_lengths, scheme_of
from stemma.network.packed import packed_view

logger = logging.getLogger(__name__)

PAYS = 16  # steps after which packing the weights has paid for itself

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Completion:
    text: str  # what follows the prompt (of a model that reads backwards, what stands before it), or is made of it
    tokens: tuple[int, ...]  # in the order of writing; also the token that ended the text, and those of a stop string
    log_probability: float  # of these tokens, as the model itself has it: no temperature, no cut-off, no penalty
    ended: Ended  # by the token that ends a text, by a stop string, or because there were enough tokens
    prompt: int  # which prompt it belongs to, from 0


def generate(model: Model, prompts: str | Sequence[Prompt],
             **options: Any) -> list[Completion]:
    """The completions of each prompt, in order. `options` are the fields of `stemma.generation.options.Options`."""
    job = Job(model, [prompts] if isinstance(prompts, str) else prompts, Options(**options))
    completions = [completion for batch in job.batches() for completion in job.complete(batch)]
    return sorted(completions, key=lambda completion: completion.prompt)  # stable: those of a prompt keep their order


def stream(model: Model, prompt: Prompt, **options: Any) -> Iterator[str]:
    """The completion of one prompt piece by piece, as soon as it can be read."""
    chosen = Options(**options)
    if chosen.beams > 1 or chosen.completions > 1:
        raise UserError("only one text can be shown while it is written, and beams or several completions are known at "
                        "the end; use generate for these.")
    return _pieces(Job(model, [prompt], chosen))


def _pieces(job: Job) -> Iterator[str]:
    (batch,) = job.batches()
    for step in job.write(batch, [job.begin(0)]):
        for _, piece in step:
            if piece:
                yield piece


@dataclass(frozen=True)
class Row:
    prompt: int
    number: int  # of all completions of this very prompt, wherever it stands


class Job:
    """Some prompts, a model and how to write: what is the same for all batches."""

    def __init__(self, model: Model, prompts: Sequence[Prompt], options: Options,
                 limits: Sequence[int] | None = None):
        """`limits`: at most so many tokens for each prompt, where that is not the same for all."""
        self.model, self.options = model, options
        self.scheme = check_writes(model)
        self.prompts = read_prompts(model, self.scheme, prompts, options)
        self.limits = [min(options.tokens, self.scheme.limit(len(row)) or options.tokens) for row in self.prompts]
        if limits is not None:
            self.limits = [min(pair) for pair in zip(self.limits, limits, strict=True)]
        self.seed = new_seed() if options.seed is None else options.seed
        self.named = model.network.vocabulary if model.tokenizer is None else model.tokenizer.vocab_size
        self.told = False
        self._view: tuple[int, Model] | None = None

    def begin(self, prompt: int) -> Writing:
        return begin_writing(self.model, self.scheme, self.prompts[prompt], self.options)

    def batches(self) -> Iterator[list[Row]]:
        """Prompts of similar length together, the longest first; of the same length, where the network needs that."""
        beams = self.options.beams > 1
        seen: Counter[tuple[int, ...]] = Counter()
        rows = []
        for prompt, ids in enumerate(self.prompts):
            for _ in range(1 if beams else self.options.completions):
                rows.append(Row(prompt, seen[tuple(ids)]))
                seen[tuple(ids)] += 1
        rows.sort(key=lambda row: -len(self.prompts[row.prompt]))
        equal = needs_equal_lengths(self.model)
        batch: list[Row] = []
        for row in rows:
            longest = len(self.prompts[(batch or [row])[0].prompt])
            together = self.options.batch if self.options.places is None else self.options.places // longest
            if batch and (len(batch) >= max(1, together // self.options.beams)
                          or equal and len(self.prompts[row.prompt]) != longest):
                yield batch
                batch = []
            batch.append(row)
        yield batch

    def complete(self, batch: list[Row]) -> list[Completion]:
        if self.options.beams > 1:
            return self.search(batch)
        writings = [self.begin(row.prompt) for row in batch]
        for _ in self.write(batch, writings):
            pass
        return [_completion(writing, row.prompt) for row, writing in zip(batch, writings, strict=True)]

    @torch.inference_mode()
    def write(self, batch: list[Row], writings: list[Writing]) -> Iterator[list[tuple[Writing, str]]]:
        """Each step's new text, row by row."""
        ids, limits = self._of(batch)
        uniform = None if self.options.greedy else uniform_numbers(self.options, ids, [row.number for row in batch],
                                                                   self.seed).to(self.model.device)
        reader = read_rows(self.for_rows(len(batch)), ids, self.options.cache)
        yield from write(reader, writings, limits, self.options, uniform, self.scheme.ends, self.named)
        self.tell(reader)

    @torch.inference_mode()
    def search(self, batch: list[Row]) -> list[Completion]:
        ids, limits = self._of(batch)
        reader = read_rows(self.for_rows(len(batch) * self.options.beams), ids, self.options.cache)
        found = beam_search(reader, [partial(self.begin, row.prompt) for row in batch], limits, self.options,
                            self.scheme.ends, self.named)
        self.tell(reader)
        return [_completion(writing, row.prompt) for row, best in zip(batch, found, strict=True) for writing in best]

    def _of(self, batch: list[Row]) -> tuple[list[list[int]], list[int]]:
        return [self.prompts[row.prompt] for row in batch], [self.limits[row.prompt] for row in batch]

    def for_rows(self, rows: int) -> Model:
        """The model over a view of its network that suits so many rows: the network itself is left as it is, since
        other threads may be using it. Batches of equally many rows share the view, which ends with the job."""
        rows = rows if self.options.tokens >= PAYS else 1
        if self._view is None or self._view[0] != rows:
            self._view = None  # never two copies of the weights at a time
            self._view = rows, replace(self.model, network=packed_view(self.model.network, rows))
        return self._view[1]

    def tell(self, reader: Reader) -> None:
        if reader.slid and not self.told:
            self.told = True
            logger.warning(
                f"the text outgrew the {reader.maximum:,} tokens that {self.model.recipe.label} reads at once; "
                "from there on it was written from its last part alone.")


def new_seed() -> int:
    return secrets.randbits(32)


def check_writes(model: Model) -> Scheme:
    """How the model writes; one that never learned to is refused."""
    scheme = scheme_of(model)
    if scheme is None:
        raise UserError(f"{model.recipe.title} ({model.recipe.label}) reads a text from both sides and cannot write on "
                        "from a prompt; guess masked words with `stemma fill`, or load a model that writes, such as "
                        "gpt2.")
    model.token_head()
    return scheme


def _completion(writing: Writing, prompt: int) -> Completion:
    assert writing.ended is not None
    return Completion(writing.text, tuple(writing.tokens), writing.log_probability, writing.ended, prompt)
