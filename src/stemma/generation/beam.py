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

from stemma.generation.decode import allowed
from stemma.generation.options import Options
from stemma.generation.reader import Reader
from stemma.generation.text import Writing

NEVER = -math.inf


@dataclass(frozen=True)
class Ended:
    value: float  # what texts are compared by
    log_probability: float  # the model's own
    tokens: tuple[int, ...]


@dataclass
class Search:
    """What goes on for one prompt."""

    begin: Callable[[], Writing]
    limit: int  # of its tokens
    ended: list[Ended] = field(default_factory=list)  # the best first

    def replay(self, tokens: Sequence[int]) -> Writing:
        """The text that these tokens make."""
        writing = self.begin()
        for number, token in enumerate(tokens, 1):
            writing.add(token, 0.0, number == self.limit)
        return writing


@dataclass(frozen=True)
class Beams:
    """The beginnings of S searches, K of each, the best first; one that is not there has the sum -inf."""

    sums: Tensor  # (S, K) what beams compete by
    chances: Tensor  # (S, K) the model's own log-probability
    rows: Tensor  # (S, K) of the reader
    tokens: Tensor  # (S, K) the newest

    def at(self, index: Tensor) -> Beams:
        return Beams(*(part.gather(1, index) for part in (self.sums, self.chances, self.rows, self.tokens)))

    def of(self, searches: Sequence[int]) -> Beams:
        index = torch.tensor(searches, device=self.sums.device)
        return Beams(*(part[index] for part in (self.sums, self.chances, self.rows, self.tokens)))


def length_penalty(length: int, alpha: float) -> float:
    penalty: float = ((5 + length) / 6) ** alpha
    return penalty


def beam_search(reader: Reader, begin: Sequence[Callable[[], Writing]], limits: Sequence[int], options: Options,
                ends: Sequence[int], named: int) -> list[list[Writing]]:
    """For each prompt its best completions, the best first; `begin` starts a writing of each, of at most so many
    tokens."""
    searches = [Search(*pair) for pair in zip(begin, limits, strict=True)]
    going_on, prompt = searches, reader.ids.shape[1]
    nothing = torch.zeros(len(searches), 1, dtype=torch.float64, device=reader.device)
    beams = Beams(nothing, nothing, torch.arange(len(searches), device=reader.device)[:, None], nothing.long())
    for step in range(max(limits)):
        found = extend(reader, beams, options, step, ends, named)
        over = _over(reader, found, going_on, options, step, ends, prompt)
        _collect(reader, found, over, going_on, options, step, prompt)
        beams = _live(found, over, options.beams)
        best = beams.sums[:, 0].tolist()
        kept = [number for number, search in enumerate(going_on)
                if not settled(best[number], search.ended, options, step + 1, search.limit)]
        if not kept:
            break
        going_on, beams = [going_on[number] for number in kept], beams.of(kept)
        reader.choose(beams.rows.flatten())
        reader.add(beams.tokens.flatten())
        rows = torch.arange(beams.rows.numel(), device=reader.device).view_as(beams.rows)
        beams = Beams(beams.sums, beams.chances, rows, beams.tokens)
    return [[_written(search, ended) for ended in search.ended[:options.completions]] for search in searches]


def extend(reader: Reader, beams: Beams, options: Options, step: int, ends: Sequence[int], named: int) -> Beams:
    """The best that one more token makes of the beams of each search: (S, C), enough of them even if all end."""
    logits = reader.expect().float()  # (S x K, V)
    processed = allowed(reader, logits, options, step, ends, named)
    most = (1 + len(ends)) * options.beams
    best, tokens = processed.topk(min(most, processed.shape[1]))  # no more than these of a row can be among them
    own = logits.gather(1, tokens) - logits.logsumexp(1, keepdim=True)
    scores = own if processed is logits else best - processed.logsumexp(1, keepdim=True)
    searches, count = beams.sums.shape
    shape = (searches, count, best.shape[1])
    every = Beams(beams.sums[:, :, None] + scores.view(shape), beams.chances[:, :, None] + own.view(shape),
                  beams.rows[:, :, None].expand(shape), tokens.view(shape))
    flat = Beams(every.sums.flatten(1), every.chances.flatten(1), every.rows.flatten(1), every.tokens.flatten(1))
    return flat.at(flat.sums.topk(min(most, flat.sums.shape[1])).indices)


def _over(reader: Reader, found: Beams, searches: Sequence[Search], options: Options, step: int, ends: Sequence[int],
          prompt: int) -> Tensor:
    """(S, C) which of these texts have ended."""
    over = torch.isin(found.tokens, torch.tensor(ends, dtype=torch.long, device=reader.device))
    over |= torch.tensor([[search.limit == step + 1] for search in searches], device=reader.device)
    if options.stop:
        for number, place in (found.sums > NEVER).logical_and(~over).nonzero().tolist():
            tokens = _tokens(reader, found, number, place, prompt)
            over[number, place] = searches[number].replay(tokens).ended is not None
    return over


def _collect(reader: Reader, found: Beams, over: Tensor, searches: Sequence[Search], options: Options, step: int,
             prompt: int) -> None:
    """Take up the texts that have ended, as many of the best as there are beams."""
    values = found.sums / length_penalty(step + 1, options.alpha)
    for number, place in over.logical_and(found.sums > NEVER).nonzero().tolist():
        ended, value = searches[number].ended, float(values[number, place])
        if len(ended) < options.beams or value > ended[-1].value:
            tokens = _tokens(reader, found, number, place, prompt)
            ended.append(Ended(value, float(found.chances[number, place]), tokens))
            ended.sort(key=lambda one: -one.value)
            del ended[options.beams:]


def _tokens(reader: Reader, found: Beams, number: int, place: int, prompt: int) -> tuple[int, ...]:
    row = int(found.rows[number, place])
    return (*reader.ids[row, prompt:].tolist(), int(found.tokens[number, place]))


def _live(found: Beams, over: Tensor, beams: int) -> Beams:
    """The best of those that go on."""
    gone = over | (found.sums == NEVER)
    index = gone.long().argsort(dim=1, stable=True)[:, :beams]  # the others first, in their order
    chosen = found.at(index)
    return Beams(chosen.sums.masked_fill(gone.gather(1, index), NEVER), chosen.chances, chosen.rows, chosen.tokens)


def settled(best: float, ended: Sequence[Ended], options: Options, length: int, limit: int) -> bool:
    """Whether no beginning (the best of `length` tokens has this sum) can still become one of the completions."""
    if best == NEVER:
        return True
    if len(ended) < options.completions:
        return False
    # further tokens only lower the sum; the penalty is largest at one end of the lengths that are possible
    possible = max(best / length_penalty(length + 1, options.alpha),
                   best / length_penalty(max(limit, length + 1), options.alpha))
    return possible <= ended[options.completions - 1].value


def _written(search: Search, ended: Ended) -> Writing:
    writing = search.replay(ended.tokens)
    writing.log_probability = ended.log_probability
    return writing
