"""Span corruption as T5's released code counts it, one token after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations


def counts(length: int, rate: float, mean_span: float) -> tuple[int, int]:
    """How many tokens are hidden, in how many spans."""
    noise = min(max(round(length * rate), 1), length - 1)
    return noise, max(round(noise / mean_span), 1)


def window(inputs: int, rate: float, mean_span: float) -> tuple[int, int]:
    """How many tokens of text fill a window of inputs, and how long the targets are; both end with a token."""
    def lengths(text: int) -> tuple[int, int]:
        noise = round(text * rate)
        spans = round(noise / mean_span)
        return text - noise + spans + 1, noise + spans + 1

    text = inputs
    while lengths(text + 1)[0] <= inputs:
        text += 1
    return text, lengths(text)[1]


def partitions(items: int, segments: int) -> Iterator[list[int]]:
    """Every way to part some items into segments, none of them empty."""
    for cuts in combinations(range(1, items), segments - 1):
        edges = [0, *cuts, items]
        yield [stop - start for start, stop in zip(edges[:-1], edges[1:], strict=True)]


def masks(length: int, noise: int, spans: int) -> Iterator[tuple[bool, ...]]:
    """Every way to hide: text and spans take turns, text first."""
    for kept in partitions(length - noise, spans):
        for hidden in partitions(noise, spans):
            made: list[bool] = []
            for text, span in zip(kept, hidden, strict=True):
                made += [False] * text + [True] * span
            yield tuple(made)


def restore(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The text that source and target say together (both without the end)."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    text: list[int] = []
    for token in source:
        text += spans.get(token, [token])
    return text
