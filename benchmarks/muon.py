"""Cost of an optimizer step as a fraction of the training step: Stemma's Muon, torch.optim.Muon and AdamW.

    python benchmarks/muon.py
    python benchmarks/muon.py --size base

All three run in the training loop of `stemma pretrain` on the same text with the same network, in one process,
alternating every few steps. The peer is torch.optim.Muon for the hidden matrices (query, key and value as one matrix)
and fused AdamW for all other parameters. Results are medians over the rounds. Times are process time (of all threads,
including waiting), so that other programs have little influence; `--wall` uses wall-clock time instead.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer import zipf_corpus

VOCABULARY = 8_000
SIZES = {  # `base` has two layers instead of twelve: all layers cost the same
    "tiny": (24, 48, ["network.layers=2", "network.width=128", "network.heads=2", "network.feedforward=384"]),
    "base": (8, 128, ["network.layers=2", "network.width=768", "network.heads=12", "network.feedforward=3072"]),
}
ADAMW = ["training.optimizer.kind=adamw"]
MUON = ["training.optimizer.kind=muon", "training.learning_rate=0.02"]


def build_trainer(folder: Path, name: str, rows: int, length: int, changes: list[str]) -> Any:
    import torch

    from stemma.corpus.corpus import Corpus
    from stemma.objectives import build_network, build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.budget import Budget
    from stemma.training.corpus_cache import adopt_tokenizer
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.trainer import Trainer

    corpus = Corpus.open(folder / "corpus")
    resolved = adopt_tokenizer(recipe("bert@tiny", [
        *changes, "remove=objective.next_sentence", "corpus.packing=doc_sentences", "objective.masked_lm.dynamic=true",
        "network.dropout=0", "network.attention.dropout=0", f"corpus.sequence_length={length}",
        f"training.batch_size={rows}", "training.checkpoint_every=1000000", "training.validate_every=1000000"]), corpus)
    torch.manual_seed(0)
    network = build_network(resolved, corpus.tokenizer.vocab_size)
    (folder / name).mkdir()
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    return Trainer(folder / name, resolved, loader, network, Budget("steps", 100_000), 0)


class TorchMuon:
    """torch's Muon for hidden matrices and AdamW for all other parameters, as one optimizer."""

    def __init__(self, muon: Any):
        from torch.optim import AdamW, Muon

        hidden = [p for group in muon.param_groups if group["parts"] for p in group["params"]]
        others = [p for group in muon.param_groups if not group["parts"] for p in group["params"]]
        self.optimizers = [Muon(hidden, 0.02, 0.01), AdamW(others, 3e-4, fused=True)]
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.param_groups[1]["share"] = 3e-4 / 0.02

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def time_steps(optimizer: Any, clock: Callable[[], float]) -> list[float]:
    """Wrap the `step` of an optimizer; the returned list gets the seconds of each later step."""
    seconds: list[float] = []
    step = optimizer.step

    def timed_step() -> None:
        start = clock()
        step()
        seconds.append(clock() - start)

    optimizer.step = timed_step
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="steps per optimizer and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-torch", action="store_true", help="leave out torch's Muon, slow without bf16")
    parser.add_argument("--wall", action="store_true", help="wall-clock time instead of process time")
    options = parser.parse_args()
    from stemma.training.progress_bar import ProgressBar

    clock = time.perf_counter if options.wall else time.process_time
    rows, length, network = SIZES[options.size]
    common = [*network, f"training.threads={options.threads}"]
    with tempfile.TemporaryDirectory() as temporary, ProgressBar("", "", enabled=False) as progress:
        folder = Path(temporary)
        zipf_corpus(folder, VOCABULARY, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], length - 2)
        trainers = {"AdamW": build_trainer(folder, "adamw", rows, length, [*common, *ADAMW]),
                    "Muon (stemma)": build_trainer(folder, "stemma-muon", rows, length, [*common, *MUON])}
        if not options.no_torch:
            peer = trainers["Muon (torch)"] = build_trainer(folder, "torch-muon", rows, length, [*common, *MUON])
            peer.method.optimizer = TorchMuon(peer.method.optimizer)
        optimizer_seconds = {name: time_steps(trainer.method.optimizer, clock) for name, trainer in trainers.items()}
        step_times: dict[str, list[float]] = {name: [] for name in trainers}
        optimizer_times: dict[str, list[float]] = {name: [] for name in trainers}
        for _ in range(options.rounds + 1):  # the first round is a warm-up
            for name, trainer in trainers.items():
                start, num_timed = clock(), len(optimizer_seconds[name])
                for _ in range(options.steps):
                    trainer._step(progress)
                step_times[name].append((clock() - start) / options.steps)
                optimizer_times[name].append(sum(optimizer_seconds[name][num_timed:]) / options.steps)
        muon_trainer = trainers["Muon (stemma)"]
        print(f"\n{options.size}: {' '.join(network)}; {rows} rows of {length}, vocabulary {VOCABULARY:,}, "
              f"{options.threads} threads, network in {muon_trainer.precision}, "
              f"Newton-Schulz in {muon_trainer.method.optimizer.dtype}")
        print(f"{'':14}  {'ms per step':>11}  {'optimizer':>10}  {'fraction':>8}")
        for name in trainers:
            step, optimizer = (statistics.median(times[name][1:]) * 1e3 for times in (step_times, optimizer_times))
            print(f"{name:14}  {step:11.1f}  {optimizer:10.1f}  {optimizer / step:8.0%}")
        for trainer in trainers.values():
            trainer.__exit__()


if __name__ == "__main__":
    main()
