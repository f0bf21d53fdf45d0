"""Beam search: keep the most probable beginnings, and of the texts that end return the best for their length.

Every token makes a text less probable, so probability alone prefers short texts. As in GNMT (arXiv:1609.08144,
section 7) a text of n tokens is therefore compared by log-probability / ((5 + n) / 6)^alpha. The search ends for a
prompt when no beginning can still beat the texts that have ended: with enough beams it is exhaustive search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from stemma.generation.decode import allowed
from stemma.generation.options import Options
from stemma.generation.reader import Reader
from stemma.generation.text import Writing

NEVER = -math.inf


@dataclass(frozen=True)
class Beam:
    """A beginning: the sum that beams compete by, and the model's own log-probability of it."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    log_probability: float = 0.0
    row: int = 0  # of the reader


@dataclass
class Search:
    """What goes on for one prompt."""

    begin: Callable[[], Writing]
    live: list[Beam] = field(default_factory=lambda: [Beam()])
    ended: list[tuple[float, Writing]] = field(default_factory=list)


def length_penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def beam_search(reader: Reader, begin: Sequence[Callable[[], Writing]], options: Options,
                ends: Sequence[int], named: int) -> list[list[Writing]]:
    """For each prompt its best completions, the best first; `begin` starts a writing of each."""
    searches = [Search(start, [Beam(row=row)]) for row, start in enumerate(begin)]
    going_on = searches
    for step in range(options.tokens):
        extend(reader, going_on, options, step, ends, named)
        going_on = [search for search in going_on if not settled(search, options, step + 1)]
        if not going_on:
            break
        beams = [beam for search in going_on for beam in search.live]
        reader.choose([beam.row for beam in beams])
        reader.add(torch.tensor([beam.tokens[-1] for beam in beams], device=reader.device))
        row = 0
        for search in going_on:
            search.live = [Beam(beam.tokens, beam.total, beam.log_probability, row + number)
                           for number, beam in enumerate(search.live)]
            row += len(search.live)
    return [[writing for _, writing in search.ended[:options.completions]] for search in searches]


def extend(reader: Reader, searches: list[Search], options: Options, step: int, ends: Sequence[int],
           named: int) -> None:
    """One more token for every beam of every search."""
    logits = reader.expect()
    chances = logits.float().log_softmax(-1)
    processed = allowed(reader, logits, options, step, ends, named)
    scores = chances if processed is logits else processed.float().log_softmax(-1)
    for search in searches:
        rows = torch.tensor([beam.row for beam in search.live], device=reader.device)
        totals = torch.tensor([beam.total for beam in search.live], device=reader.device)
        sums = (totals[:, None] + scores[rows]).flatten()
        best, places = sums.topk(min((1 + len(ends)) * options.beams, len(sums)))  # enough, even if all end
        parents, tokens = places // scores.shape[1], places % scores.shape[1]
        own = chances[rows[parents], tokens]
        found = [Beam((*search.live[parent].tokens, token), total, search.live[parent].log_probability + chance,
                      search.live[parent].row)
                 for parent, token, total, chance in zip(parents.tolist(), tokens.tolist(), best.tolist(),
                                                         own.tolist(), strict=True) if total > NEVER]
        sort_out(search, found, options, step, ends)


def sort_out(search: Search, found: list[Beam], options: Options, step: int, ends: Sequence[int]) -> None:
    """Which of the candidates have ended, and which live on."""
    search.live = []
    last = step == options.tokens - 1
    for beam in found:
        writing = replay(search, beam, last) if last or options.stop or beam.tokens[-1] in ends else None
        if writing is not None and writing.ended:
            search.ended.append((beam.total / length_penalty(step + 1, options.alpha), writing))
        elif len(search.live) < options.beams:
            search.live.append(beam)
    search.ended.sort(key=lambda pair: -pair[0])
    del search.ended[options.beams:]


def replay(search: Search, beam: Beam, last: bool) -> Writing:
    writing = search.begin()
    for number, token in enumerate(beam.tokens, 1):
        writing.add(token, 0.0, last and number == len(beam.tokens))
    writing.log_probability = beam.log_probability
    return writing


def settled(search: Search, options: Options, length: int) -> bool:
    """Whether no beginning can still become one of the completions that will be returned."""
    if not search.live:
        return True
    if len(search.ended) < options.completions:
        return False
    # further tokens only lower the sum; the penalty is largest at one end of the lengths that are possible
    total = max(beam.total for beam in search.live)
    possible = max(total / length_penalty(length + 1, options.alpha),
                   total / length_penalty(max(options.tokens, length + 1), options.alpha))
    return possible <= search.ended[options.completions - 1][0]
