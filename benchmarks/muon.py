"""What Muon's step costs, as a share of the whole training step: ours, torch.optim.Muon, and plain AdamW beside them.

    python benchmarks/muon.py
    python benchmarks/muon.py --size base

All three are the loop behind `stemma pretrain` on the same text, with the same network, in one process and by turns, a
few steps each. The peer is torch.optim.Muon for the hidden matrices (query, key and value as the one matrix that they
are) and fused AdamW for the rest. Medians of the rounds. Times are process time (of all threads, waiting
included), so that other programs disturb little; `--wall` takes the clock instead.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import zipf_text

VOCABULARY = 8_000
SIZES = {  # of `base` two layers in place of twelve: each costs the same
    "tiny": (24, 48, ["network.layers=2", "network.width=128", "network.heads=2", "network.feedforward=384"]),
    "base": (8, 128, ["network.layers=2", "network.width=768", "network.heads=12", "network.feedforward=3072"]),
}
ADAMW = ["training.optimizer.kind=adamw"]
MUON = ["training.optimizer.kind=muon", "training.learning_rate=0.02"]


def make_loop(folder: Path, name: str, rows: int, length: int, changes: list[str]) -> Any:
    import torch

    from stemma.corpus.corpus import Corpus
    from stemma.objectives import build_network, build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.budget import Budget
    from stemma.training.corpus_cache import adopt_tokenizer
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.trainer import Trainer

    corpus = Corpus.open(folder / "corpus")
    chosen = adopt_tokenizer(recipe("bert@tiny", [
        *changes, "remove=objective.next_sentence", "corpus.packing=doc_sentences", "objective.masked_lm.dynamic=true",
        "network.dropout=0", "network.attention.dropout=0", f"corpus.sequence_length={length}",
        f"training.batch_size={rows}", "training.checkpoint_every=1000000", "training.validate_every=1000000"]), corpus)
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    (folder / name).mkdir()
    return Trainer(folder / name, chosen, PretrainLoader(chosen, corpus, build_objectives(chosen), 0), network,
                Budget("steps", 100_000), 0)


class Peer:
    """torch's Muon and AdamW as one."""

    def __init__(self, ours: Any):
        from torch.optim import AdamW, Muon

        hidden = [p for group in ours.param_groups if group["parts"] for p in group["params"]]
        rest = [p for group in ours.param_groups if not group["parts"] for p in group["params"]]
        self.both = [Muon(hidden, 0.02, 0.01), AdamW(rest, 3e-4, fused=True)]
        self.param_groups = [group for optimizer in self.both for group in optimizer.param_groups]
        self.param_groups[1]["share"] = 3e-4 / 0.02

    def step(self) -> None:
        for optimizer in self.both:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.both:
            optimizer.zero_grad(set_to_none)


def timed(optimizer: Any, clock: Callable[[], float]) -> list[float]:
    """The seconds of each of its steps, from now on."""
    spent: list[float] = []
    step = optimizer.step

    def measured() -> None:
        began = clock()
        step()
        spent.append(clock() - began)

    optimizer.step = measured
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="of each side in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-torch", action="store_true", help="leave torch's Muon out: without bf16 it is very slow")
    parser.add_argument("--wall", action="store_true", help="clock time in place of process time")
    options = parser.parse_args()
    from stemma.training.progress_bar import ProgressBar

    clock = time.perf_counter if options.wall else time.process_time
    rows, length, network = SIZES[options.size]
    common = [*network, f"training.threads={options.threads}"]
    with tempfile.TemporaryDirectory() as temporary, ProgressBar("", "", enabled=False) as progress:
        folder = Path(temporary)
        zipf_text(folder, VOCABULARY, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], length - 2)
        loops = {"AdamW": make_loop(folder, "adamw", rows, length, [*common, *ADAMW]),
                 "Muon, ours": make_loop(folder, "ours", rows, length, [*common, *MUON])}
        if not options.no_torch:
            peer = loops["Muon, torch's"] = make_loop(folder, "theirs", rows, length, [*common, *MUON])
            peer.optimizer = Peer(peer.optimizer)
        spent = {name: timed(loop.method.optimizer, clock) for name, loop in loops.items()}
        whole: dict[str, list[float]] = {name: [] for name in loops}
        part: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(options.rounds + 1):
            for name, loop in loops.items():
                began, before = clock(), len(spent[name])
                for _ in range(options.steps):
                    loop._step(progress)
                whole[name].append((clock() - began) / options.steps)
                part[name].append(sum(spent[name][before:]) / options.steps)
        chosen = loops["Muon, ours"]
        print(f"\n{options.size}: {' '.join(network)}; {rows} rows of {length}, vocabulary {VOCABULARY:,}, "
              f"{options.threads} threads, network in {chosen.precision}, Newton-Schulz in {chosen.optimizer.dtype}")
        print(f"{'':14}  {'ms a step':>10}  {'optimizer':>10}  {'share':>6}")
        for name in loops:
            step, inner = statistics.median(whole[name][1:]) * 1e3, statistics.median(part[name][1:]) * 1e3
            print(f"{name:14}  {step:10.1f}  {inner:10.1f}  {inner / step:6.0%}")
        for loop in loops.values():
            loop.__exit__()


if __name__ == "__main__":
    main()
