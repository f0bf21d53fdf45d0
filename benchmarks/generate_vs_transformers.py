"""Greedy generation with gpt2 (12 layers x 768) compared with transformers' `generate`, with KV caches, in fp32 on CPU.

    python benchmarks/generate_vs_transformers.py

Both sides load the same folder of random weights, get the same prompts (as ids) and generate 128 new tokens, which are
compared. The peer is `generate(do_sample=False, use_cache=True)` as its documentation shows, with its default
attention; both may use all cores. At batch 1 every token has to read all weights once, so memory bandwidth is the
limit. It is measured by reading equally many bytes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from side import Side, compare, report, serve

PROMPT_LENGTH, NEW_TOKENS = 32, 128


def make_model(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(bos_token_id=50256, eos_token_id=None))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # weights as initialized repeat one token forever
    network.save_pretrained(folder)


def prompts(rows: int) -> list[list[int]]:
    import torch

    return torch.randint(50257, (rows, PROMPT_LENGTH), generator=torch.Generator().manual_seed(1)).tolist()


def run_stemma(folder: Path, rows: int, threads: int) -> None:
    import torch

    import stemma

    torch.set_num_threads(threads)
    model = stemma.load(folder)
    prompt_ids = prompts(rows)
    serve(lambda: [completion.tokens for completion
                   in stemma.generate(model, prompt_ids, greedy=True, tokens=NEW_TOKENS, batch=rows)])


def run_transformers(folder: Path, rows: int, threads: int) -> None:
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    network = GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.tensor(prompts(rows))

    def work() -> list[list[int]]:
        generated = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
                                     do_sample=False, use_cache=True, pad_token_id=50256)
        return generated[:, PROMPT_LENGTH:].tolist()

    serve(work)


def memory_bound(threads: int) -> float:
    """Upper bound of tokens per second at batch 1: how often all weights (124 million floats) can be read."""
    import torch

    torch.set_num_threads(threads)
    weights = torch.ones(124_439_808)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        torch.dot(weights, weights)
        seconds.append(time.perf_counter() - start)
    return 1 / statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--side", choices=["stemma", "transformers"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run = run_stemma if options.side == "stemma" else run_transformers
        run(options.folder, options.batch[0], options.threads)
        sys.exit()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(folder)
        for rows in options.batch:
            print(f"batch {rows}, prompts of {PROMPT_LENGTH} tokens, {NEW_TOKENS} new tokens, "
                  f"{options.threads} threads")
            common = ["--folder", str(folder), "--batch", str(rows), "--threads", str(options.threads)]
            sides = [Side(name, Path(__file__), ["--side", side, *common])
                     for side, name in (("stemma", "stemma"), ("transformers", "transformers generate"))]
            compare(sides, options.rounds)
            report(sides, "tokens", rows * NEW_TOKENS)
            row_pairs = zip(*(side.results[-1] for side in sides), strict=True)
            equal = sum(a == b for ids, peer_ids in row_pairs for a, b in zip(ids, peer_ids, strict=True))
            print(f"{equal} of {rows * NEW_TOKENS} tokens are equal")
            if rows == 1:
                bound = memory_bound(options.threads)
                fraction = NEW_TOKENS / statistics.median(sides[0].seconds) / bound
                print(f"memory bandwidth allows about {bound:.0f} tokens/s; stemma reaches {fraction:.0%} of that")
    print("goal: 1.5x at batch 8; at batch 1 memory bandwidth limits both")


if __name__ == "__main__":
    main()
