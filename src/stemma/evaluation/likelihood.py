"""Log-likelihood of given text under a language model, token by token.

Logits are as wide as the vocabulary, so only two things of each row are kept: the log-probability of the given token,
and whether it is the most probable one (then greedy decoding would generate it).
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
from stemma.network.heads import LabelScoringHead, ScoringHead
from stemma.network.linear_cross_entropy import BLOCK_LOGITS

BATCH_TOKENS = 4096  # per forward pass; more is no faster on a CPU
CACHE_TOKENS = 16_384  # in the caches of contexts that several continuations share
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class ContinuationScore:
    """The log-likelihood of a continuation after its context."""

    log_probability: float  # of all its tokens, in nats
    num_tokens: int  # scored tokens
    is_greedy: bool  # whether greedy decoding generates exactly this continuation
    num_truncated: int = 0  # context tokens that were cut from the beginning


def score_tokens(scorer: LMScorer, texts: Sequence[np.ndarray],
                 on_progress: OnProgress = lambda tokens: None) -> list[np.ndarray]:
    """The log-probability of every token of each text. The first is NaN if no document separator comes before it."""
    scores = [np.full(len(text), np.nan) for text in texts]
    inputs = [scorer.with_bos(text) for text in texts]
    num_scored = [0] * len(texts)  # scored tokens of each text
    with torch.inference_mode():
        for index, values in _score_texts(scorer, inputs):
            first = num_scored[index] + (scorer.bos_id is None)
            scores[index][first:first + len(values)] = values
            num_scored[index] += len(values)
            on_progress(len(values))
    return [values[::-1] if scorer.right_to_left else values for values in scores]


def score_continuations(model: Model | LMScorer, contexts: Sequence[str], continuations: Sequence[str],
                        on_progress: OnProgress = lambda tokens: None) -> list[ContinuationScore]:
    """The score of each continuation after its context. A context that several share is computed once."""
    scorer = model if isinstance(model, LMScorer) else LMScorer(model)
    if scorer.right_to_left:
        raise UserError(f"{scorer.model.recipe.label} reads texts from their end, so it cannot say how one goes on; "
                        "use a model that reads forwards.")
    pairs = encode_pairs(scorer, contexts, continuations)
    indices_by_context: dict[tuple[int, ...], list[int]] = {}
    for index, (context, _) in enumerate(pairs):
        indices_by_context.setdefault(tuple(context), []).append(index)
    groups = [_ContextGroup.build(scorer, indices, pairs) for indices in indices_by_context.values()]
    # A cache is worth its cost if it is used more than once; a model with a memory always needs one.
    single = [group for group in groups if len(group.indices) == 1 and not scorer.has_memory]
    shared = [group for group in groups if len(group.indices) > 1 or scorer.has_memory]
    scores: dict[int, ContinuationScore] = {}

    def add_score(group: _ContextGroup, member: int, values: Tensor, greedy: Tensor) -> None:
        scores[group.indices[member]] = ContinuationScore(float(values.double().sum()), len(values),
                                                          bool(greedy.all()), group.num_truncated)
        on_progress(1)

    with torch.inference_mode():
        windows = [ScoringWindow(np.concatenate([group.context, group.tokens[0]]), len(group.tokens[0]))
                   for group in single]
        for index, values, greedy in score_windows(scorer, windows):
            add_score(single[index], 0, values, greedy)
        for group, member, values, greedy in _score_groups(scorer, shared):
            add_score(group, member, values, greedy)
    return [scores[index] for index in range(len(pairs))]


@dataclass(frozen=True)
class _ContextGroup:
    """The continuations of one context."""

    context: np.ndarray  # truncated from the left to what fits
    num_truncated: int
    indices: list[int]  # of the continuations
    tokens: list[np.ndarray]

    @classmethod
    def build(cls, scorer: LMScorer, indices: list[int],
              pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> _ContextGroup:
        context, tokens = pairs[indices[0]][0], [pairs[index][1] for index in indices]
        truncated = context if scorer.has_memory else context[-(scorer.length - max(map(len, tokens)) + 1):]
        return cls(truncated, len(context) - len(truncated), indices, tokens)


def encode_pairs(scorer: LMScorer, contexts: Sequence[str],
                 continuations: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tokens of each context and of its continuation.

    Both are tokenized as one text, as in training. A token that spans the boundary belongs to the continuation. The
    context begins with the document separator; without one, its first token is not scored.
    """
    tokenizer = scorer.model.require_tokenizer()
    distinct = list(dict.fromkeys(contexts))
    context_ids = {text: encoding.ids for text, encoding
                   in zip(distinct, tokenizer.encode_batch(distinct, special=False), strict=True)}
    encodings = tokenizer.encode_batch([a + b for a, b in zip(contexts, continuations, strict=True)], special=False)
    pairs = []
    for context, continuation, encoding in zip(contexts, continuations, encodings, strict=True):
        boundary = _common_prefix_length(context_ids[context], encoding.ids)
        all_tokens = scorer.with_bos(np.array(encoding.ids, np.int64))
        boundary = max(1, boundary + (scorer.bos_id is not None))
        tokens = all_tokens[boundary:]
        if not len(tokens):
            raise UserError(f'"{continuation}" adds no token to "{context[-40:]}", so it cannot be scored; write more '
                            "than white space.")
        if not scorer.has_memory and len(tokens) > scorer.length:
            raise UserError(f'"{continuation[:40]}..." is {len(tokens)} tokens long and {scorer.model.recipe.label} '
                            f"reads {scorer.length} at a time; shorten it.")
        pairs.append((all_tokens[:boundary], tokens))
    return pairs


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


def log_probabilities(head: ScoringHead, hidden: Tensor, labels: Tensor, vocab_size: int,
                      excluded: int | None = None, with_greedy: bool = True) -> tuple[Tensor, Tensor]:
    """(N, width), (N,) -> (N,) log-probability of each label, (N,) whether it is the most probable token. `excluded`: a
    token that is never predicted. Without `with_greedy` the second result is all False, and a head that knows the
    probability of a token without those of the others (counts) is asked for it alone."""
    greedy = torch.zeros(len(labels), dtype=torch.bool, device=hidden.device)
    if not with_greedy and excluded is None and isinstance(head, LabelScoringHead):
        return head.label_scores(hidden, labels), greedy
    values = torch.empty(len(labels), device=hidden.device)
    rows = max(1, BLOCK_LOGITS // vocab_size)
    for start in range(0, len(labels), rows):
        logits = head(hidden[start:start + rows]).float()
        if excluded is not None:
            logits[:, excluded] = -torch.inf
        label_logits = logits.gather(1, labels[start:start + rows, None])[:, 0]
        values[start:start + rows] = label_logits - logits.logsumexp(1)
        greedy[start:start + rows] = logits.argmax(1) == labels[start:start + rows]  # as greedy decoding breaks ties
    return values, greedy


def _score_texts(scorer: LMScorer, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """(text index, log-probabilities of its next tokens), in reading order within a text."""
    if scorer.has_memory:
        yield from _score_segments(scorer, texts)
        return
    text_indices, windows = [], []
    for index, tokens in enumerate(texts):
        text_windows = scorer.split_windows(tokens)
        text_indices += [index] * len(text_windows)
        windows += text_windows
    pending: dict[int, np.ndarray] = {}  # windows are computed by length and yielded in order
    next_window = 0
    for index, values, _ in score_windows(scorer, windows, with_greedy=False):
        pending[index] = values.cpu().numpy()
        while next_window in pending:
            yield text_indices[next_window], pending.pop(next_window)
            next_window += 1


def score_windows(scorer: LMScorer, windows: Sequence[ScoringWindow],
                  with_greedy: bool = True) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(window index, log-probabilities, is greedy) of the targets of each window; batches have similar lengths."""
    order = sorted(range(len(windows)), key=lambda index: (-len(windows[index].tokens), index))
    start = 0
    while start < len(order):
        stop = start + max(1, BATCH_TOKENS // len(windows[order[start]].tokens))
        batch = [windows[index] for index in order[start:stop]]
        ids = scorer.pad([window.tokens for window in batch])
        cache = scorer.new_cache()
        scorer.prefill(ids[:, :1], cache)
        counts = [window.num_targets for window in batch]
        ends = [len(window.tokens) - 1 for window in batch]
        starts = [end - count for end, count in zip(ends, counts, strict=True)]
        values, greedy = _score_positions(scorer, ids, starts, ends, cache, with_greedy)
        yield from zip(order[start:stop], torch.split(values, counts), torch.split(greedy, counts), strict=True)
        start = stop


def _score_segments(scorer: LMScorer, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """Batches of texts, segment by segment with a memory. Longest first: texts that end leave at the end of a batch."""
    order = sorted((index for index, tokens in enumerate(texts) if len(tokens) > 1),
                   key=lambda index: -len(texts[index]))
    batch_size = max(1, BATCH_TOKENS // scorer.length)
    for first in range(0, len(order), batch_size):
        batch = order[first:first + batch_size]
        cache = scorer.new_cache()
        assert cache is not None
        scorer.prefill(scorer.pad([texts[index][:1] for index in batch]), cache)
        for start in range(0, len(texts[batch[0]]) - 1, scorer.length):
            unfinished = [index for index in batch if len(texts[index]) > start + 1]
            if len(unfinished) < len(batch):
                cache.reorder(torch.arange(len(unfinished), device=scorer.model.device))
            batch = unfinished
            rows = [texts[index][start:start + scorer.length + 1] for index in batch]
            counts = [len(row) - 1 for row in rows]
            values, _ = _score_positions(scorer, scorer.pad(rows), [0] * len(rows), counts, cache, with_greedy=False)
            for index, row_values in zip(batch, torch.split(values, counts), strict=True):
                yield index, row_values.cpu().numpy()


def _score_groups(scorer: LMScorer,
                  groups: Sequence[_ContextGroup]) -> Iterator[tuple[_ContextGroup, int, Tensor, Tensor]]:
    """(group, continuation, log-probabilities, is greedy): contexts are computed once, in batches of equal length, and
    the continuations from their caches."""
    for batch in _equal_length_batches(groups):
        members = [(row, member) for row, group in enumerate(batch) for member in range(len(group.tokens))]
        cache = scorer.new_cache(keep=True)
        assert cache is not None
        scorer.prefill(scorer.pad([group.context for group in batch]), cache)
        if cache.length:
            cache.reorder(torch.tensor([row for row, _ in members], device=scorer.model.device))
        rows = [np.concatenate([batch[row].context[-1:], batch[row].tokens[member]]) for row, member in members]
        counts = [len(row) - 1 for row in rows]
        values, greedy = _score_positions(scorer, scorer.pad(rows), [0] * len(rows), counts, cache)
        parts = torch.split(values, counts), torch.split(greedy, counts)
        for (row, member), row_values, row_greedy in zip(members, *parts, strict=True):
            yield batch[row], member, row_values, row_greedy


def _equal_length_batches(groups: Sequence[_ContextGroup]) -> Iterator[list[_ContextGroup]]:
    """Batches without padding, which a memory would store; their size is bounded by the cache."""
    batch: list[_ContextGroup] = []
    for group in sorted(groups, key=lambda group: len(group.context)):
        length = len(group.context)
        cache_tokens = length * (sum(len(other.indices) for other in batch) + len(group.indices))
        if batch and (len(batch[0].context) != length or cache_tokens > CACHE_TOKENS):
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _score_positions(scorer: LMScorer, ids: Tensor, starts: Sequence[int], ends: Sequence[int],
                     cache: KVCache | None, with_greedy: bool = True) -> tuple[Tensor, Tensor]:
    """Score the tokens after position `start` up to position `end` of each row; rows are concatenated."""
    positions = torch.arange(1, ids.shape[1], device=ids.device)
    first, last = (torch.tensor(bounds, device=ids.device)[:, None] for bounds in (starts, ends))
    target_mask = (positions > first) & (positions <= last)
    hidden = scorer.target_states(ids, target_mask, cache)
    return log_probabilities(scorer.model.lm_head(), hidden, ids[:, 1:][target_mask], scorer.network.vocab_size,
                             with_greedy=with_greedy)
