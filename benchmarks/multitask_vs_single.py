"""Several tasks at once against each alone, at several numbers of examples: does sharing pay, and when?

    python benchmarks/multitask_vs_single.py --model MODEL --glue GLUE --tasks mrpc,stsb --examples 100,500,2000

For every size and seed the same examples are drawn for all ways of learning, which differ in nothing else (heads,
optimizer, epochs, batch): each task alone; all together; and both again with a second stage, each task by itself from
there for as many epochs more. So the first two have seen every example equally often, and so have the last two. Prints
the table of docs/how-to/multitask.md: mean and standard deviation over the seeds of the metric that decides, on the
whole dev file.
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
BARE = ("cola",)  # files without a header
ONE_LOOK = "training.validate_every=1000000"  # at the dev set: with few examples, looks cost more than steps
WAYS = ("alone", "together", "alone, then alone", "together, then alone")


def draw(file: Path, name: str, count: int, seed: int, out: Path) -> Path:
    """So many lines of an official file."""
    lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    header = [] if name in BARE else lines[:1]
    chosen = random.Random(seed).sample(lines[len(header):], min(count, len(lines) - len(header)))
    out.write_text("\n".join([*header, *chosen]) + "\n", encoding="utf-8")
    return out


def plan(place: Path, files: dict[str, tuple[Path, Path]], san: bool) -> Path:
    lines = ["finetune = true"]
    for name, (train, dev) in files.items():
        head = ["head = \"san\""] if san and DATASETS[name].kind == "pair" else []
        lines += [f"[tasks.{name}]", f'dataset = "{name}"', f'train = "{train}"', f'dev = "{dev}"', *head]
    file = place / f"{'-'.join(files)}.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def once(options: argparse.Namespace, names: list[str], count: int, seed: int,
         place: Path) -> dict[tuple[str, str], float]:
    """The dev score of each task in each way, with the same examples."""
    files = {name: (draw(options.glue / FOLDERS[name] / "train.tsv", name, count, seed, place / f"{name}.tsv"),
                    (options.glue / FOLDERS[name] / "dev.tsv").absolute()) for name in names}

    def learn(chosen: list[str]) -> dict[str, Any]:
        file = plan(place, {name: files[name] for name in chosen}, options.san)
        return multitask(file, options.model, place / f"run-{'-'.join(chosen)}", epochs=options.epochs, seed=seed,
                         changes=[ONE_LOOK, *options.changes])

    both, found = learn(names), {}
    for name in names:
        runs = (learn([name]), both)
        metrics = [*(run["metrics"]["dev"]["tasks"][name] for run in runs),
                   *(run["finetuned"][name]["metrics"]["dev"] for run in runs)]
        found |= {(name, way): one[DATASETS[name].metrics[0]] for way, one in zip(WAYS, metrics, strict=True)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--glue", type=Path, required=True, help="the folder of CoLA, MRPC, ...")
    parser.add_argument("--tasks", default="mrpc,stsb")
    parser.add_argument("--examples", default="100,500,2000")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--san", action="store_true", help="read pairs by the SAN head")
    parser.add_argument("changes", nargs="*", help="key=value")
    options = parser.parse_args()
    names = options.tasks.split(",")
    print(f"| task | examples | {' | '.join(WAYS)} |\n|---|---|{'---|' * len(WAYS)}", flush=True)
    for count in map(int, options.examples.split(",")):
        runs = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(once(options, names, count, seed, Path(folder)))
            print(f"{count} examples, seed {seed}: {runs[-1]}", file=sys.stderr, flush=True)
        for name in names:
            values = [[run[name, way] for run in runs] for way in WAYS]
            cells = [f"{statistics.mean(one):.3f} ± {statistics.stdev(one) if len(one) > 1 else 0:.3f}" for one
                     in values]
            print(f"| {name} ({DATASETS[name].metrics[0]}) | {count:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
