"""The default learning rate of fine-tuning against the best of five, and against the linear baseline.

Every cell (a data set, a model, a learning rate) is one fine-tuning with one seed, scored on dev examples. Its score is
appended to OUT/cells.jsonl, so a second call continues where the first was stopped. The learning rates are multiples of
the paper's rule (5e-5 for a width of 768, inversely proportional to the width). SST-2 and reviews_zh were used to
choose the defaults; MRPC and shop_zh were not.

    python benchmarks/finetune_defaults.py --data DATA --model tiny=RUN --model mini=RUN --out OUT [--sets sst2,mrpc]

DATA has glue/SST-2, glue/MRPC, reviews_zh and chinese/reviews. With --table nothing is trained, and the table of the
finished cells is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

MULTIPLES = (1.0, 4.0, 2.0, 8.0, 0.5)  # of the paper's learning rate at that width; in the order of running
FOUND = "found"  # the cell of --find-rate
# task, folder, --columns, whether the set was used to choose the defaults, and maximum length
SETS: dict[str, tuple[str, str, dict[str, str] | None, bool, int]] = {
    "sst2": ("sst2", "glue/SST-2", None, True, 128),
    "reviews_zh": ("classify", "reviews_zh", {"text": "text_a"}, True, 64),
    "mrpc": ("mrpc", "glue/MRPC", None, False, 128),
    "shop_zh": ("classify", "chinese/reviews", None, False, 64),
}
LINEAR = "linear"  # the model column of the cells of the linear baseline


def subset(source: Path, target: Path, limit: int, seed: int) -> Path:
    """A random sample of the rows of a table, with its header."""
    header, *rows = source.read_text(encoding="utf-8").rstrip("\n").split("\n")
    chosen = rows if len(rows) <= limit else random.Random(seed).sample(rows, limit)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")
    return target


def run_cell(name: str, model: str, rate: float | str | None, epochs: float | None,
             options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune once; `rate` None is the default of the program, with its epochs and warm-up; FOUND: --find-rate."""
    from stemma.tasks.runs.finetune import TaskArguments, finetune

    task, _, columns, _, length = SETS[name]
    run, search = options.out / f"run-{os.getpid()}", rate == FOUND
    changes = [*([] if rate is None or search else [f"training.learning_rate={rate}"]),
               *([f"training.threads={options.threads}"] if options.threads else []), "training.validate_every=1000000",
               "training.checkpoint_every=1000000", f"corpus.sequence_length={length}"]
    started = time.perf_counter()
    result = finetune(TaskArguments(task, sample_files(name, options), columns), model, run, epochs=epochs,
                      changes=changes, seed=options.seed, find_rate=search, overwrite=True)
    shutil.rmtree(run)
    return {"accuracy": result["metrics"]["dev"]["accuracy"], "steps": result["steps"],
            "chosen": result.get("defaults"), "found": result.get("learning_rate_search", {}).get("learning_rate"),
            "seconds": round(time.perf_counter() - started, 1)}


def sample_files(name: str, options: argparse.Namespace) -> dict[str, str | Path]:
    data = Path(options.data) / SETS[name][1]
    return {"train": subset(data / "train.tsv", options.out / name / "train.tsv", options.examples, 0),
            "dev": subset(data / "dev.tsv", options.out / name / "dev.tsv", options.dev, 1)}


def linear_cell(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The linear baseline on the same examples, and the share of the most frequent class."""
    from stemma.tasks.datasets import read_examples
    from stemma.tasks.linear_baseline import LinearBaseline

    task, _, columns, _, _ = SETS[name]
    train, dev = (read_examples(task, file, columns=columns, encoding="utf-8", errors="strict")
                  for file in sample_files(name, options).values())
    baseline = LinearBaseline([example.texts for example in train], [str(example.label) for example in train])
    predicted, gold = baseline.predict([example.texts for example in dev]), [str(example.label) for example in dev]
    return {"accuracy": sum(map(str.__eq__, predicted, gold)) / len(gold), "examples": len(gold),
            "majority": max(map(gold.count, gold)) / len(gold)}


def paper_rate(model: str) -> float:
    """5e-5 for a width of 768, as in BERT, scaled to the width of this model."""
    import stemma

    return float(f"{5e-5 * 768 / stemma.load(model).recipe.settings.network.width:.3g}")


def read_cells(file: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {(cell["set"], cell["model"], str(cell["rate"])): cell for cell in map(json.loads, lines)}


def print_table(cells: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """Accuracy in percent by data set and model: linear, each multiple, --find-rate, and the default."""
    multiples = sorted(MULTIPLES)
    print("| data | model | linear | " + " | ".join(f"x{multiple:g}" for multiple in multiples)
          + " | found | default | default - best | default - linear |")
    print("|---|---|---|" + "---|" * (len(multiples) + 4))
    for name, model in dict.fromkeys((name, model) for name, model, _ in cells if model != LINEAR):
        scores = [cells.get((name, model, f"x{multiple:g}"), {}).get("accuracy") for multiple in multiples]
        default, best = cells.get((name, model, "default"), {}), max((s for s in scores if s is not None), default=None)
        accuracy, linear = default.get("accuracy"), cells.get((name, LINEAR, LINEAR), {}).get("accuracy")
        gaps = [None if accuracy is None or other is None else accuracy - other for other in (best, linear)]
        found = cells.get((name, model, FOUND), {}).get("accuracy")
        cells_text = [f"{100 * score:.1f}" if score is not None else "" for score in [linear, *scores, found, accuracy]]
        print(f"| {name}{'' if SETS[name][3] else ' (held out)'} | {model} | " + " | ".join(cells_text) + " | "
              + " | ".join("" if gap is None else f"{100 * gap:+.1f}" for gap in gaps) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--cells", default=",".join(["default", *(f"x{multiple:g}" for multiple in MULTIPLES), FOUND]))
    parser.add_argument("--epochs", type=float, help="of the cells with a stated rate; default: the program's")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--dev", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "cells.jsonl"

    def store(row: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    for name in options.sets.split(",") if not options.table else []:
        if (name, LINEAR, LINEAR) not in read_cells(file):
            store({"set": name, "model": LINEAR, "rate": LINEAR, **linear_cell(name, options)})
    for cell in options.cells.split(",") if not options.table else []:
        for name in options.sets.split(","):
            for word in options.model:
                label, _, model = word.partition("=")
                if (name, label, cell) in read_cells(file):
                    continue
                rate = {"default": None, FOUND: FOUND}[cell] if cell in ("default", FOUND) \
                    else float(f"{float(cell[1:]) * paper_rate(model):.3g}")
                default = read_cells(file).get((name, label, "default"), {})
                chosen = (default.get("chosen") or {}).get("learning_rate")
                if not options.epochs and rate is not None and rate == chosen:
                    score = {key: default[key] for key in ("accuracy", "steps", "seconds")}  # the same run
                else:
                    score = run_cell(name, model, rate, None if rate is None else options.epochs, options)
                store({"set": name, "model": label, "rate": cell, "value": rate, "seed": options.seed, **score})
    print_table(read_cells(file))


if __name__ == "__main__":
    main()
