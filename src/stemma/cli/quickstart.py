"""`quickstart`: pre-training, evaluation and fine-tuning in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TRAIN, computes
from stemma.cli.options import SeedOption
from stemma.cli.output import JsonOption, align_columns, emit
from stemma.errors import pluralize


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TRAIN)(quickstart)


@computes
def quickstart(out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")] = Path("quickstart"),
               minutes: Annotated[float | None, typer.Option(
                   help="Minutes of pre-training; by default 4, and up to 8 on a slow machine.")] = None,
               seed: SeedOption = 0,
               overwrite: Annotated[bool, typer.Option("--overwrite", help="Empty --out and start again.")] = False,
               json: JsonOption = False) -> None:
    """Pre-train a small ModernBERT on the documentation inside your Python, evaluate and fine-tune it. No download.

    The same command continues after an interruption.

    Example: stemma quickstart --minutes 10
    """
    from stemma.lab.quickstart.quickstart import quickstart as run_quickstart

    result = run_quickstart(out, minutes=minutes, seed=seed, overwrite=overwrite, show=sys.stderr.isatty(),
                            say=lambda text: print(f"· {text}", file=sys.stderr, flush=True))
    emit(result, json, lambda: _show(result))


def _show(result: dict[str, Any]) -> None:
    """Print the results, each with its baselines."""
    from statistics import mean
    from textwrap import fill

    from stemma.lab.quickstart.finetune_comparison import CLASSIFIERS
    from stemma.lab.quickstart.html_report import PREDICTORS, format_fills, probe_question, thread_note
    from stemma.lab.quickstart.masked_accuracy import sample_std
    from stemma.lab.quickstart.recipe_changes import ANCESTOR, group_by_reason
    from stemma.lab.quickstart.usage import TITLES

    text, corpus, run, masked, probe = (result[key] for key in ("text", "corpus", "pretraining", "masked", "probe"))
    print(f"\nTraining text: {pluralize(text['words'], 'word')} of your Python's documentation; "
          f"{pluralize(text['held_out_words'], 'word')} of other modules are held out")
    print(f"  {pluralize(corpus['tokens'], 'token')} with a vocabulary of {corpus['vocabulary']:,}")
    changed = f" with {pluralize(len(result['changes']), 'change')}" if result["changes"] else ""
    print(f"\nThe recipe: {run['recipe']}{changed}. Its changes from {ANCESTOR}, and why")
    for why, changes in group_by_reason(result["diff"]):
        print(fill(changes, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
        print(f"      {why}")
    print(f"\nPre-training: {run['parameters'] / 1e6:.1f} M parameters")
    print(f"  {result['speed']['said']}")
    print(f"  {pluralize(run['steps'], 'step')}, {pluralize(run['tokens'], 'token')} in {run['seconds']:.0f} s "
          f"({run['tokens_per_second']:,.0f} tokens/s on {thread_note(run)})")
    print(f"\nMasked-token prediction: {result['places']:,} masked tokens of the held-out modules")
    _table([["", "accuracy", "loss (nats)"], *([name, f"{masked[key]['accuracy']:.1%}", f"{masked[key]['loss']:.2f}"]
                                               for key, name in PREDICTORS.items())])
    print(f"  {result['verdicts']['masked']['said']}")
    print("\nA random sample of them")
    for row in result["filled"]:
        print(f"  {row['text']}\n    gold {row['truth']}; predicted {format_fills(row)}")
    print(f"\nFine-tuning with {pluralize(result['labels'], 'label')} ({pluralize(result['seeds'], 'seed')}, "
          f"{result['tests']:,} test sentences)\n  {probe_question(probe)}")
    _table([["", "test accuracy", "each seed"],
            *([title, f"{mean(probe[name]['test']):.3f} ± {sample_std(probe[name]['test']):.3f}",
               " ".join(f"{value:.3f}" for value in probe[name]["test"])] for name, title in CLASSIFIERS.items())])
    for key in ("probe", "n-grams"):
        print(f"  {result['verdicts'][key]['said']}")
    print("\nThe commands of these steps")
    for line in result["commands"]:
        print(f"  {line}")
    print(f"\nThe report is in {result['report']} ({result['took']:.0f} s in total)")
    for interface, lines in result["usage"].items():
        print(f"\nUse the model {TITLES[interface]}")
        for line in lines:
            print(f"  {line}")


def _table(rows: list[list[str]]) -> None:
    for line in align_columns(rows):
        print(f"  {line}")
