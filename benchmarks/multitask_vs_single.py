"""Multi-task compared with single-task fine-tuning, for several numbers of examples.

    python benchmarks/multitask_vs_single.py --model MODEL --glue GLUE --tasks mrpc,stsb --examples 100,500,2000

For every number of examples and every seed, four schedules are trained on the same sample of examples, with the same
heads, optimizer, epochs and batch size: each task separately (single); all tasks jointly (joint); and both with a
second stage, in which each task is trained separately for the same number of epochs. So the first two schedules use
every example equally often, and so do the last two. Prints the table of docs/how-to/multitask.md: mean and standard
deviation of the main metric over the seeds, on the whole dev file.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from stemma.tasks.datasets import DATASETS
from stemma.tasks.runs.multitask import multitask

FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE", "qnli": "QNLI"}
WITHOUT_HEADER = ("cola",)
VALIDATE_ONCE = "training.validate_every=1000000"  # with few examples, validation costs more than training
SCHEDULES = ("single", "joint", "single, then single", "joint, then single")


def sample_lines(file: Path, name: str, count: int, seed: int, out: Path) -> Path:
    """Write a random sample of `count` lines of an official file."""
    lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    header = [] if name in WITHOUT_HEADER else lines[:1]
    sample = random.Random(seed).sample(lines[len(header):], min(count, len(lines) - len(header)))
    out.write_text("\n".join([*header, *sample]) + "\n", encoding="utf-8")
    return out


def write_plan(folder: Path, files: dict[str, tuple[Path, Path]], san: bool) -> Path:
    lines = ["finetune = true"]
    for name, (train, dev) in files.items():
        head = ["head = \"san\""] if san and DATASETS[name].kind == "pair" else []
        lines += [f"[tasks.{name}]", f'dataset = "{name}"', f'train = "{train}"', f'dev = "{dev}"', *head]
    file = folder / f"{'-'.join(files)}.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def dev_scores(options: argparse.Namespace, names: list[str], count: int, seed: int,
               folder: Path) -> dict[tuple[str, str], float]:
    """The dev score by task and schedule, with the same examples."""
    files = {name: (sample_lines(options.glue / FOLDERS[name] / "train.tsv", name, count, seed, folder / f"{name}.tsv"),
                    (options.glue / FOLDERS[name] / "dev.tsv").absolute()) for name in names}

    def train(tasks: list[str]) -> dict[str, Any]:
        file = write_plan(folder, {name: files[name] for name in tasks}, options.san)
        return multitask(file, options.model, folder / f"run-{'-'.join(tasks)}", epochs=options.epochs, seed=seed,
                         changes=[VALIDATE_ONCE, *options.changes])

    joint, scores = train(names), {}
    for name in names:
        runs = (train([name]), joint)
        metrics = [*(run["metrics"]["dev"]["tasks"][name] for run in runs),
                   *(run["finetuned"][name]["metrics"]["dev"] for run in runs)]
        scores |= {(name, schedule): values[DATASETS[name].metrics[0]]
                   for schedule, values in zip(SCHEDULES, metrics, strict=True)}
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--glue", type=Path, required=True, help="folder with CoLA, MRPC, ...")
    parser.add_argument("--tasks", default="mrpc,stsb")
    parser.add_argument("--examples", default="100,500,2000")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--san", action="store_true", help="use the SAN head for pairs")
    parser.add_argument("changes", nargs="*", help="key=value")
    options = parser.parse_args()
    names = options.tasks.split(",")
    print(f"| task | examples | {' | '.join(SCHEDULES)} |\n|---|---|{'---|' * len(SCHEDULES)}", flush=True)
    for count in map(int, options.examples.split(",")):
        runs = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(dev_scores(options, names, count, seed, Path(folder)))
            print(f"{count} examples, seed {seed}: {runs[-1]}", file=sys.stderr, flush=True)
        for name in names:
            scores = [[run[name, schedule] for run in runs] for schedule in SCHEDULES]
            cells = [f"{statistics.mean(seeds):.3f} ± {statistics.stdev(seeds) if len(seeds) > 1 else 0:.3f}"
                     for seeds in scores]
            print(f"| {name} ({DATASETS[name].metrics[0]}) | {count:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
