"""Evaluation speed of Transformer-XL's memory compared with a sliding window.

    python benchmarks/xl_evaluation.py

Time per token at several attention lengths, 4 layers x 256, without an output layer. The sliding window is a causal
Transformer (learned positions, fused attention; the last block computes only the last position) that processes the
whole window for every token, like the vanilla model in table 9 of the paper (arXiv:1901.02860: on a GPU, 12 layers x
512). Transformer-XL processes segments of 128 tokens with a memory of that length. Both alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.recipe_loading import recipe
from stemma.visibility import Causal

PUBLISHED_SPEEDUP = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SEGMENT = 128


def build(name: str, *changes: str) -> Network:
    torch.manual_seed(0)
    return Network(recipe(name, changes).settings.network, 256, {}).eval()


@torch.inference_mode()
def time_window(network: Network, attention: int) -> float:
    """Seconds per token: the whole window is processed for its last position."""
    ids = torch.randint(256, (1, attention))
    start = time.perf_counter()
    network({"encoder": Stream(ids, Causal(), output_positions=torch.tensor([attention - 1]))})
    return time.perf_counter() - start


@torch.inference_mode()
def time_segments(network: Network, state, count: int):
    """(seconds per token, new state) of `count` consecutive segments."""
    ids = torch.randint(256, (1, SEGMENT))
    start = time.perf_counter()
    for _ in range(count):
        state = network({"encoder": Stream(ids, Causal())}, state).state
    return (time.perf_counter() - start) / (count * SEGMENT), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("attention   sliding window           memory       speedup   published")
    for attention in (200, 400, 800, 1800, 2800, 3800):
        plain = build("gpt@mini", f"network.position.maximum={attention}")
        with_memory = build("transformer-xl@mini", "network.embedding.cutoffs=[]", "network.memory.start=empty",
                            f"network.memory.eval_length={attention}")
        state = None
        while state is None or state.length < attention:  # fill the memory
            _, state = time_segments(with_memory, state, 1)
        time_window(plain, attention)
        window_times, memory_times = [], []
        for _ in range(options.rounds):
            window_times.append(time_window(plain, attention))
            seconds, state = time_segments(with_memory, state, 4)
            memory_times.append(seconds)
        speedup = statistics.median(a / b for a, b in zip(window_times, memory_times, strict=True))
        published = f"{PUBLISHED_SPEEDUP[attention]:,}x" if attention in PUBLISHED_SPEEDUP else "-"
        print(f"{attention:>9,} {statistics.median(window_times) * 1000:11.2f} ms/tok "
              f"{statistics.median(memory_times) * 1000:10.3f} ms/tok {speedup:11,.0f}x {published:>11}", flush=True)


if __name__ == "__main__":
    main()
