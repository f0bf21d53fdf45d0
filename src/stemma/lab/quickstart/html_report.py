"""The quickstart's `report.html`: all numbers come from the run itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stemma.errors import pluralize
from stemma.lab.quickstart.finetune_comparison import CLASSIFIERS
from stemma.lab.quickstart.masked_accuracy import sample_std
from stemma.lab.quickstart.recipe_changes import ANCESTOR
from stemma.lab.quickstart.usage import TITLES
from stemma.lab.report.html_report import HtmlReport
from stemma.lab.report.run_html import draw_curve, value_text
from stemma.training.run_folder import read_run

PREDICTORS = {"unigram": "unigram baseline", "bigram": "bigram baseline (left neighbour)",
              "two-sided": "n-gram baseline (both neighbours)", "model": "pre-trained model"}


def write_quickstart_report(result: Mapping[str, Any], folder: Path) -> Path:
    from stemma.lab.report.plots import bars

    masked, probe, run = result["masked"], result["probe"], result["pretraining"]
    run_recipe, _ = read_run(Path(run["run"]))
    page = HtmlReport("A language model from your own Python").intro(
        f"{result['text']['words']:,} words of documentation, {run['seconds']:.0f} seconds of pre-training on "
        f"{thread_note(run)}, then two evaluations on held-out text.", headline(result))
    page.points(verdict["said"] for verdict in result["verdicts"].values())

    text, corpus = result["text"], result["corpus"]
    page.section("Training text", "The docstrings, block comments and language reference inside this Python, extracted "
                 f"without running any of it: {text['documents']:,} documents for training, "
                 f"{text['held_out_documents']} whole modules and topics ({text['held_out_words']:,} words) held out. "
                 f"With a vocabulary of {corpus['vocabulary']:,} tokens the training text has "
                 f"{corpus['tokens']:,} tokens, one sentence per line.")

    page.section("Learning curve", f"{result['speed']['said'].capitalize()}.").figure(
        draw_curve(Path(run["run"]), result["curve_baselines"]),
        f"Loss over {run['steps']:,} steps ({run['tokens']:,} tokens). Held-out: the validation documents of this run. "
        "Dashed: the n-gram baselines at the same masked positions.")

    page.section("Masked-token prediction", f"{result['places']:,} tokens of the held-out modules are masked. The "
                 "baselines count n-grams in the whole training text; they back off if a neighbour is masked or the "
                 "context is new.")
    page.table(["predictor", "accuracy", "loss (nats)"],
               [[PREDICTORS[name], f"{masked[name]['accuracy']:.1%}", f"{masked[name]['loss']:.2f}"]
                for name in PREDICTORS],
               "All four are scored at the same positions, where the model sees a mask token.")
    page.table(["held-out sentence", "gold", "predicted"],
               [[row["text"], row["truth"], format_fills(row, "`")] for row in result["filled"]],
               "A random sample of the held-out text.")

    page.section("Fine-tuning with few labels",
                 f"{probe_question(probe)} {result['labels']} labelled sentences for training and "
                 f"{result['tests']:,} for testing, all from held-out modules. The network is fine-tuned from random "
                 "and from pre-trained weights, with the same code and settings. The embedding is frozen, so that "
                 "tokens that occur in no example keep their relation to the others. The third classifier is logistic "
                 "regression over word and character n-grams, with its penalty chosen by cross-validation on the same "
                 "labels. Each seed samples other sentences, random weights and batch order.")
    page.code(f"original   {probe['example']['intact']}\ncorrupted  {probe['example']['damaged']}")
    classifiers = [(title, probe[name]["test"]) for name, title in CLASSIFIERS.items()]
    page.figure(bars(classifiers, "test accuracy", ("chance level", 0.5)),
                f"Bars: mean over {result['seeds']} seeds; points: single seeds.")
    page.table(["classifier", "test accuracy", "std", "training accuracy"],
               [[title, f"{np.mean(probe[name]['test']):.3f}", f"{sample_std(probe[name]['test']):.3f}",
                 f"{np.mean(probe[name]['train']):.3f}"] for name, title in CLASSIFIERS.items()],
               "Mean and standard deviation over the seeds. Fine-tuning takes "
               f"{probe['settings']['epochs']} epochs at a peak learning rate of "
               f"{probe['settings']['learning_rate']:g}. The last column shows whether the training sentences are "
               "fitted.")

    changed = f" with {pluralize(len(result['changes']), 'change')} for this run" if result["changes"] else ""
    page.section("The recipe", f"`{run_recipe.label}` is {run_recipe.title} ({run_recipe.paper}) at a laptop size"
                 f"{changed}. Its changes from `{ANCESTOR}`, and why:")
    page.table(["key", ANCESTOR, "this run", "why"],
               [[f"`{change['key']}`", value_text(change["from"]),
                 "removed" if change["to"] is None else value_text(change["to"]), change["why"]]
                for change in result["diff"]],
               f"As `stemma diff {ANCESTOR} {run_recipe.label}` lists them, with the vocabulary of this text. "
               "`stemma ablate` measures what each change contributes.")
    page.section("Use the model")
    for interface, lines in result["usage"].items():
        page.text(f"{TITLES[interface]}:".capitalize()).code("\n".join(lines))
    page.section("Step by step", "The same with single commands, for this text or yours:").code(
        "\n".join(result["commands"]))
    return page.write(folder / "report.html")


def headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    masked, probe = result["masked"], result["probe"]
    random, ngrams, pretrained = (np.mean(probe[name]["test"]) for name in CLASSIFIERS)
    return [(f"{masked['model']['accuracy']:.1%}", "masked-token accuracy; baselines: unigram "
             f"{masked['unigram']['accuracy']:.1%}, left neighbour {masked['bigram']['accuracy']:.1%}, both neighbours "
             f"{masked['two-sided']['accuracy']:.1%}"),
            (f"{pretrained:.1%}", f"test accuracy from {result['labels']} labels; random weights {random:.1%}, "
             f"n-gram classifier {ngrams:.1%}"),
            (f"{masked['model']['loss']:.2f}", f"loss of masked tokens in nats; unigram "
             f"{masked['unigram']['loss']:.2f}, both neighbours {masked['two-sided']['loss']:.2f}")]


def probe_question(probe: Mapping[str, Any]) -> str:
    count = probe["strength"]
    corruption = {"replaced_words": f"were {count} of its words replaced by others?",
                  "swapped_words": f"were two neighbouring spans of {count} words swapped?"}[probe["kind"]]
    return f"Is this sentence original, or {corruption}"


def format_fills(row: Mapping[str, Sequence[Mapping[str, object]]], quote: str = '"') -> str:
    """Predicted tokens in quotes, because some of them are commas."""
    return ", ".join(f"{quote}{fill['token']}{quote} {fill['probability']:.0%}" for fill in row["guesses"])


def thread_note(run: Mapping[str, Any]) -> str:
    return f"{run['threads']} thread{'' if run['threads'] == 1 else 's'}"
