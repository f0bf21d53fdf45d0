"""Beam search: keep the most probable beginnings, and of the texts that end return the best for their length.

Every token makes a text less probable, so probability alone prefers short texts. As in GNMT (arXiv:1609.08144,
section 7) a text of n tokens is therefore compared by log-probability / ((5 + n) / 6)^alpha. The search ends for a
prompt when no beginning can still beat the texts that have ended: with enough beams it is exhaustive search.

All prompts and beams are rows of one batch, and a step is a few operations on all of them; one by one go only the
texts that end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stemma.generation.decoding_state import DecodingState
from stemma.generation.options import GenerationOptions
from stemma.generation.partial_completion import PartialCompletion
from stemma.generation.sampling_loop import process_logits

NEG_INF = -math.inf


@dataclass(frozen=True)
class FinishedHypothesis:
    score: float  # what texts are compared by
    log_probability: float  # the model's own
    tokens: tuple[int, ...]


@dataclass
class PromptSearch:
    """What goes on for one prompt."""

    new_completion: Callable[[], PartialCompletion]
    max_new_tokens: int  # of its tokens
    finished: list[FinishedHypothesis] = field(default_factory=list)  # the best first

    def rebuild(self, tokens: Sequence[int]) -> PartialCompletion:
        """The text that these tokens make."""
        writing = self.new_completion()
        for number, token in enumerate(tokens, 1):
            writing.append(token, 0.0, number == self.max_new_tokens)
        return writing


@dataclass(frozen=True)
class Beams:
    """The beginnings of S searches, K of each, the best first; one that is not there has the sum -inf."""

    scores: Tensor  # (S, K) what beams compete by
    log_probabilities: Tensor  # (S, K) the model's own log-probability
    rows: Tensor  # (S, K) of the reader
    tokens: Tensor  # (S, K) the newest

    def gather(self, index: Tensor) -> Beams:
        return Beams(*(part.gather(1, index) for part in (self.scores, self.log_probabilities, self.rows, self.tokens)))

    def select(self, searches: Sequence[int]) -> Beams:
        index = torch.tensor(searches, device=self.scores.device)
        return Beams(*(part[index] for part in (self.scores, self.log_probabilities, self.rows, self.tokens)))


def length_penalty(length: int, alpha: float) -> float:
    penalty: float = ((5 + length) / 6) ** alpha
    return penalty


def beam_search(state: DecodingState, new_completions: Sequence[Callable[[], PartialCompletion]],
                max_new_tokens: Sequence[int], options: GenerationOptions,
                eos_token_ids: Sequence[int], vocab_size: int) -> list[list[PartialCompletion]]:
    """For each prompt its best completions, the best first; `begin` starts a writing of each, of at most so many
    tokens."""
    searches = [PromptSearch(*pair) for pair in zip(new_completions, max_new_tokens, strict=True)]
    active, prompt = searches, state.input_ids.shape[1]
    nothing = torch.zeros(len(searches), 1, dtype=torch.float64, device=state.device)
    beams = Beams(nothing, nothing, torch.arange(len(searches), device=state.device)[:, None], nothing.long())
    for step in range(max(max_new_tokens)):
        candidates = expand(state, beams, options, step, eos_token_ids, vocab_size)
        is_finished = _finished_mask(state, candidates, active, options, step, eos_token_ids, prompt)
        _collect_finished(state, candidates, is_finished, active, options, step, prompt)
        beams = _prune(candidates, is_finished, options.beams)
        best = beams.scores[:, 0].tolist()
        active_indices = [number for number, search in enumerate(active)
                if not is_done(best[number], search.finished, options, step + 1, search.max_new_tokens)]
        if not active_indices:
            break
        active, beams = [active[number] for number in active_indices], beams.select(active_indices)
        state.select_rows(beams.rows.flatten())
        state.append(beams.tokens.flatten())
        rows = torch.arange(beams.rows.numel(), device=state.device).view_as(beams.rows)
        beams = Beams(beams.scores, beams.log_probabilities, rows, beams.tokens)
    return [[_to_completion(search, ended) for ended in search.finished[:options.completions]] for search in searches]


def expand(state: DecodingState, beams: Beams, options: GenerationOptions, step: int, eos_token_ids: Sequence[int],
           vocab_size: int) -> Beams:
    """The best that one more token makes of the beams of each search: (S, C), enough of them even if all end."""
    logits = state.next_logits().float()  # (S x K, V)
    processed = process_logits(state, logits, options, step, eos_token_ids, vocab_size)
    most = (1 + len(eos_token_ids)) * options.beams
    best, tokens = processed.topk(min(most, processed.shape[1]))  # no more than these of a row can be among them
    own = logits.gather(1, tokens) - logits.logsumexp(1, keepdim=True)
    scores = own if processed is logits else best - processed.logsumexp(1, keepdim=True)
    searches, count = beams.scores.shape
    shape = (searches, count, best.shape[1])
    every = Beams(beams.scores[:, :, None] + scores.view(shape), beams.log_probabilities[:, :, None] + own.view(shape),
                  beams.rows[:, :, None].expand(shape), tokens.view(shape))
    flat = Beams(every.scores.flatten(1), every.log_probabilities.flatten(1), every.rows.flatten(1),
                 every.tokens.flatten(1))
    return flat.gather(flat.scores.topk(min(most, flat.scores.shape[1])).indices)


def _finished_mask(state: DecodingState, candidates: Beams, searches: Sequence[PromptSearch],
                   options: GenerationOptions, step: int, eos_token_ids: Sequence[int],
          prompt_length: int) -> Tensor:
    """(S, C) which of these texts have ended."""
    over = torch.isin(candidates.tokens, torch.tensor(eos_token_ids, dtype=torch.long, device=state.device))
    over |= torch.tensor([[search.max_new_tokens == step + 1] for search in searches], device=state.device)
    if options.stop:
        for number, place in (candidates.scores > NEG_INF).logical_and(~over).nonzero().tolist():
            tokens = _hypothesis_tokens(state, candidates, number, place, prompt_length)
            over[number, place] = searches[number].rebuild(tokens).finish_reason is not None
    return over


def _collect_finished(state: DecodingState, candidates: Beams, is_finished: Tensor, searches: Sequence[PromptSearch],
                      options: GenerationOptions, step: int,
             prompt_length: int) -> None:
    """Take up the texts that have ended, as many of the best as there are beams."""
    values = candidates.scores / length_penalty(step + 1, options.length_alpha)
    for number, place in is_finished.logical_and(candidates.scores > NEG_INF).nonzero().tolist():
        finished, value = searches[number].finished, float(values[number, place])
        if len(finished) < options.beams or value > finished[-1].score:
            tokens = _hypothesis_tokens(state, candidates, number, place, prompt_length)
            finished.append(FinishedHypothesis(value, float(candidates.log_probabilities[number, place]), tokens))
            finished.sort(key=lambda one: -one.score)
            del finished[options.beams:]


def _hypothesis_tokens(state: DecodingState, candidates: Beams, search_index: int, beam_index: int,
                       prompt_length: int) -> tuple[int, ...]:
    row = int(candidates.rows[search_index, beam_index])
    return (*state.input_ids[row, prompt_length:].tolist(), int(candidates.tokens[search_index, beam_index]))


def _prune(candidates: Beams, is_finished: Tensor, num_beams: int) -> Beams:
    """The best of those that go on."""
    gone = is_finished | (candidates.scores == NEG_INF)
    index = gone.long().argsort(dim=1, stable=True)[:, :num_beams]  # the others first, in their order
    chosen = candidates.gather(index)
    return Beams(chosen.scores.masked_fill(gone.gather(1, index), NEG_INF), chosen.log_probabilities, chosen.rows,
                 chosen.tokens)


def is_done(best: float, finished: Sequence[FinishedHypothesis], options: GenerationOptions, length: int,
            max_new_tokens: int) -> bool:
    """Whether no beginning (the best of `length` tokens has this sum) can still become one of the completions."""
    if best == NEG_INF:
        return True
    if len(finished) < options.completions:
        return False
    # further tokens only lower the sum; the penalty is largest at one end of the lengths that are possible
    possible = max(best / length_penalty(length + 1, options.length_alpha),
                   best / length_penalty(max(max_new_tokens, length + 1), options.length_alpha))
    return possible <= finished[options.completions - 1].score


def _to_completion(search: PromptSearch, hypothesis: FinishedHypothesis) -> PartialCompletion:
    writing = search.rebuild(hypothesis.tokens)
    writing.log_probability = hypothesis.log_probability
    return writing
