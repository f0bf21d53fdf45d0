"""Evaluating with a memory against a sliding window: the speed that Transformer-XL gains by never reading twice.

    python benchmarks/xl_evaluation.py

Per-token time at several attention lengths, 4 layers x 256, no vocabulary head on either side. The window is a plain
causal Transformer (learned positions, fused attention, only the last place computed in the last block) that is read
anew for every token, as the vanilla model of the paper's table 9 is (arXiv:1901.02860: on a GPU, 12 layers x 512);
against segments of 128 tokens that look at a memory of that length. Both sides alternate.
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

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SEGMENT = 128


def build(name: str, *changes: str) -> Network:
    torch.manual_seed(0)
    return Network(recipe(name, changes).settings.network, 256, {}).eval()


@torch.inference_mode()
def window(network: Network, attention: int) -> float:
    """Seconds for one token: the whole window, for the sake of its last place."""
    ids = torch.randint(256, (1, attention))
    began = time.perf_counter()
    network({"encoder": Stream(ids, Causal(), output_positions=torch.tensor([attention - 1]))})
    return time.perf_counter() - began


@torch.inference_mode()
def segments(network: Network, state, count: int):
    """Seconds for one token of `count` segments, each after what was read before."""
    ids = torch.randint(256, (1, SEGMENT))
    began = time.perf_counter()
    for _ in range(count):
        state = network({"encoder": Stream(ids, Causal())}, state).state
    return (time.perf_counter() - began) / (count * SEGMENT), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("attention   sliding window      state reuse     faster by   published")
    for attention in (200, 400, 800, 1800, 2800, 3800):
        plain = build("gpt@mini", f"network.position.maximum={attention}")
        remembering = build("transformer-xl@mini", "network.embedding.cutoffs=[]", "network.memory.start=empty",
                            f"network.memory.evaluation={attention}")
        state = None
        while state is None or state.length < attention:  # fill the memory
            _, state = segments(remembering, state, 1)
        window(plain, attention)
        slow, fast = [], []
        for _ in range(options.rounds):
            slow.append(window(plain, attention))
            seconds, state = segments(remembering, state, 4)
            fast.append(seconds)
        ratio = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
        published = f"{PUBLISHED[attention]:,}x" if attention in PUBLISHED else "-"
        print(f"{attention:>9,} {statistics.median(slow) * 1000:11.2f} ms/tok "
              f"{statistics.median(fast) * 1000:10.3f} ms/tok {ratio:11,.0f}x {published:>11}", flush=True)


if __name__ == "__main__":
    main()
