"""Sliding windows cover everything, and the max-context window equals a slow reference."""

from __future__ import annotations

import random
import time

import numpy as np

from stemma.tasks.objectives.sliding_windows import max_context_window, split_windows


def owner_literally(token: int, windows: list[tuple[int, int]]) -> int:
    best, most = -1, -1
    for index, (start, stop) in enumerate(windows):
        if start <= token < stop and min(token - start, stop - 1 - token) > most:
            best, most = index, min(token - start, stop - 1 - token)
    return best


def test_windows_cover_every_token_and_no_more():
    rng = random.Random(0)
    for _ in range(500):
        room = rng.randint(1, 20)
        length, step = rng.randint(0, 90), rng.randint(1, room)
        windows = split_windows(length, room, step)
        assert windows[0][0] == 0 and windows[-1][1] == length
        assert all(0 <= stop - start <= room for start, stop in windows)
        assert all(b[0] - a[0] == step and b[0] <= a[1] for a, b in zip(windows, windows[1:], strict=False))
        assert len(windows) == 1 or windows[-2][1] < length  # the last one was needed
        expected = [owner_literally(token, windows) for token in range(length)]
        assert max_context_window(length, windows).tolist() == expected


def test_a_document_of_a_million_tokens_is_split_in_seconds():
    began = time.perf_counter()
    windows = split_windows(1_000_000, 381, 253)
    owner = max_context_window(1_000_000, windows)
    assert time.perf_counter() - began < 5  # windows x tokens would be four thousand million
    assert np.array_equal(np.unique(owner), np.arange(len(windows)))
