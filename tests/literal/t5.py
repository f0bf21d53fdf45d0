"""Span corruption as in T5's released code, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations


def counts(length: int, rate: float, mean_span: float) -> tuple[int, int]:
    """The number of masked tokens and of spans."""
    noise = min(max(round(length * rate), 1), length - 1)
    return noise, max(round(noise / mean_span), 1)


def window(inputs: int, rate: float, mean_span: float) -> tuple[int, int]:
    """The number of text tokens that fill `inputs` tokens, and the length of the targets, both with an end token."""
    def lengths(text: int) -> tuple[int, int]:
        noise = round(text * rate)
        spans = round(noise / mean_span)
        return text - noise + spans + 1, noise + spans + 1

    text = inputs
    while lengths(text + 1)[0] <= inputs:
        text += 1
    return text, lengths(text)[1]


def partitions(items: int, segments: int) -> Iterator[list[int]]:
    """All partitions of the items into this many nonempty segments, as lengths."""
    for cuts in combinations(range(1, items), segments - 1):
        edges = [0, *cuts, items]
        yield [stop - start for start, stop in zip(edges[:-1], edges[1:], strict=True)]


def masks(length: int, noise: int, spans: int) -> Iterator[tuple[bool, ...]]:
    """All masks: text and spans alternate, text first."""
    for text_lengths in partitions(length - noise, spans):
        for span_lengths in partitions(noise, spans):
            mask: list[bool] = []
            for text, span in zip(text_lengths, span_lengths, strict=True):
                mask += [False] * text + [True] * span
            yield tuple(mask)


def restore(source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The original text of a source and a target (both without the end token)."""
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
