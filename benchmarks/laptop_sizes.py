"""What every recipe learns at a laptop size: tokens per second and nats below the unigram baseline, and the search for
its settings.

    python benchmarks/laptop_sizes.py sotu.txt --out runs --minutes 5
    python benchmarks/laptop_sizes.py sotu.txt --out runs --tokens 500000 --recipes gpt2 --bisect training.learning_rate

The first form is the table of all recipes. --bisect searches one numeric key for each recipe: from its present value by
factors of two to the better side, until both neighbours of the best value are worse. The search and the table share
runs, and a repeated call continues. Further KEY=VALUE apply to all runs. For a comparison of before and after, run it
with PYTHONPATH set to the older version and another --out.

A pseudo-likelihood, a bound or the loss of a generator is no likelihood of the text, so compare rows of one kind only:
masked models (and the generator of ELECTRA) predict masked tokens, T5, BART and MASS the tokens that their decoder
writes, mdlm is weighted by 1 / masking rate, causal models predict every token.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stemma.recipe_loading import recipe, recipe_names
from stemma.schema.overrides import flatten


def main() -> None:
    options = parse()
    names = options.recipes.split(",") if options.recipes else token_recipes()
    print(f"{'recipe':25} {'change':40} {'tokens':>9} {'tokens/s':>9}  held-out  unigram  below", flush=True)
    for name in names:
        label = f"{name}@{options.size}"
        if options.bisect:
            bisect(label, options.bisect, options)
        else:
            show(label, " ".join(options.changes) or "-", train(label, options.changes, options))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", help="comma-separated; by default all that learn from plain text")
    parser.add_argument("--size", default="tiny")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float)
    budget.add_argument("--tokens", type=int)
    parser.add_argument("--bisect", metavar="KEY")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_intermixed_args()


def token_recipes() -> list[str]:
    """Recipes that learn from plain text by gradient descent."""
    return [name for name in recipe_names() if not recipe(name).settings.network.depth.counts
            and "translation" not in recipe(name).settings.objective]


def train(label: str, changes: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Train, or read the result of an earlier call with the same arguments."""
    budget = ["--minutes", str(options.minutes)] if options.minutes else ["--tokens", str(options.tokens)]
    command = [label, "--corpus", options.text, *budget, "--seed", str(options.seed), *changes,
               f"training.threads={options.threads}", "training.validate_every=1000000000",
               "training.checkpoint_every=1000000000"]
    run = options.out / f"{label.replace('@', '-')}-{hashlib.sha256(json.dumps(command).encode()).hexdigest()[:10]}"
    finished = run / "result.json"
    if not finished.exists():
        subprocess.run([sys.executable, "-m", "stemma", "pretrain", *command, "--out", str(run), "--overwrite"],
                       check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(finished.read_text(encoding="utf-8")))


def bisect(label: str, key: str, options: argparse.Namespace) -> None:
    """The best value of a numeric key, by factors of two."""
    start = float(flatten(recipe(label, options.changes).values)[key])
    losses: dict[float, float] = {}

    def loss(value: float) -> float:
        if value not in losses:
            result = train(label, [*options.changes, f"{key}={value:.4g}"], options)
            show(label, f"{key}={value:.4g}", result)
            losses[value] = result["validation_loss"]
        return losses[value]

    best = start
    loss(best)
    for factor in (2.0, 0.5):
        while loss(best * factor) < losses[best]:
            best *= factor
        if best != start:
            break
    print(f"{label}: best {key} = {best:.4g}", flush=True)


def show(label: str, change: str, result: dict[str, Any]) -> None:
    held_out, unigram = result["validation_loss"], result["unigram_loss"]
    below = "-" if unigram is None else f"{unigram - held_out:.3f}"
    print(f"{label:25} {change[:40]:40} {result['tokens']:>9,} {result['tokens_per_second']:>9,.0f}  {held_out:>8.3f}  "
          f"{unigram or float('nan'):>7.3f}  {below:>5}", flush=True)


if __name__ == "__main__":
    main()
