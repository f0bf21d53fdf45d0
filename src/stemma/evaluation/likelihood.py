"""How probable a given text is under a language model, token by token, and never the whole distribution.

A row of logits is as long as the vocabulary; of each only the given token's log-probability is kept, and whether it was
the likeliest (then greedy decoding would have said it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.evaluation.lm_scorer import LMScorer, ScoringWindow
from stemma.model import Model
from stemma.network.cache import KVCache
from stemma.network.heads import ScoringHead
from stemma.network.linear_cross_entropy import BLOCK_LOGITS

BATCH_TOKENS = 4096  # read at one go; more gains nothing on a CPU
CACHE_TOKENS = 16_384  # kept for continuations that share what they follow
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class ContinuationScore:
    """How a model likes a text after another."""

    log_probability: float  # of all its tokens, in nats
    num_tokens: int  # how many were scored
    is_greedy: bool  # each of them the likeliest at its place
    num_truncated: int = 0  # tokens of the context that the model had no room for, from its beginning


def score_tokens(scorer: LMScorer, texts: Sequence[np.ndarray],
                 on_progress: OnProgress = lambda tokens: None) -> list[np.ndarray]:
    """The log-probability of every token of each text; NaN for the first one read, where nothing stands before it."""
    found = [np.full(len(text), np.nan) for text in texts]
    laid = [scorer.with_bos(text) for text in texts]
    places = [0] * len(texts)  # how many of each were scored so far
    with torch.inference_mode():
        for number, values in _score_texts(scorer, laid):
            first = places[number] + (scorer.bos_id is None)
            found[number][first:first + len(values)] = values
            places[number] += len(values)
            on_progress(len(values))
    return [values[::-1] if scorer.right_to_left else values for values in found]


def score_continuations(model: Model | LMScorer, contexts: Sequence[str], continuations: Sequence[str],
                        on_progress: OnProgress = lambda tokens: None) -> list[ContinuationScore]:
    """Each continuation after its context. Several after the same context read it once."""
    reader = model if isinstance(model, LMScorer) else LMScorer(model)
    if reader.right_to_left:
        raise UserError(f"{reader.model.recipe.label} reads texts from their end, so it cannot say how one goes on; "
                        "use a model that reads forwards.")
    pairs = encode_pairs(reader, contexts, continuations)
    numbers: dict[tuple[int, ...], list[int]] = {}
    for number, (context, _) in enumerate(pairs):
        numbers.setdefault(tuple(context), []).append(number)
    groups = [_ContextGroup.build(reader, chosen, pairs) for chosen in numbers.values()]
    # a state that is used once is not worth keeping, unless the model lives on it
    alone = [group for group in groups if len(group.indices) == 1 and not reader.has_memory]
    shared = [group for group in groups if len(group.indices) > 1 or reader.has_memory]
    found: dict[int, ContinuationScore] = {}

    def note(group: _ContextGroup, place: int, values: Tensor, likeliest: Tensor) -> None:
        found[group.indices[place]] = ContinuationScore(float(values.double().sum()), len(values),
                                                        bool(likeliest.all()),
                                                   group.num_truncated)
        on_progress(1)

    with torch.inference_mode():
        pieces = [ScoringWindow(np.concatenate([group.context, group.tokens[0]]),
                                len(group.tokens[0])) for group in alone]
        for index, values, likeliest in _score_windows(reader, pieces):
            note(alone[index], 0, values, likeliest)
        for group, place, values, likeliest in _score_groups(reader, shared):
            note(group, place, values, likeliest)
    return [found[number] for number in range(len(pairs))]


@dataclass(frozen=True)
class _ContextGroup:
    """Continuations of one context, by their numbers."""

    context: np.ndarray  # what the model has room for
    num_truncated: int  # how much that leaves out, from the beginning
    indices: list[int]
    tokens: list[np.ndarray]

    @classmethod
    def build(cls, scorer: LMScorer, indices: list[int], pairs: Sequence[tuple[np.ndarray,
                                                                               np.ndarray]]) -> _ContextGroup:
        context, tokens = pairs[indices[0]][0], [pairs[number][1] for number in indices]
        kept = context if scorer.has_memory else context[-(scorer.length - max(map(len, tokens)) + 1):]
        return cls(kept, len(context) - len(kept), indices, tokens)


def encode_pairs(scorer: LMScorer, contexts: Sequence[str],
          continuations: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tokens of each context and of what follows it.

    Both are tokenised as one text, as the model knows it. Where a token reaches over the seam, it belongs to what
    follows. The context begins with the token that parts texts; without one, its first token is not scored.
    """
    tokenizer = scorer.model.require_tokenizer()
    distinct = list(dict.fromkeys(contexts))
    before = dict(zip(distinct, (one.ids for one in tokenizer.encode_batch(distinct, special=False)), strict=True))
    whole = tokenizer.encode_batch([a + b for a, b in zip(contexts, continuations, strict=True)], special=False)
    pairs = []
    for context, continuation, encoding in zip(contexts, continuations, whole, strict=True):
        seam = _common_prefix_length(before[context], encoding.ids)
        laid = scorer.with_bos(np.array(encoding.ids, np.int64))
        seam = max(1, seam + (scorer.bos_id is not None))
        tokens = laid[seam:]
        if not len(tokens):
            raise UserError(f'"{continuation}" adds no token to "{context[-40:]}", so it cannot be scored; write more '
                            "than white space.")
        if not scorer.has_memory and len(tokens) > scorer.length:
            raise UserError(f'"{continuation[:40]}..." is {len(tokens)} tokens long and {scorer.model.recipe.label} '
                            f"reads {scorer.length} at a time; shorten it.")
        pairs.append((laid[:seam], tokens))
    return pairs


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two rows share from their beginning."""
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))


def log_probabilities(head: ScoringHead, hidden: Tensor, labels: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """(N, width), (N,) -> (N,) log-probability of each label, (N,) whether nothing was likelier."""
    values = torch.empty(len(labels), device=hidden.device)
    likeliest = torch.empty(len(labels), dtype=torch.bool, device=hidden.device)
    rows = max(1, BLOCK_LOGITS // vocab_size)
    for start in range(0, len(labels), rows):
        logits = head(hidden[start:start + rows]).float()
        given = logits.gather(1, labels[start:start + rows, None])[:, 0]
        values[start:start + rows] = given - logits.logsumexp(1)
        likeliest[start:start + rows] = logits.argmax(1) == labels[start:start + rows]  # of equals, the first is said
    return values, likeliest


def _score_texts(scorer: LMScorer, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """(text, log-probabilities of its next tokens), each text's in reading order."""
    if scorer.has_memory:
        yield from _score_segments(scorer, texts)
        return
    owners, pieces = [], []
    for number, tokens in enumerate(texts):
        windows = scorer.split_windows(tokens)
        owners += [number] * len(windows)
        pieces += windows
    waiting: dict[int, np.ndarray] = {}  # windows are read by length, and told in order
    told = 0
    for index, values, _ in _score_windows(scorer, pieces):
        waiting[index] = values.cpu().numpy()
        while told in waiting:
            yield owners[told], waiting.pop(told)
            told += 1


def _score_windows(scorer: LMScorer, windows: Sequence[ScoringWindow]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(piece, log-probabilities, likeliest) of what is guessed of each; pieces of like length are read together."""
    order = sorted(range(len(windows)), key=lambda index: (-len(windows[index].tokens), index))
    start = 0
    while start < len(order):
        stop = start + max(1, BATCH_TOKENS // len(windows[order[start]].tokens))
        chosen = [windows[index] for index in order[start:stop]]
        ids = scorer.pad([piece.tokens for piece in chosen])
        cache = scorer.new_cache()
        scorer.prefill(ids[:, :1], cache)
        counts = [piece.num_targets for piece in chosen]
        ends = [len(piece.tokens) - 1 for piece in chosen]
        values, likeliest = _score_positions(scorer, ids, [end - count for end,
                                                           count in zip(ends, counts, strict=True)], ends,
                                 cache)
        yield from zip(order[start:stop], torch.split(values, counts), torch.split(likeliest, counts),
                       strict=True)
        start = stop


def _score_segments(scorer: LMScorer, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """Several texts side by side, segment after segment, each going on from the state it left; the longest last."""
    order = sorted((number for number, tokens in enumerate(texts) if len(tokens) > 1),
                   key=lambda number: -len(texts[number]))
    together = max(1, BATCH_TOKENS // scorer.length)
    for first in range(0, len(order), together):
        group = order[first:first + together]
        cache = scorer.new_cache()
        assert cache is not None
        scorer.prefill(scorer.pad([texts[number][:1] for number in group]), cache)
        for start in range(0, len(texts[group[0]]) - 1, scorer.length):
            living = [number for number in group if len(texts[number]) > start + 1]
            if len(living) < len(group):
                cache.reorder(torch.arange(len(living), device=scorer.model.device))
            group = living
            rows = [texts[number][start:start + scorer.length + 1] for number in group]
            counts = [len(row) - 1 for row in rows]
            values, _ = _score_positions(scorer, scorer.pad(rows), [0] * len(rows), counts, cache)
            for number, part in zip(group, torch.split(values, counts), strict=True):
                yield number, part.cpu().numpy()


def _score_groups(scorer: LMScorer, groups: Sequence[_ContextGroup]) -> Iterator[tuple[_ContextGroup, int, Tensor,
                                                                                       Tensor]]:
    """Contexts of one length are read together, once, and what follows them from the state they left."""
    for batch in _equal_length_batches(groups):
        asked = [(row, place) for row, group in enumerate(batch) for place in range(len(group.tokens))]
        cache = scorer.new_cache(keep=True)
        assert cache is not None
        scorer.prefill(scorer.pad([group.context for group in batch]), cache)
        if cache.length:
            cache.reorder(torch.tensor([row for row, _ in asked], device=scorer.model.device))
        rows = [np.concatenate([batch[row].context[-1:], batch[row].tokens[place]]) for row, place in asked]
        counts = [len(row) - 1 for row in rows]
        values, likeliest = _score_positions(scorer, scorer.pad(rows), [0] * len(rows), counts, cache)
        parts = torch.split(values, counts), torch.split(likeliest, counts)
        for (row, place), found, best in zip(asked, *parts, strict=True):
            yield batch[row], place, found, best


def _equal_length_batches(groups: Sequence[_ContextGroup]) -> Iterator[list[_ContextGroup]]:
    """Batches without filling, which some models would see; bounded by what their states hold."""
    batch: list[_ContextGroup] = []
    for group in sorted(groups, key=lambda group: len(group.context)):
        length = len(group.context)
        held = length * (sum(len(other.indices) for other in batch) + len(group.indices))
        if batch and (len(batch[0].context) != length or held > CACHE_TOKENS):
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _score_positions(scorer: LMScorer, ids: Tensor, starts: Sequence[int], ends: Sequence[int],
         cache: KVCache | None) -> tuple[Tensor, Tensor]:
    """The tokens behind place `start` up to place `end` of each row, one row after another."""
    place = torch.arange(1, ids.shape[1], device=ids.device)
    first, last = (torch.tensor(bounds, device=ids.device)[:, None] for bounds in (starts, ends))
    wanted = (place > first) & (place <= last)
    hidden = scorer.target_states(ids, wanted, cache)
    return log_probabilities(scorer.model.lm_head(), hidden, ids[:, 1:][wanted], scorer.network.vocab_size)
