"""Greedy generation with gpt2 (12 layers x 768) against transformers' `generate` with its cache, in fp32 on the CPU.

    python benchmarks/generate_vs_transformers.py

Both sides load the same folder of random weights, get the same prompts (as ids) and write 128 new tokens; that they
write the same ones is checked. The peer is `generate(do_sample=False, use_cache=True)` as its documentation shows, with
its default attention; both may use all cores. At batch 1 every token has to read all weights once, so both are bound
by memory: how far from it is told by a plain pass over as many bytes.
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

PROMPT, NEW = 32, 128


def make_model(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(bos_token_id=50256, eos_token_id=None))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # livelier than fresh weights, which repeat one token for ever
    network.save_pretrained(folder)


def prompts(rows: int) -> list[list[int]]:
    import torch

    return torch.randint(50257, (rows, PROMPT), generator=torch.Generator().manual_seed(1)).tolist()


def ours(folder: Path, rows: int, threads: int) -> None:
    import torch

    import stemma

    torch.set_num_threads(threads)
    model = stemma.load(folder)
    asked = prompts(rows)
    serve(lambda: [one.tokens for one in stemma.generate(model, asked, greedy=True, tokens=NEW, batch=rows)])


def theirs(folder: Path, rows: int, threads: int) -> None:
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    network = GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.tensor(prompts(rows))

    def work() -> list[list[int]]:
        written = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                                   use_cache=True, pad_token_id=50256)
        return written[:, PROMPT:].tolist()

    serve(work)


def ceiling(threads: int) -> float:
    """Tokens a second if nothing were done but to read the weights: 124 million numbers of 4 bytes."""
    import torch

    torch.set_num_threads(threads)
    weights = torch.ones(124_439_808)
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        torch.dot(weights, weights)
        seconds.append(time.perf_counter() - began)
    return 1 / statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        (ours if options.side == "ours" else theirs)(options.folder, options.batch[0], options.threads)
        sys.exit()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(folder)
        for rows in options.batch:
            print(f"batch {rows}, a prompt of {PROMPT} tokens, {NEW} new ones, {options.threads} threads")
            common = ["--folder", str(folder), "--batch", str(rows), "--threads", str(options.threads)]
            sides = [Side(name, Path(__file__), ["--side", side, *common])
                     for side, name in (("ours", "stemma"), ("theirs", "transformers generate"))]
            compare(sides, options.rounds)
            report(sides, "tokens", rows * NEW)
            mine, peer = (side.results[-1] for side in sides)
            same = sum(a == b for x, y in zip(mine, peer, strict=True) for a, b in zip(x, y, strict=True))
            print(f"{same} of {rows * NEW} tokens are the same")
            if rows == 1:
                most = ceiling(options.threads)
                reached = NEW / statistics.median(sides[0].seconds)
                print(f"the ceiling of memory is about {most:.0f} tokens/s; ours reaches {reached / most:.0%} of it")
    print("wanted: 1.5x at batch 8; at batch 1 both wait for the memory")


if __name__ == "__main__":
    main()
