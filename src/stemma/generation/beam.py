"""Beam search with the length penalty of GNMT.

Every token makes a text less probable, so probability alone prefers short texts. As in GNMT (arXiv:1609.08144,
section 7), a hypothesis of n tokens is ranked by log-probability / ((5 + n) / 6)^alpha. The search of a prompt ends
when no beam can still beat its finished hypotheses: with enough beams this is exhaustive search.

All beams of all prompts are rows of one batch, and a step is vectorized over them. Only finished hypotheses are
handled one at a time.
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
    score: float  # log-probability after penalties, divided by the length penalty: the ranking key
    log_probability: float  # of the unmodified model distribution
    tokens: tuple[int, ...]


@dataclass
class PromptSearch:
    """The search for one prompt."""

    new_completion: Callable[[], PartialCompletion]
    max_new_tokens: int
    finished: list[FinishedHypothesis] = field(default_factory=list)  # best first

    def rebuild(self, tokens: Sequence[int]) -> PartialCompletion:
        """The completion of these tokens."""
        completion = self.new_completion()
        for length, token in enumerate(tokens, 1):
            completion.append(token, 0.0, length == self.max_new_tokens)
        return completion


@dataclass(frozen=True)
class Beams:
    """The K beams of each of S searches, best first. An empty slot has the score -inf."""

    scores: Tensor  # (S, K) log-probability after penalties: what beams are ranked by
    log_probabilities: Tensor  # (S, K) of the unmodified model distribution
    rows: Tensor  # (S, K) row of the decoding state
    tokens: Tensor  # (S, K) last token

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
    """The best completions of each prompt, best first. `new_completions` start an empty completion per prompt, and
    `max_new_tokens` limits its length."""
    searches = [PromptSearch(*pair) for pair in zip(new_completions, max_new_tokens, strict=True)]
    active, prompt_length = searches, state.input_ids.shape[1]
    zeros = torch.zeros(len(searches), 1, dtype=torch.float64, device=state.device)
    beams = Beams(zeros, zeros, torch.arange(len(searches), device=state.device)[:, None], zeros.long())
    for step in range(max(max_new_tokens)):
        candidates = expand(state, beams, options, step, eos_token_ids, vocab_size)
        is_finished = _finished_mask(state, candidates, active, options, step, eos_token_ids, prompt_length)
        _collect_finished(state, candidates, is_finished, active, options, step, prompt_length)
        beams = _prune(candidates, is_finished, options.beams)
        best = beams.scores[:, 0].tolist()
        active_indices = [index for index, search in enumerate(active)
                          if not is_done(best[index], search.finished, options, step + 1, search.max_new_tokens)]
        if not active_indices:
            break
        active, beams = [active[index] for index in active_indices], beams.select(active_indices)
        state.select_rows(beams.rows.flatten())
        state.append(beams.tokens.flatten())
        rows = torch.arange(beams.rows.numel(), device=state.device).view_as(beams.rows)
        beams = Beams(beams.scores, beams.log_probabilities, rows, beams.tokens)
    return [[_to_completion(search, hypothesis) for hypothesis in search.finished[:options.completions]]
            for search in searches]


def expand(state: DecodingState, beams: Beams, options: GenerationOptions, step: int, eos_token_ids: Sequence[int],
           vocab_size: int) -> Beams:
    """Candidates (S, C): the best extensions of each search's beams by one token, enough even if all of them end."""
    logits = state.next_logits().float()  # (S x K, V)
    processed = process_logits(state, logits, options, step, eos_token_ids, vocab_size)
    count = (1 + len(eos_token_ids)) * options.beams
    best, tokens = processed.topk(min(count, processed.shape[1]))  # one row contributes at most `count` candidates
    log_probabilities = logits.gather(1, tokens) - logits.logsumexp(1, keepdim=True)
    scores = log_probabilities if processed is logits else best - processed.logsumexp(1, keepdim=True)
    shape = (*beams.scores.shape, best.shape[1])
    flat = Beams((beams.scores[:, :, None] + scores.view(shape)).flatten(1),
                 (beams.log_probabilities[:, :, None] + log_probabilities.view(shape)).flatten(1),
                 beams.rows[:, :, None].expand(shape).flatten(1), tokens.view(shape).flatten(1))
    return flat.gather(flat.scores.topk(min(count, flat.scores.shape[1])).indices)


def _finished_mask(state: DecodingState, candidates: Beams, searches: Sequence[PromptSearch],
                   options: GenerationOptions, step: int, eos_token_ids: Sequence[int],
                   prompt_length: int) -> Tensor:
    """(S, C) bool: which candidates are finished."""
    finished = torch.isin(candidates.tokens, torch.tensor(eos_token_ids, dtype=torch.long, device=state.device))
    finished |= torch.tensor([[search.max_new_tokens == step + 1] for search in searches], device=state.device)
    if options.stop:
        for search, beam in (candidates.scores > NEG_INF).logical_and(~finished).nonzero().tolist():
            tokens = _hypothesis_tokens(state, candidates, search, beam, prompt_length)
            finished[search, beam] = searches[search].rebuild(tokens).finish_reason is not None
    return finished


def _collect_finished(state: DecodingState, candidates: Beams, is_finished: Tensor, searches: Sequence[PromptSearch],
                      options: GenerationOptions, step: int, prompt_length: int) -> None:
    """Add finished candidates to their search, which keeps the best ones: as many as there are beams."""
    scores = candidates.scores / length_penalty(step + 1, options.length_alpha)
    for search, beam in is_finished.logical_and(candidates.scores > NEG_INF).nonzero().tolist():
        finished, score = searches[search].finished, float(scores[search, beam])
        if len(finished) < options.beams or score > finished[-1].score:
            tokens = _hypothesis_tokens(state, candidates, search, beam, prompt_length)
            finished.append(FinishedHypothesis(score, float(candidates.log_probabilities[search, beam]), tokens))
            finished.sort(key=lambda hypothesis: -hypothesis.score)
            del finished[options.beams:]


def _hypothesis_tokens(state: DecodingState, candidates: Beams, search_index: int, beam_index: int,
                       prompt_length: int) -> tuple[int, ...]:
    row = int(candidates.rows[search_index, beam_index])
    return (*state.input_ids[row, prompt_length:].tolist(), int(candidates.tokens[search_index, beam_index]))


def _prune(candidates: Beams, is_finished: Tensor, num_beams: int) -> Beams:
    """The best unfinished candidates: the beams of the next step."""
    dropped = is_finished | (candidates.scores == NEG_INF)
    index = dropped.long().argsort(dim=1, stable=True)[:, :num_beams]  # stable: the unfinished keep their order
    beams = candidates.gather(index)
    return Beams(beams.scores.masked_fill(dropped.gather(1, index), NEG_INF), beams.log_probabilities, beams.rows,
                 beams.tokens)


def is_done(best: float, finished: Sequence[FinishedHypothesis], options: GenerationOptions, length: int,
            max_new_tokens: int) -> bool:
    """Whether no beam can still become one of the completions; `best` is the highest sum of `length` tokens."""
    if best == NEG_INF:
        return True
    if len(finished) < options.completions:
        return False
    # More tokens only lower the sum, and the penalty is monotonic: the bound is at the shortest or longest length.
    bound = max(best / length_penalty(length + 1, options.length_alpha),
                best / length_penalty(max(max_new_tokens, length + 1), options.length_alpha))
    return bound <= finished[options.completions - 1].score


def _to_completion(search: PromptSearch, hypothesis: FinishedHypothesis) -> PartialCompletion:
    completion = search.rebuild(hypothesis.tokens)
    completion.log_probability = hypothesis.log_probability
    return completion
